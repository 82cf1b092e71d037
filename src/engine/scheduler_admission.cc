// Admission: by priority, among equals first come, first served, and nobody is passed more than most_passes times; the
// longest kept prefix is resumed; all pages of the prompt are taken at once (spec/runtime.md b.3.5, b.4, c.5).
#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "engine/scheduler.h"

namespace tandem::engine {
namespace {

PrefixMiss miss_of(cache::MissReason reason) {
  switch (reason) {
    case cache::MissReason::none: return PrefixMiss::none;
    case cache::MissReason::new_prefix: return PrefixMiss::new_prefix;
    case cache::MissReason::evicted: return PrefixMiss::evicted;
    case cache::MissReason::other_salt: return PrefixMiss::other_salt;
  }
  return PrefixMiss::new_prefix;
}

// A prompt that leaves stored text inside a part whose change has a name misses for that reason.
PrefixMiss refined(PrefixMiss miss, const std::vector<PromptPart>& parts, int64_t common) {
  if (miss != PrefixMiss::new_prefix || common == 0) return miss;
  for (const PromptPart& part : parts) {
    if (common < part.begin || common >= part.end) continue;
    return part.kind == PromptPart::Kind::effort ? PrefixMiss::effort_changed : PrefixMiss::template_changed;
  }
  return miss;
}

// A request that was given back after its prompt's log-probabilities were delivered may be resumed like any other.
bool needs_every_row(const Job& job) {
  return job.request.needs_every_prompt_row && (job.request.prompt_logprobs < 0 || job.wants_scores());
}

}  // namespace

Stream* Scheduler::free_stream() {
  for (Stream& stream : streams_) {
    if (stream.phase == Stream::Phase::free) return &stream;
  }
  return nullptr;
}

void Scheduler::admit(Time now) {
  while (!queue_.empty() && !admission_waits_) {
    if (free_stream() != nullptr && admit_next(now)) continue;
    if (yield_place()) continue;
    admission_waits_ = free_stream() != nullptr;
    return;
  }
}

// Of a queue that is not empty.
size_t Scheduler::next_in_queue() const {
  size_t next = 0;
  for (size_t i = 1; i < queue_.size(); ++i) {
    if (goes_before(*queue_[i], *queue_[next])) next = i;
  }
  return next;
}

// A request in the background goes back to the queue for the one that is next; its tokens stay. False: there is none,
// or the next one is no better.
bool Scheduler::yield_place() {
  if (is_background(*queue_[next_in_queue()])) return false;
  Stream* last = nullptr;
  for (Stream& stream : streams_) {
    if (!stream.is_running() || !is_background(*stream.job)) continue;
    if (stream.admitted_step == counts_.steps) continue;  // the step holds moves of its state
    if (last == nullptr || goes_before(*last->job, *stream.job)) last = &stream;
  }
  if (last == nullptr) return false;
  return_to_queue(*last);
  return true;
}

void Scheduler::count_passes(uint64_t number) {
  for (const auto& job : queue_) {
    if (job->number < number) ++job->passed;
  }
}

// False: the one that is next has to wait, and all others with it.
bool Scheduler::admit_next(Time now) {
  const size_t next = next_in_queue();
  const Job& job = *queue_[next];
  int64_t limit = needs_every_row(job) ? 0 : std::ssize(job.ids);
  while (true) {
    const Admission admission = look_up(job, limit);
    if (has_room_for(job, admission.match)) {
      auto taken = std::move(queue_[next]);
      queue_.erase(queue_.begin() + static_cast<std::ptrdiff_t>(next));
      count_passes(taken->number);
      start_stream(*free_stream(), std::move(taken), admission, now);
      return true;
    }
    if (running() > 0 || book_.has_pins()) return false;
    // Alone, and still no room: the state to resume from has a partial page that is needed twice. A shorter one, or
    // none, fits: every page is free or reclaimable.
    if (admission.match.record < 0)
      throw Error(ErrorCode::internal, "admission", "a checked request does not fit into an empty pool");
    limit = admission.match.length - 1;
  }
}

Scheduler::Admission Scheduler::look_up(const Job& job, int64_t limit) const {
  Admission admission;
  admission.match = book_.index().find(job.ids, job.request.cache_salt, limit);
  const cache::Match& match = admission.match;
  if (needs_every_row(job))
    admission.miss = PrefixMiss::logprobs_asked;
  else if (match.length < std::ssize(job.ids))
    admission.miss = refined(miss_of(match.reason), job.request.prompt_parts, match.common);
  return admission;
}

// Pages of the prompt and of its first reply row beyond the shared ones, and a page of headroom for each stream that
// decodes. A state that would be resumed is no room.
bool Scheduler::has_room_for(const Job& job, const cache::Match& match) {
  need_.clear();
  const int64_t first = match.record >= 0 ? shared_pages(match.length) : 0;
  const int64_t end = book_.entries_of(std::ssize(job.ids) + 1);
  for (int64_t entry = first; entry < end; ++entry) need_.add_entry(entry);
  for (const Stream& stream : streams_) {
    if (stream.phase == Stream::Phase::decoding) need_.add_entry(std::ssize(stream.page_table));
  }
  if (match.record >= 0) book_.index().pin(match.record);
  const bool has_room = book_.has_room(need_);
  if (match.record >= 0) book_.index().unpin(match.record);
  return has_room;
}

void Scheduler::start_stream(Stream& stream, std::unique_ptr<Job> taken, const Admission& admission, Time now) {
  stream.job = std::move(taken);
  Job& job = *stream.job;
  const cache::Match& match = admission.match;
  stream.admitted_step = counts_.steps;
  stream.length = stream.kept = 0;
  stream.fill_end = std::ssize(job.ids);
  stream.waits = false;
  job.ids.reserve(static_cast<size_t>(job.prompt + job.request.max_tokens));
  if (match.record >= 0) resume(stream, match);
  const int64_t entries = book_.entries_of(stream.fill_end + 1);
  for (int64_t entry = std::ssize(stream.page_table); entry < entries; ++entry) {
    const int32_t page = book_.take(entry);
    if (page == 0) throw Error(ErrorCode::internal, "admission", "a page that was counted is not there");
    stream.page_table.push_back(page);
  }
  stream.fork = match.departs ? fork_point(options_.keep, stream.length, match.common) : 0;
  find_next_keep(stream);
  stream.proposal.clear();
  stream.tried = 0;
  shaper_.start(stream.slot, job.request.sampling, job.ids, job.prompt);
  if (drafter_ != nullptr) drafter_->start(stream.slot, job.ids, stream.length);
  --waiting_;
  change_phase(stream, Stream::Phase::filling);
  counts_.cached_tokens += stream.length;
  if (job.was_admitted) {  // given back before: nobody need know
    log(LogLevel::debug, "request {}: resumed, {} tokens, {} cached", job.request.id, stream.fill_end, stream.length);
    return;
  }
  job.was_admitted = true;
  job.admitted = now;
  counts_.prompt_tokens += job.prompt;
  log(LogLevel::debug, "request {}: admitted, {} prompt tokens, {} cached, miss: {}", job.request.id, job.prompt,
      stream.length, name_of(admission.miss));
  Event event;
  event.kind = Event::Kind::admitted;
  event.cached_tokens = stream.length;
  event.miss = admission.miss;
  send(job, event);
}

// Full pages are shared; the partial last one is copied, because the stream will write behind the state's rows. The MTP
// layer's last row is run again, because it depends on the token behind it: with that layer the page of the last row is
// copied even if it is full.
int64_t Scheduler::shared_pages(int64_t length) const {
  return (options_.draft.has_mtp ? length - 1 : length) / book_.page_rows();
}

void Scheduler::resume(Stream& stream, const cache::Match& match) {
  book_.pin_for_step(match.record);
  book_.index().touch(match.record, match.departs && match.common == match.length);
  const auto table = book_.index().page_table(match.record);
  const int64_t full = shared_pages(match.length), rest = match.length - full * book_.page_rows();
  for (int64_t entry = 0; entry < full; ++entry) {
    book_.share(entry, table[static_cast<size_t>(entry)]);
    stream.page_table.push_back(table[static_cast<size_t>(entry)]);
  }
  if (rest > 0) {
    const int32_t page = book_.take(full);
    if (page == 0) throw Error(ErrorCode::internal, "admission", "a page that was counted is not there");
    stream.page_table.push_back(page);
    step_.page_copies.push_back({.from = table[static_cast<size_t>(full)],
                                 .to = page,
                                 .rows = static_cast<int32_t>(rest),
                                 .group = book_.group_of(full)});
  }
  step_.restores.push_back({.slot = stream.slot, .record = match.record, .length = match.length});
  stream.length = stream.kept = match.length;
}

}  // namespace tandem::engine
