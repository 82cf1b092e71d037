// After the step: lengths, sampled tokens, ends; and what outsiders may see.
#include <fmt/core.h>

#include <algorithm>

#include "base/error.h"
#include "engine/scheduler.h"

namespace tandem::engine {

void Scheduler::complete(std::span<const float> logits, Time now) {
  const auto width = static_cast<size_t>(options_.vocab_size);
  if (logits.size() != sampled_.size() * width)
    throw Error(ErrorCode::internal, "step", fmt::format("{} logits", logits.size()),
                fmt::format("{} rows of {}", sampled_.size(), width));
  ++counts_.steps;
  counts_.step_rows += measured_.rows;
  measured_.ended = now;
  pacer_.step_done(measured_);
  unpin();
  for (const Running& ran : ran_) ran.stream->length += ran.rows;
  for (size_t i = 0; i < sampled_.size(); ++i) deliver(*sampled_[i], logits.subspan(i * width, width), now);
}

void Scheduler::deliver(Stream& stream, std::span<const float> logits, Time now) {
  Job& job = *stream.job;
  const auto& stops = job.request.stop_token_ids;
  AllowedTokens allowed;
  allowed.size = options_.sampled_tokens;
  if (job.emitted < job.request.min_tokens) allowed.masked = stops;
  // The last row run stands at length − 1, so its logits choose the token of position `length`.
  const int32_t token = sampler_.select(logits, job.request.sampling, stream.length, allowed);
  if (job.emitted == 0) job.first_token = now;
  ++job.emitted;
  ++counts_.generated_tokens;
  if (std::binary_search(stops.begin(), stops.end(), token)) return finish(stream, FinishReason::stop, now, token);
  job.ids.push_back(token);
  change_phase(stream, Stream::Phase::decoding);
  Event event;
  event.token = token;
  send(job, event);
  if (job.emitted >= job.request.max_tokens) finish(stream, FinishReason::length, now);
}

Status Scheduler::status() const {
  Status status = counts_;
  status.running = running();
  status.waiting = waiting();
  status.max_model_len = options_.max_model_len;
  const PageBook::Rows& rows = book_.rows();
  status.pool_rows = rows.total;
  status.free_rows = rows.free;
  status.reclaimable_rows = rows.reclaimable;
  status.kept_states = book_.index().states();
  status.kept_state_records = book_.index().records();
  status.kept_state_bytes = options_.kept_state_bytes * status.kept_state_records;
  status.evictions = book_.index().evictions();
  return status;
}

void Scheduler::describe(Snapshot& snapshot, Time now) const {
  snapshot.streams.clear();
  for (const Stream& stream : streams_) {
    if (stream.phase == Stream::Phase::free) continue;
    const Job& job = *stream.job;
    StreamSnapshot& one = snapshot.streams.emplace_back();
    one.number = job.number;
    std::copy_n(job.request.id.begin(), std::min(job.request.id.size(), one.id.size() - 1), one.id.begin());
    one.phase = stream.phase == Stream::Phase::ended     ? "ended"
                : stream.phase == Stream::Phase::filling ? "filling"
                : stream.waits                           ? "waits for pages"
                                                         : "decoding";
    one.is_ended = stream.phase == Stream::Phase::ended;
    one.slot = stream.slot;
    one.prompt = job.prompt;
    one.length = stream.length;
    one.emitted = job.emitted;
    one.pages = std::ssize(stream.page_table);
    one.age_s = std::chrono::duration<double>(now - job.submitted).count();
  }
  snapshot.waiting = waiting();
  snapshot.keeps = std::ssize(step_.keeps);
  snapshot.restores = std::ssize(step_.restores);
  snapshot.page_copies = std::ssize(step_.page_copies);
  snapshot.segments = std::ssize(step_.segments);
  snapshot.rows = std::ssize(step_.tokens);
  snapshot.logits = std::ssize(sampled_);
}

std::string Snapshot::text() const {
  std::string text = fmt::format(
      "step: {} rows in {} segments, {} logit rows, {} states kept, {} restored, {} pages copied; {} waiting", rows,
      segments, logits, keeps, restores, page_copies, waiting);
  for (const StreamSnapshot& stream : streams) {
    text += fmt::format(
        "\n  slot {}: request {} (number {}), {}, at row {} of {} prompt tokens, {} sampled, {} pages, {:.1f} s old",
        stream.slot, stream.id.data(), stream.number, stream.phase, stream.length, stream.prompt, stream.emitted,
        stream.pages, stream.age_s);
  }
  return text;
}

void Scheduler::check() const {
  const auto require = [](bool holds, const std::string& what) {
    if (!holds) throw Error(ErrorCode::internal, "scheduler", what);
  };
  book_.pages().check();
  book_.index().check();
  int64_t running_now = 0;
  for (const Stream& stream : streams_) {
    running_now += static_cast<int64_t>(stream.is_running());
    require((stream.phase == Stream::Phase::free) == (stream.job == nullptr), "a slot without a request");
    if (stream.phase == Stream::Phase::free) {
      require(stream.page_table.empty(), "a free slot with pages");
      continue;
    }
    const auto ids = std::ssize(stream.job->ids);
    require(stream.length <= ids, "more rows than tokens");
    require(stream.phase != Stream::Phase::decoding || stream.length == ids - 1,
            "a decoding stream has one pending token");
    require(stream.next_keep.length == 0 || stream.next_keep.length >= stream.length, "a state was not kept in time");
    require(std::ssize(stream.page_table) >= book_.entries_of(stream.length), "rows without pages");
    for (int64_t entry = 0; entry < std::ssize(stream.page_table); ++entry)
      require(book_.pages().references(book_.group_of(entry), stream.page_table[static_cast<size_t>(entry)]) > 0,
              "a page without a reference");
  }
  require(running_now == running(), "the count of running requests");
  require(std::ssize(queue_) == waiting(), "the count of waiting requests");
  for (size_t i = 1; i < queue_.size(); ++i)
    require(queue_[i - 1]->number < queue_[i]->number, "the queue is in the order of arrival");
}

}  // namespace tandem::engine
