// schedule → run → deliver, one request after the other.
#include "engine/serial_engine.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "forward/text_model.h"

namespace tandem::engine {
namespace {

constexpr int64_t page_rows = forward::TextModel::page_rows;

double milliseconds(std::chrono::steady_clock::duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

void check_sampling(const SamplingParams& p) {
  const auto refuse = [](const char* field, double found, const char* expected) {
    throw Error(ErrorCode::usage, field, fmt::format("{}", found), expected);
  };
  if (!std::isfinite(p.temperature) || p.temperature < 0) refuse("temperature", p.temperature, "a finite number >= 0");
  if (!(p.top_p > 0 && p.top_p <= 1)) refuse("top_p", p.top_p, "a number in (0, 1]");
  if (!(p.min_p >= 0 && p.min_p <= 1)) refuse("min_p", p.min_p, "a number in [0, 1]");
}

}  // namespace

SerialEngine::SerialEngine(StepRunner& runner, const SerialEngineOptions& options)
    : runner_(runner), options_(options), sampler_(options.vocab_size), last_step_(Clock::now()) {
  // Room for the largest step: building one allocates nothing.
  const auto rows = static_cast<size_t>(options.max_num_batched_tokens);
  step_.tokens.reserve(rows);
  step_.positions.reserve(rows);
  step_.segments.reserve(1);
  step_.page_tables.reserve(static_cast<size_t>((options.max_model_len + page_rows - 1) / page_rows));
  step_.logit_rows.reserve(1);
  thread_ = std::thread([this] { loop(); });
}

SerialEngine::~SerialEngine() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void SerialEngine::check(const Request& request) const {
  if (request.prompt_ids.empty()) throw Error(ErrorCode::usage, "prompt", "no tokens", "at least one");
  for (size_t i = 0; i < request.prompt_ids.size(); ++i)
    if (request.prompt_ids[i] < 0 || request.prompt_ids[i] >= options_.vocab_size)
      throw Error(ErrorCode::usage, fmt::format("prompt_ids[{}]", i), fmt::format("{}", request.prompt_ids[i]),
                  fmt::format("0 to {}", options_.vocab_size - 1));
  const auto length = static_cast<int64_t>(request.prompt_ids.size());
  if (length + 1 > options_.max_model_len)
    throw Error(ErrorCode::usage, "prompt", fmt::format("{} tokens", length),
                fmt::format("at most {} (max_model_len {} less one token of reply)", options_.max_model_len - 1,
                            options_.max_model_len));
  if (request.max_tokens < 1)
    throw Error(ErrorCode::usage, "max_tokens", fmt::format("{}", request.max_tokens), "at least 1");
  if (request.min_tokens < 0)
    throw Error(ErrorCode::usage, "min_tokens", fmt::format("{}", request.min_tokens), "at least 0");
  const auto first_stop = std::lower_bound(request.stop_token_ids.begin(), request.stop_token_ids.end(), 0);
  const auto last_stop = std::lower_bound(first_stop, request.stop_token_ids.end(), options_.sampled_tokens);
  if (request.min_tokens > 0 && last_stop - first_stop >= options_.sampled_tokens)
    throw Error(ErrorCode::usage, "stop_token_ids", "every token of the vocabulary",
                "a token that min_tokens may sample");
  check_sampling(request.sampling);
}

uint64_t SerialEngine::submit(Request request, Sink sink) {
  auto& stops = request.stop_token_ids;
  std::sort(stops.begin(), stops.end());
  stops.erase(std::unique(stops.begin(), stops.end()), stops.end());
  check(request);
  auto job = std::make_shared<Job>();
  job->request = std::move(request);
  job->sink = std::move(sink);
  job->submitted = Clock::now();
  auto& max_tokens = job->request.max_tokens;
  max_tokens = std::min(max_tokens, options_.max_model_len - static_cast<int64_t>(job->request.prompt_ids.size()));
  {
    const std::lock_guard lock(mutex_);
    if (!broken_.empty()) throw Error(ErrorCode::resource, "engine", "broken: " + broken_, "a restart of the program");
    if (stopping_) throw Error(ErrorCode::resource, "engine", "stopping");
    job->number = next_number_++;
    jobs_.emplace(job->number, job);
    queue_.push_back(job);
  }
  wake_.notify_one();
  return job->number;
}

void SerialEngine::cancel(uint64_t number) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = jobs_.find(number);
    if (found == jobs_.end()) return;
    found->second->cancelled = true;
    cancel_requested_ = true;
  }
  wake_.notify_one();
}

