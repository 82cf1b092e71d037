// The moments of one request: measured once, told to the client (metrics of the reply), to /metrics and to the log.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "api/chat_reply.h"
#include "api/errors.h"
#include "api/quantiles.h"
#include "api/server_metrics.h"
#include "engine/engine.h"

namespace tandem::api {

class RequestTrace {
 public:
  using Clock = std::chrono::steady_clock;

  // `metrics` must outlive this. `arrived`: when the request had been read.
  RequestTrace(ServerMetrics& metrics, std::string id, bool stream, Clock::time_point arrived);

  void submitted(Clock::time_point time, int64_t prompt_tokens, int64_t max_tokens);
  void admitted(Clock::time_point time, int64_t cached_tokens, engine::PrefixMiss miss);
  // A token of the reply, its stop token included.
  void token(Clock::time_point time);
  void drafts(const engine::DraftStats& drafts) { drafted_ = drafts.drafted, accepted_ = drafts.accepted; }
  // Counts the request and writes its line to the log. Once.
  void ended(Outcome outcome);

  const std::string& id() const { return id_; }
  int64_t prompt_tokens() const { return prompt_tokens_; }
  int64_t cached_tokens() const { return cached_tokens_; }
  int64_t tokens() const { return tokens_; }
  Metrics reply_metrics(uint64_t seed) const;

 private:
  ServerMetrics& metrics_;
  std::string id_;
  bool stream_;
  int64_t prompt_tokens_ = 0, cached_tokens_ = 0, max_tokens_ = 0, tokens_ = 0;
  int64_t drafted_ = 0, accepted_ = 0;  // draft tokens
  engine::PrefixMiss miss_ = engine::PrefixMiss::none;
  Quantiles gaps_;
  Clock::time_point arrived_, submitted_;
  std::optional<Clock::time_point> admitted_, first_token_, last_token_;
};

// One line for a request that never reached the engine.
void log_refused_request(const std::string& id, const ApiError& error);

}  // namespace tandem::api
