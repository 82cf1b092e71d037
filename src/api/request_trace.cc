// From moments to durations.
#include "api/request_trace.h"

#include <utility>

#include "base/log.h"

namespace tandem::api {

namespace {

double milliseconds(RequestTrace::Clock::duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

using OptionalTime = std::optional<RequestTrace::Clock::time_point>;

std::optional<double> milliseconds_between(const OptionalTime& from, const OptionalTime& to) {
  if (!from || !to) return std::nullopt;
  return milliseconds(*to - *from);
}

std::optional<double> seconds_between(const OptionalTime& from, const OptionalTime& to) {
  if (!from || !to) return std::nullopt;
  return std::chrono::duration<double>(*to - *from).count();
}

}  // namespace

RequestTrace::RequestTrace(ServerMetrics& metrics, std::string id, bool stream, Clock::time_point arrived)
    : metrics_(metrics), id_(std::move(id)), stream_(stream), arrived_(arrived), submitted_(arrived) {}

void RequestTrace::submitted(Clock::time_point time, int64_t prompt_tokens, int64_t max_tokens) {
  submitted_ = time;
  prompt_tokens_ = prompt_tokens;
  max_tokens_ = max_tokens;
}

void RequestTrace::admitted(Clock::time_point time, int64_t cached_tokens, engine::PrefixMiss miss) {
  if (admitted_) return;
  admitted_ = time;
  cached_tokens_ = cached_tokens;
  miss_ = miss;
  metrics_.admitted(*seconds_between(submitted_, admitted_), prompt_tokens_, cached_tokens_, miss);
}

void RequestTrace::token(Clock::time_point time) {
  if (!first_token_) {
    first_token_ = time;
    metrics_.first_token(*seconds_between(arrived_, time), prompt_tokens_, cached_tokens_);
  } else {
    gaps_.add(milliseconds(time - *last_token_));
    metrics_.next_token(*seconds_between(last_token_, time));
  }
  last_token_ = time;
  ++tokens_;
}

Metrics RequestTrace::reply_metrics(uint64_t seed) const {
  Metrics metrics;
  metrics.seed = seed;
  metrics.queue_time_ms = milliseconds_between(submitted_, admitted_);
  metrics.time_to_first_token_ms = milliseconds_between(arrived_, first_token_);
  metrics.generation_time_ms = milliseconds_between(first_token_, last_token_);
  const auto gaps = static_cast<double>(gaps_.count());
  if (gaps >= 1) metrics.mean_itl_ms = *metrics.generation_time_ms / gaps;
  if (gaps >= 1 && *metrics.generation_time_ms > 0) {
    metrics.tokens_per_second = gaps * 1000 / *metrics.generation_time_ms;
  }
  return metrics;
}

void RequestTrace::ended(Outcome outcome) {
  const auto now = Clock::now();
  metrics_.ended({outcome, prompt_tokens_, tokens_, max_tokens_, seconds_between(admitted_, first_token_),
                  seconds_between(first_token_, last_token_), seconds_between(admitted_, last_token_),
                  *seconds_between(arrived_, now)});
  log_record(LogLevel::info, "request",
             {{"id", id_},
              {"outcome", name_of(outcome)},
              {"stream", stream_},
              {"prompt_tokens", prompt_tokens_},
              {"cached_tokens", cached_tokens_},
              {"miss", engine::name_of(miss_)},
              {"reply_tokens", tokens_},
              {"draft_tokens", drafted_},
              {"accepted_draft_tokens", accepted_},
              {"queue_ms", milliseconds_between(submitted_, admitted_)},
              {"ttft_ms", milliseconds_between(arrived_, first_token_)},
              {"itl_p50_ms", gaps_.at(0.5)},
              {"itl_p99_ms", gaps_.at(0.99)},
              {"total_ms", milliseconds(now - arrived_)}});
}

void log_refused_request(const std::string& id, const ApiError& error) {
  log_record(LogLevel::info, "request refused",
             {{"id", id},
              {"status", int64_t{error.status()}},
              {"type", error.type()},
              {"param", error.param()},
              {"code", error.code()}});
}

}  // namespace tandem::api