Status SerialEngine::status() const {
  const std::lock_guard lock(mutex_);
  Status status;
  status.broken = !broken_.empty();
  status.ready = !status.broken && !stopping_;
  status.reason = status.broken ? broken_ : stopping_ ? "stopping" : "";
  status.running = is_running_ ? 1 : 0;
  status.waiting = static_cast<int64_t>(queue_.size());
  status.max_model_len = options_.max_model_len;
  status.steps = steps_;
  status.seconds_since_last_step = std::chrono::duration<double>(Clock::now() - last_step_).count();
  return status;
}

void SerialEngine::loop() {
  while (true) {
    try {
      if (!schedule()) break;
      deliver(run_step());
    } catch (const std::exception& e) {
      break_down(e.what());
    } catch (...) {
      break_down("an unknown exception");
    }
  }
  finish_all(FinishReason::cancelled, {});
}

bool SerialEngine::schedule() {
  while (wait_for_work()) {
    for (const auto& job : take_cancelled()) finish(job, FinishReason::cancelled);
    if (running_ && running_->cancelled) finish_running(FinishReason::cancelled);
    if (!running_) admit_next();
    if (!running_) continue;
    build_step();
    return true;
  }
  return false;
}

bool SerialEngine::wait_for_work() {
  std::unique_lock lock(mutex_);
  wake_.wait(lock, [this] { return stopping_ || running_ || !queue_.empty(); });
  return !stopping_;
}

// Queued requests that have been cancelled, taken out of the queue.
std::vector<std::shared_ptr<SerialEngine::Job>> SerialEngine::take_cancelled() {
  std::vector<std::shared_ptr<Job>> taken;
  const std::lock_guard lock(mutex_);
  if (!std::exchange(cancel_requested_, false)) return taken;
  std::erase_if(queue_, [&](const std::shared_ptr<Job>& job) {
    if (!job->cancelled) return false;
    taken.push_back(job);
    return true;
  });
  return taken;
}

void SerialEngine::admit_next() {
  {
    const std::lock_guard lock(mutex_);
    if (queue_.empty()) return;
    running_ = std::move(queue_.front());
    queue_.pop_front();
    is_running_ = true;
    last_step_ = Clock::now();  // a long idle time is not a stuck step
  }
  running_->admitted = Clock::now();
  Event event;
  event.kind = Event::Kind::admitted;
  send(*running_, event);
}

void SerialEngine::build_step() {
  const Job& job = *running_;
  const auto prompt_length = static_cast<int64_t>(job.request.prompt_ids.size());
  const bool prefill = job.position < prompt_length;
  const int64_t rows = prefill ? std::min<int64_t>(options_.max_num_batched_tokens, prompt_length - job.position) : 1;
  const int64_t end = job.position + rows;
  const auto pages = static_cast<int32_t>((end + page_rows - 1) / page_rows);

  step_.tokens.clear();
  step_.positions.clear();
  for (int64_t position = job.position; position < end; ++position) {
    step_.tokens.push_back(prefill ? job.request.prompt_ids[static_cast<size_t>(position)] : job.pending);
    step_.positions.push_back(position);
  }
  step_.page_tables.clear();
  for (int32_t page = 1; page <= pages; ++page) step_.page_tables.push_back(page);  // page 0 is the null page
  step_.segments.clear();
  step_.segments.push_back({.slot = 0,
                            .page_table = 0,
                            .pages = pages,
                            .first_row = 0,
                            .rows = static_cast<int32_t>(rows),
                            .certain_rows = static_cast<int32_t>(rows),
                            .position = job.position});
  step_.logit_rows.clear();
  if (end >= prompt_length) step_.logit_rows.push_back(static_cast<int32_t>(rows) - 1);
}

