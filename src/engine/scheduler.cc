// The life of requests: queued, ended, counted.
#include "engine/scheduler.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "engine/check_request.h"

namespace tandem::engine {
namespace {

double milliseconds(Time time) { return std::chrono::duration<double, std::milli>(time).count(); }

// A stream alone has every page, but no more than the longest table.
int64_t rows_of_one_stream(const SchedulerOptions& options) {
  const forward::Capacity& capacity = options.capacity;
  const int64_t pages = options.page_groups * (capacity.pages - 1);
  const int64_t entries = capacity.max_stream_pages != 0 ? capacity.max_stream_pages : pages;
  return std::min(options.max_model_len, capacity.page_rows * std::min(pages, entries));
}

const SchedulerOptions& checked(const SchedulerOptions& options) {
  check_options(options);
  return options;
}

}  // namespace

Scheduler::Scheduler(const SchedulerOptions& options, draft::Drafter* drafter)
    : options_(checked(options)),
      max_stream_rows_(rows_of_one_stream(options)),
      book_(options),
      sampler_(options.vocab_size),
      shaper_(options.vocab_size, options.capacity.slots),
      drafter_(drafter),
      pacer_(options.prefill_slice_ms, options.fill_share, options.capacity.max_rows),
      streams_(static_cast<size_t>(options.capacity.slots)),
      need_(options.page_groups) {
  const auto slots = streams_.size();
  const auto rows = static_cast<size_t>(options.capacity.max_rows);
  const auto entries = static_cast<size_t>(book_.entries_of(max_stream_rows_));
  for (size_t i = 0; i < slots; ++i) {
    streams_[i].slot = static_cast<int32_t>(i);
    streams_[i].page_table.reserve(entries);
  }
  by_age_.reserve(slots);
  step_.keeps.reserve(slots);
  step_.restores.reserve(slots);
  step_.page_copies.reserve(slots);
  step_.tokens.reserve(rows);
  step_.positions.reserve(rows);
  step_.segments.reserve(slots);
  step_.page_tables.reserve(slots * entries);
  step_.logit_rows.reserve(static_cast<size_t>(options.capacity.max_logit_rows));
  step_.head_slots.reserve(slots);
  step_.samples.reserve(static_cast<size_t>(options.capacity.max_logit_rows));
  step_.masked_tokens.reserve(static_cast<size_t>(options.capacity.max_logit_rows) * forward::RowSample::most_masked);
  wanted_.reserve(slots);
  ran_.reserve(slots);
  fills_.reserve(slots);
  filling_.reserve(slots);
  views_.reserve(slots);
  wishes_.reserve(slots);
  wishing_.reserve(slots);
  takes_.reserve(slots);
}

std::unique_ptr<Job> Scheduler::make_job(Request request, Engine::Sink sink, Time now) const {
  auto& stops = request.stop_token_ids;
  std::sort(stops.begin(), stops.end());
  stops.erase(std::unique(stops.begin(), stops.end()), stops.end());
  check_request(request, options_, max_stream_rows_);
  std::sort(request.keep_positions.begin(), request.keep_positions.end());
  request.needs_every_prompt_row = request.needs_every_prompt_row || request.prompt_logprobs >= 0;
  auto job = std::make_unique<Job>();
  job->ids = std::move(request.prompt_ids);
  job->prompt = std::ssize(job->ids);
  job->request = std::move(request);
  job->sink = std::move(sink);
  job->submitted = now;
  auto& max_tokens = job->request.max_tokens;
  max_tokens = std::min(max_tokens, max_stream_rows_ - job->prompt);
  constexpr double longest_s = 1e8;  // three years: beyond, nanoseconds would overflow
  if (const auto deadline = job->request.deadline_s; deadline && *deadline < longest_s)
    job->deadline = now + std::chrono::duration_cast<Time>(std::chrono::duration<double>(*deadline));
  return job;
}

void Scheduler::check_queue(int64_t not_ended) const {
  const int64_t waiting = not_ended - std::ssize(streams_);
  if (waiting >= options_.max_waiting) throw QueueFull(waiting);
}

void Scheduler::enqueue(std::unique_ptr<Job> job) {
  next_number_ = job->number + 1;
  next_deadline_ = std::min(next_deadline_, job->deadline);
  queue_.push_back(std::move(job));
  ++waiting_;
  if (next_in_queue() + 1 == queue_.size()) admission_waits_ = false;  // it goes before the one that found no room
}

uint64_t Scheduler::submit(Request request, Engine::Sink sink, Time now) {
  auto job = make_job(std::move(request), std::move(sink), now);
  check_queue(running() + waiting());
  const uint64_t number = job->number = next_number_;
  enqueue(std::move(job));
  return number;
}

void Scheduler::cancel(uint64_t number, Time now) {
  for (Stream& stream : streams_) {
    if (stream.is_running() && stream.job->number == number) return finish(stream, FinishReason::cancelled, now);
  }
  const auto found = std::find_if(queue_.begin(), queue_.end(), [&](const auto& job) { return job->number == number; });
  if (found == queue_.end()) return;
  const auto job = std::move(*found);
  queue_.erase(found);
  admission_waits_ = false;
  --waiting_;
  finish(*job, FinishReason::cancelled, now);
}

// A sink must not throw; if one does, its request is dropped and the others live on.
void Scheduler::send(Job& job, const Event& event) {
  try {
    job.sink(event);
    return;
  } catch (const std::exception& e) {
    log(LogLevel::error, "request {}: its receiver threw: {}", job.request.id, e.what());
  } catch (...) {
    log(LogLevel::error, "request {}: its receiver threw", job.request.id);
  }
  job.receiver_failed = receiver_failed_ = true;
}

void Scheduler::finish(Job& job, FinishReason reason, Time now, int32_t stop_token, const std::string& error) {
  const bool has_token = job.emitted > 0;
  Event event;
  event.kind = Event::Kind::finished;
  event.reason = reason;
  event.stop_token = stop_token;
  event.error = error;
  event.timings.queue_ms = milliseconds((job.was_admitted ? job.admitted : now) - job.submitted);
  event.drafts = job.drafts;
  if (job.was_admitted) event.timings.prefill_ms = milliseconds((has_token ? job.first_token : now) - job.admitted);
  if (has_token) event.timings.decode_ms = milliseconds(now - job.first_token);
  job.ended = true;
  send(job, event);
}

void Scheduler::finish(Stream& stream, FinishReason reason, Time now, int32_t stop_token, const std::string& error) {
  change_phase(stream, Stream::Phase::ended);
  finish(*stream.job, reason, now, stop_token, error);
}

void Scheduler::change_phase(Stream& stream, Stream::Phase phase) {
  const bool was_running = stream.is_running();
  stream.phase = phase;
  running_ += static_cast<int64_t>(stream.is_running()) - static_cast<int64_t>(was_running);
}

void Scheduler::end_overdue(Time now) {
  if (now < next_deadline_) return;
  next_deadline_ = never;
  for (Stream& stream : streams_) {
    if (!stream.is_running()) continue;
    if (stream.job->deadline <= now)
      finish(stream, FinishReason::deadline, now);
    else
      next_deadline_ = std::min(next_deadline_, stream.job->deadline);
  }
  for (auto entry = queue_.begin(); entry != queue_.end();) {
    if ((*entry)->deadline > now) {
      next_deadline_ = std::min(next_deadline_, (*entry)->deadline);
      ++entry;
      continue;
    }
    const auto job = std::move(*entry);
    entry = queue_.erase(entry);
    admission_waits_ = false;
    --waiting_;
    finish(*job, FinishReason::deadline, now);
  }
}

void Scheduler::end_lost_receivers(Time now) {
  if (!std::exchange(receiver_failed_, false)) return;
  for (Stream& stream : streams_) {
    if (stream.is_running() && stream.job->receiver_failed) finish(stream, FinishReason::cancelled, now);
  }
}

void Scheduler::end_all(FinishReason reason, const std::string& error, Time now) {
  for (Stream& stream : streams_) {
    if (stream.is_running()) finish(stream, reason, now, -1, error);
  }
  while (!queue_.empty()) {
    const auto job = std::move(queue_.front());
    queue_.pop_front();
    --waiting_;
    finish(*job, reason, now, -1, error);
  }
}

}  // namespace tandem::engine
