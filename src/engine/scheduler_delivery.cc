// After the step: lengths, sampled tokens, ends; and what outsiders may see.
#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <string>

#include "base/error.h"
#include "base/log.h"
#include "engine/logprobs.h"
#include "engine/rule_list.h"
#include "engine/scheduler.h"

namespace tandem::engine {
namespace {

// Ends at the first token that may come, so it costs nothing unless nearly all are masked. A logit that is not a number
// counts: the sampler says so.
bool has_choice(std::span<const float> logits, const AllowedTokens& allowed) {
  for (int32_t id = 0; id < allowed.size; ++id) {
    if (logits[static_cast<size_t>(id)] == -std::numeric_limits<float>::infinity()) continue;
    if (!std::binary_search(allowed.masked.begin(), allowed.masked.end(), id)) return true;  // stop ids are sorted
  }
  return false;
}

}  // namespace

void Scheduler::complete(std::span<const float> logits, std::span<const ops::Sampled> sampled, Time now) {
  int64_t rows = 0;
  for (const Wanted& wanted : wanted_) {
    rows += wanted.scored + (wanted.samples ? 1 + wanted.stream->tried : 0);
  }
  RowResults results(step_, logits, sampled, options_.vocab_size);
  if (results.left() != rows)
    throw Error(ErrorCode::internal, "step", fmt::format("{} rows of results", results.left()),
                fmt::format("{}", rows));
  ++counts_.steps;
  counts_.step_rows += measured_.rows;
  measured_.ended = now;
  pacer_.step_done(measured_);
  unpin();
  for (const Running& ran : ran_) ran.stream->length += ran.rows;
  for (const Wanted& wanted : wanted_) {
    for (int64_t i = 0; i < wanted.scored; ++i) score(*wanted.stream, results.next().logits);
    if (!wanted.samples) continue;
    const int64_t own = 1 + wanted.stream->tried;
    verify(*wanted.stream, results, now);
    results.skip(own);
  }
  propose();
}

// The row of a token of the prompt says how likely the next one was. A stream that was given back runs its rows again,
// and they are not asked for again.
void Scheduler::score(Stream& stream, std::span<const float> logits) {
  Job& job = *stream.job;
  Event event;
  event.kind = Event::Kind::prompt_token;
  event.token = job.ids[static_cast<size_t>(++job.scored)];
  report_logprobs(logits, event.token, job.request.prompt_logprobs, logprobs_);
  logprobs_.rank = rank_of(logits, event.token);
  event.logprobs = &logprobs_;
  send(job, event);
  logprobs_.rank = 0;
}

// Row by row (spec/speculation.md 3.2): each row's token is the one that the reply has at its place, whatever the
// drafts are; a row is of use only if the row before it chose the draft that it ran.
void Scheduler::verify(Stream& stream, RowResults rows, Time now) {
  Job& job = *stream.job;
  const bool had_pending = stream.phase == Stream::Phase::decoding;
  if (had_pending) {
    job.drafts.begin_step(stream.tried);
    counts_.drafts.begin_step(stream.tried);
  }
  int32_t right = 0;
  for (int32_t row = 0; stream.is_running(); ++row) {
    const RowResults::Row result = rows.next();
    const auto choice = choose(stream, result, row < stream.tried ? row : -1, now);
    if (!choice) break;
    if (had_pending) {
      job.drafts.add_token(row, choice->accepted);
      counts_.drafts.add_token(row, choice->accepted);
    }
    deliver(stream, choice->token, result.logits, row == 0, now);
    if (!choice->accepted) break;
    ++right;
    if (stream.is_running()) ++stream.length;  // the draft's own row is the row of the token that was just chosen
  }
  const bool had_drafts = had_pending && stream.proposal.source != draft::Source::none;
  if (drafter_ != nullptr && had_drafts) drafter_->verified(stream.slot, stream.proposal, stream.tried, right);
}

AllowedTokens Scheduler::allowed_at(const Job& job, int64_t position) const {
  AllowedTokens allowed;
  allowed.size = options_.sampled_tokens;
  if (position - job.prompt < job.request.min_tokens) allowed.masked = job.request.stop_token_ids;
  return allowed;
}

// The last row that is certain stands at length − 1, so this row chooses the token of position `length`. `draft`: place
// of the draft that stands there, −1: none. Empty: the request's own demands leave no token or its rule threw, and the
// request has ended; the others go on.
std::optional<RatioChoice> Scheduler::choose(Stream& stream, const RowResults::Row& row, int32_t draft, Time now) {
  const Job& job = *stream.job;
  const SamplingParams& params = job.request.sampling;
  const AllowedTokens allowed = allowed_at(job, stream.length);
  const bool is_masked = job.request.rule != nullptr || !allowed.masked.empty();
  const auto place = static_cast<size_t>(std::max(draft, 0));
  std::span<const float> shaped;
  std::optional<int32_t> token;
  std::string failure;
  if (row.sampled != nullptr) {
    token = token_of(*row.sampled, job, is_masked);
    if (!token) failure = no_token_left;
  } else {
    try {
      shaped = shaper_.shape(stream.slot, row.logits, params, job.request.rule.get());
      if (is_masked && !has_choice(shaped, allowed)) failure = no_token_left;
    } catch (const std::exception& e) {  // only the rule's
      failure = fmt::format("the request's rule failed: {}", e.what());
    }
  }
  if (!failure.empty()) {
    log(failure == no_token_left ? LogLevel::info : LogLevel::error, "request {}: {}", job.request.id, failure);
    finish(stream, FinishReason::error, now, -1, failure);
    return std::nullopt;
  }
  const int32_t drafted = stream.proposal.tokens[place];
  if (!token && draft >= 0 && options_.draft.verify == DraftVerify::ratio)
    return sampler_.verify_ratio(shaped, params, stream.length, allowed, drafted, stream.proposal.drawn_from[place]);
  if (!token) token = sampler_.select(shaped, params, stream.length, allowed);
  return RatioChoice{*token, draft >= 0 && *token == drafted};
}

void Scheduler::deliver(Stream& stream, int32_t token, std::span<const float> logits, bool begins_step, Time now) {
  Job& job = *stream.job;
  const auto& stops = job.request.stop_token_ids;
  if (job.emitted == 0) job.first_token = now;
  ++job.emitted;
  ++counts_.generated_tokens;
  if (std::binary_search(stops.begin(), stops.end(), token)) return finish(stream, FinishReason::stop, now, token);
  job.ids.push_back(token);
  change_phase(stream, Stream::Phase::decoding);
  shaper_.accept(stream.slot, token);
  bool ends = false;
  try {
    if (job.request.rule != nullptr) {
      job.request.rule->accept(token);
      ends = job.request.rule->is_finished();
    }
    ends = (job.request.ends_after && job.request.ends_after(token)) || ends;  // it sees every token
  } catch (const std::exception& e) {
    log(LogLevel::error, "request {}: its rule threw: {}", job.request.id, e.what());
    return finish(stream, FinishReason::error, now, -1, fmt::format("the request's rule failed: {}", e.what()));
  }
  Event event;
  event.token = token;
  event.begins_step = begins_step;
  if (job.request.logprobs >= 0) {
    report_logprobs(logits, token, job.request.logprobs, logprobs_);
    event.logprobs = &logprobs_;
  }
  send(job, event);
  if (ends) return finish(stream, FinishReason::stop, now);
  const auto reply = std::span<const int32_t>(job.ids).subspan(static_cast<size_t>(job.prompt));
  if (job.request.repetition.is_on() && ends_in_repetition(reply, job.request.repetition))
    return finish(stream, FinishReason::repetition, now);
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
  snapshot.logits = std::ssize(step_.logit_rows) + std::ssize(step_.head_slots);
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