SerialEngine::Result SerialEngine::run_step() {
  runner_.run(step_);
  Job& job = *running_;
  job.position += std::ssize(step_.tokens);
  {
    const std::lock_guard lock(mutex_);
    ++steps_;
    last_step_ = Clock::now();
  }
  if (step_.logit_rows.empty()) return {};
  AllowedTokens allowed;
  allowed.size = options_.sampled_tokens;
  if (job.emitted < job.request.min_tokens) allowed.masked = job.request.stop_token_ids;
  // The last row run stands at position − 1, so its logits choose the token of `position`.
  return {true, sampler_.select(runner_.logits(), job.request.sampling, job.position, allowed)};
}

void SerialEngine::deliver(const Result& result) {
  if (!result.sampled) return;
  Job& job = *running_;
  const auto& stops = job.request.stop_token_ids;
  if (job.emitted == 0) job.first_token = Clock::now();
  ++job.emitted;
  if (std::binary_search(stops.begin(), stops.end(), result.token)) {
    finish_running(FinishReason::stop, result.token);
    return;
  }
  job.pending = result.token;
  Event event;
  event.token = result.token;
  send(job, event);
  if (job.emitted >= job.request.max_tokens) finish_running(FinishReason::length);
}

// A sink must not throw; if one does, its request is dropped and the others live on.
void SerialEngine::send(Job& job, const Event& event) {
  try {
    job.sink(event);
  } catch (const std::exception& e) {
    log(LogLevel::error, "request {}: its receiver threw: {}", job.request.id, e.what());
    job.cancelled = true;
  } catch (...) {
    log(LogLevel::error, "request {}: its receiver threw", job.request.id);
    job.cancelled = true;
  }
}

void SerialEngine::finish(const std::shared_ptr<Job>& job, FinishReason reason, int32_t stop_token,
                          const std::string& error) {
  {
    const std::lock_guard lock(mutex_);
    jobs_.erase(job->number);
  }
  const auto now = Clock::now();
  const bool was_admitted = job->admitted != Clock::time_point{};
  const bool has_token = job->first_token != Clock::time_point{};
  Event event;
  event.kind = Event::Kind::finished;
  event.reason = reason;
  event.stop_token = stop_token;
  event.error = error;
  event.timings.queue_ms = milliseconds((was_admitted ? job->admitted : now) - job->submitted);
  if (was_admitted) event.timings.prefill_ms = milliseconds((has_token ? job->first_token : now) - job->admitted);
  if (has_token) event.timings.decode_ms = milliseconds(now - job->first_token);
  send(*job, event);
}

void SerialEngine::finish_running(FinishReason reason, int32_t stop_token) {
  const auto job = std::exchange(running_, nullptr);
  {
    const std::lock_guard lock(mutex_);
    is_running_ = false;
  }
  finish(job, reason, stop_token);
}

void SerialEngine::finish_all(FinishReason reason, const std::string& error) {
  std::deque<std::shared_ptr<Job>> waiting;
  const auto job = std::exchange(running_, nullptr);
  {
    const std::lock_guard lock(mutex_);
    is_running_ = false;
    waiting.swap(queue_);
  }
  if (job) finish(job, reason, -1, error);
  for (const auto& waiting_job : waiting) finish(waiting_job, reason, -1, error);
}

void SerialEngine::break_down(const std::string& reason) {
  log(LogLevel::error, "engine broken: {}", reason);
  {
    const std::lock_guard lock(mutex_);
    broken_ = reason.empty() ? "a step failed" : reason;
  }
  finish_all(FinishReason::error, "the engine failed: " + reason);
}

}  // namespace tandem::engine
