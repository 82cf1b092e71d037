// What the server counts about its requests, and the page /metrics (spec/frontend.md D.12). vLLM's names where the
// meaning is the same, own ones with the prefix "tandem:". Runs on the io thread only.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "api/endpoint.h"
#include "api/prometheus.h"
#include "api/served_model.h"
#include "engine/engine.h"

namespace tandem::api {

// How a request that reached the engine ended.
enum class Outcome { stop, length, abort, error, deadline, repetition };  // abort: client gone or server stopping
std::string_view name_of(Outcome outcome);

// A request at its end. Seconds; empty: that moment never came.
struct RequestSummary {
  Outcome outcome = Outcome::stop;
  int64_t prompt_tokens = 0, reply_tokens = 0, max_tokens = 0;
  std::optional<double> prefill_s, decode_s, inference_s;  // admitted → first token → last token
  double total_s = 0;                                      // arrival → end
};

class ServerMetrics {
 public:
  ServerMetrics();

  // The label model_name, and the largest token count that has a bucket of its own.
  void set_model(const std::string& name, int64_t max_model_len);
  // Lets the counters of a route exist before its first request.
  void add_route(const Route& route);

  void http_answered(const HttpExchange& exchange);
  void admitted(double queue_s, int64_t prompt_tokens, int64_t cached_tokens, engine::PrefixMiss miss);
  void first_token(double seconds_since_arrival, int64_t prompt_tokens, int64_t cached_tokens);
  void next_token(double gap_s);
  void ended(const RequestSummary& request);

  // The page. `model` null: not loaded. `preparing`: requests being parsed and tokenised.
  std::string text(const ServedModel* model, int64_t preparing) const;

 private:
  static constexpr size_t outcomes = 6, misses = 7;
  using HttpKey = std::pair<std::string, std::string>;  // handler, method

  void write_load(PrometheusText& page, const ServedModel* model, const engine::Status& status) const;
  void write_requests(PrometheusText& page, const engine::Status& status) const;
  void write_drafts(PrometheusText& page, const engine::Status& status) const;
  void write_histograms(PrometheusText& page) const;
  void write_engine(PrometheusText& page, const engine::Status& status, int64_t preparing) const;
  void write_gpu(PrometheusText& page, const ServedModel& model, const forward::RunnerCounts& counts) const;
  void write_http(PrometheusText& page) const;

  Labels labels_;  // model_name, engine
  int64_t prompt_tokens_ = 0, cached_tokens_ = 0, reply_tokens_ = 0, queried_tokens_ = 0, hit_tokens_ = 0;
  std::array<int64_t, outcomes> ended_{};
  std::array<int64_t, misses> missed_{};

  Histogram first_token_, token_gap_, mean_gap_, total_, queue_, prefill_, decode_, inference_;
  Histogram prompt_sizes_, reply_sizes_, asked_sizes_, choices_;

  std::map<std::pair<HttpKey, std::string>, int64_t> http_requests_;  // and "2xx", "4xx", "5xx"
  std::map<HttpKey, Histogram> http_seconds_;
  std::map<int, int64_t> http_statuses_;
};

}  // namespace tandem::api
