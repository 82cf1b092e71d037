// Counting, and the page's families in the order of D.12.
#include "api/server_metrics.h"

#include <fmt/core.h>

#include <algorithm>

#include "api/process_stats.h"

namespace tandem::api {

namespace {

using Type = PrometheusText::Type;

// Buckets of D.12, seconds.
const std::vector<double> first_token_bounds = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
                                                1,     2.5,   5,    7.5,  10,   20,   40,   80,  160,  640, 2560};
const std::vector<double> gap_bounds = {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5,
                                        0.75, 1,     2.5,  5,     7.5, 10,   20,  40,  80};
const std::vector<double> request_bounds = {0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                            30,  40,  50,  60, 120, 240, 480, 960, 1920, 7680};
const std::vector<double> choice_bounds = {1, 2, 5, 10, 20};
// Ours: from a page that is answered at once to a reply of minutes.
const std::vector<double> http_bounds = {0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 60, 300};
constexpr int64_t largest_context = 1'000'000;  // until the model is known

constexpr std::array known_statuses = {200, 400, 401, 403, 404, 405, 413, 429, 499, 500, 503, 504};

std::string status_class(int status) { return fmt::format("{}xx", status / 100); }

// Any client can send any method, so only those that some route has are labels.
std::string method_label(const std::string& method) {
  constexpr std::array known = {"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"};
  return std::find(known.begin(), known.end(), method) == known.end() ? "other" : method;
}

std::string label_of(engine::PrefixMiss miss) {
  std::string label(engine::name_of(miss));
  std::replace(label.begin(), label.end(), ' ', '_');
  return label;
}

double as_double(int64_t value) { return static_cast<double>(value); }

Labels with(Labels labels, std::string name, std::string value) {
  labels.emplace_back(std::move(name), std::move(value));
  return labels;
}

void write_process(PrometheusText& page) {
  const ProcessStats stats = read_process_stats();
  const auto gauge = [&](const char* name, const char* help, const std::optional<double>& value) {
    if (value) page.gauge(name, help, {}, *value);
  };
  gauge("process_resident_memory_bytes", "Resident memory size in bytes.", stats.resident_bytes);
  gauge("process_virtual_memory_bytes", "Virtual memory size in bytes.", stats.virtual_bytes);
  if (stats.cpu_seconds) {
    page.counter("process_cpu_seconds_total", "Total user and system CPU time spent in seconds.", {},
                 *stats.cpu_seconds);
  }
  gauge("process_start_time_seconds", "Start time of the process since unix epoch in seconds.",
        stats.start_time_seconds);
  gauge("process_open_fds", "Number of open file descriptors.", stats.open_fds);
  gauge("process_max_fds", "Maximum number of open file descriptors.", stats.max_fds);
}

}  // namespace

std::string_view name_of(Outcome outcome) {
  switch (outcome) {
    case Outcome::stop: return "stop";
    case Outcome::length: return "length";
    case Outcome::abort: return "abort";
    case Outcome::error: return "error";
    case Outcome::deadline: return "deadline";
    case Outcome::repetition: return "repetition";
  }
  return "error";
}

ServerMetrics::ServerMetrics()
    : first_token_(first_token_bounds),
      token_gap_(gap_bounds),
      mean_gap_(gap_bounds),
      total_(request_bounds),
      queue_(request_bounds),
      prefill_(request_bounds),
      decode_(request_bounds),
      inference_(request_bounds),
      prompt_sizes_(series_1_2_5(largest_context)),
      reply_sizes_(prompt_sizes_),
      asked_sizes_(prompt_sizes_),
      choices_(choice_bounds) {
  set_model("", largest_context);
  for (const int status : known_statuses) http_statuses_[status] = 0;
}

void ServerMetrics::set_model(const std::string& name, int64_t max_model_len) {
  labels_ = {{"model_name", name}, {"engine", "0"}};
  if (prompt_sizes_.count() > 0) return;  // counted values keep the bounds that they were counted with
  prompt_sizes_ = reply_sizes_ = asked_sizes_ = Histogram(series_1_2_5(max_model_len));
}

void ServerMetrics::add_route(const Route& route) {
  for (const auto* status : {"2xx", "4xx", "5xx"}) http_requests_[{{route.path, route.method}, status}];
}

void ServerMetrics::http_answered(const HttpExchange& exchange) {
  const HttpKey key{exchange.handler.empty() ? "none" : exchange.handler, method_label(exchange.method)};
  ++http_requests_[{key, status_class(exchange.status)}];
  ++http_statuses_[exchange.status];
  http_seconds_.try_emplace(key, http_bounds).first->second.observe(exchange.seconds);
}

void ServerMetrics::admitted(double queue_s, int64_t prompt_tokens, int64_t cached_tokens, engine::PrefixMiss miss) {
  queue_.observe(queue_s);
  queried_tokens_ += prompt_tokens;
  hit_tokens_ += cached_tokens;
  ++missed_[static_cast<size_t>(miss)];
}

void ServerMetrics::first_token(double seconds_since_arrival, int64_t prompt_tokens, int64_t cached_tokens) {
  first_token_.observe(seconds_since_arrival);
  prompt_tokens_ += prompt_tokens;
  cached_tokens_ += cached_tokens;
  ++reply_tokens_;
}

void ServerMetrics::next_token(double gap_s) {
  token_gap_.observe(gap_s);
  ++reply_tokens_;
}

void ServerMetrics::ended(const RequestSummary& request) {
  ++ended_[static_cast<size_t>(request.outcome)];
  // Times and sizes of replies that were cut short would say nothing about the server.
  if (request.outcome == Outcome::abort || request.outcome == Outcome::error || request.outcome == Outcome::deadline)
    return;
  total_.observe(request.total_s);
  if (request.prefill_s) prefill_.observe(*request.prefill_s);
  if (request.decode_s) decode_.observe(*request.decode_s);
  if (request.inference_s) inference_.observe(*request.inference_s);
  if (request.decode_s && request.reply_tokens > 1) {
    mean_gap_.observe(*request.decode_s / as_double(request.reply_tokens - 1));
  }
  prompt_sizes_.observe(as_double(request.prompt_tokens));
  reply_sizes_.observe(as_double(request.reply_tokens));
  asked_sizes_.observe(as_double(request.max_tokens));
  choices_.observe(1);
}

std::string ServerMetrics::text(const ServedModel* model, int64_t preparing) const {
  const engine::Status status = model ? model->engine->status() : engine::Status{};
  PrometheusText page;
  write_load(page, model, status);
  write_requests(page, status);
  write_drafts(page, status);
  write_histograms(page);
  write_engine(page, status, preparing);
  if (model && !model->gpu.empty()) write_gpu(page, *model, status.runner);
  write_http(page);
  write_process(page);
  return page.text();
}

void ServerMetrics::write_load(PrometheusText& page, const ServedModel* model, const engine::Status& status) const {
  page.gauge("vllm:num_requests_running", "Requests whose streams are being computed.", labels_,
             as_double(status.running));
  page.gauge("vllm:num_requests_waiting", "Requests that wait for a stream.", labels_, as_double(status.waiting));
  // What only kept states hold can be had at any time, so it counts as free, as vLLM's cached blocks do.
  const int64_t used = status.pool_rows - status.free_rows - status.reclaimable_rows;
  const double share = status.pool_rows > 0 ? as_double(used) / as_double(status.pool_rows) : 0;
  page.gauge("vllm:kv_cache_usage_perc", "Share of the token pool that running requests hold, 0 to 1.", labels_, share);
  page.gauge("vllm:gpu_cache_usage_perc", "The same as vllm:kv_cache_usage_perc under its older name.", labels_, share);
  if (model && !model->cache_config.empty()) {
    Labels config = labels_;
    config.insert(config.end(), model->cache_config.begin(), model->cache_config.end());
    page.gauge("vllm:cache_config_info", "Settings of the cache.", config, 1);
  }
}

void ServerMetrics::write_requests(PrometheusText& page, const engine::Status& status) const {
  const auto counter = [&](const char* name, const char* help, int64_t value) {
    page.counter(name, help, labels_, as_double(value));
  };
  counter("vllm:prompt_tokens_total", "Prompt tokens of requests that got a first token, cached ones included.",
          prompt_tokens_);
  counter("vllm:generation_tokens_total", "Tokens of replies.", reply_tokens_);
  counter("vllm:prompt_tokens_cached_total", "Those of vllm:prompt_tokens_total that were not computed again.",
          cached_tokens_);
  counter("vllm:prefix_cache_queries_total", "Prompt tokens of admitted requests.", queried_tokens_);
  counter("vllm:prefix_cache_hits_total", "Those of vllm:prefix_cache_queries_total found in a kept state.",
          hit_tokens_);
  counter("vllm:num_preemptions_total", "Running streams that were given back to the queue.", status.preemptions);
  page.family("vllm:request_success_total", Type::counter, "Requests that reached the engine, by how they ended.");
  for (size_t i = 0; i < outcomes; ++i) {
    const std::string name(name_of(static_cast<Outcome>(i)));
    page.sample(with(labels_, "finished_reason", name), as_double(ended_[i]));
  }
  page.family("tandem:prefix_misses_total", Type::counter,
              "Admitted prompts that were not resumed to their end, by reason.");
  for (size_t i = 0; i < misses; ++i) {
    const auto miss = static_cast<engine::PrefixMiss>(i);
    if (miss != engine::PrefixMiss::none) page.sample(with(labels_, "reason", label_of(miss)), as_double(missed_[i]));
  }
}

void ServerMetrics::write_drafts(PrometheusText& page, const engine::Status& status) const {
  const auto counter = [&](const char* name, const char* help, int64_t value) {
    page.counter(name, help, labels_, as_double(value));
  };
  const engine::DraftStats& drafts = status.drafts;
  counter("vllm:spec_decode_num_drafts_total", "Steps of streams that verified drafts.", drafts.steps_with_drafts);
  counter("vllm:spec_decode_num_draft_tokens_total", "Draft tokens that were verified.", drafts.drafted);
  counter("vllm:spec_decode_num_accepted_tokens_total", "Draft tokens that were accepted.", drafts.accepted);
  page.family("vllm:spec_decode_num_accepted_tokens_per_pos_total", Type::counter,
              "Draft tokens that were accepted, by their place among the drafts of a step.");
  for (size_t i = 0; i < drafts.accepted_at.size(); ++i) {
    page.sample(with(labels_, "position", fmt::format("{}", i)), as_double(drafts.accepted_at[i]));
  }
  counter("tandem:draft_invalid_proposals_total", "Proposals with a token outside of the vocabulary, cut before it.",
          status.invalid_proposals);
}

void ServerMetrics::write_histograms(PrometheusText& page) const {
  const auto write = [&](const char* name, const char* help, const Histogram& histogram) {
    page.family(name, Type::histogram, help);
    page.sample(labels_, histogram);
  };
  write("vllm:time_to_first_token_seconds", "From the arrival of a request to its first token.", first_token_);
  write("vllm:inter_token_latency_seconds", "From one token of a reply to the next.", token_gap_);
  write("vllm:time_per_output_token_seconds", "The same as vllm:inter_token_latency_seconds under its older name.",
        token_gap_);
  write("vllm:request_time_per_output_token_seconds", "Mean time from one token to the next, one value a request.",
        mean_gap_);
  write("vllm:e2e_request_latency_seconds", "From the arrival of a request to the end of its reply.", total_);
  write("vllm:request_queue_time_seconds", "From the queue to a stream.", queue_);
  write("vllm:request_prefill_time_seconds", "From a stream to the first token.", prefill_);
  write("vllm:request_decode_time_seconds", "From the first token to the last one.", decode_);
  write("vllm:request_inference_time_seconds", "From a stream to the last token.", inference_);
  write("vllm:request_prompt_tokens", "Tokens of a prompt.", prompt_sizes_);
  write("vllm:request_generation_tokens", "Tokens of a reply.", reply_sizes_);
  write("vllm:request_max_num_generation_tokens", "Tokens of the longest reply of a request.", reply_sizes_);
  write("vllm:request_params_n", "Replies that a request asked for.", choices_);
  write("vllm:request_params_max_tokens", "Tokens that a reply was allowed, after clamping.", asked_sizes_);
}

void ServerMetrics::write_engine(PrometheusText& page, const engine::Status& status, int64_t preparing) const {
  const auto gauge = [&](const char* name, const char* help, int64_t value) {
    page.gauge(name, help, labels_, as_double(value));
  };
  const auto counter = [&](const char* name, const char* help, int64_t value) {
    page.counter(name, help, labels_, as_double(value));
  };
  gauge("tandem:engine_ready", "1: the engine takes requests; 0: loading, stopping or broken.", status.ready ? 1 : 0);
  gauge("tandem:requests_preparing", "Requests that are being parsed and tokenised.", preparing);
  gauge("tandem:pool_rows", "Token rows of the pool.", status.pool_rows);
  gauge("tandem:pool_free_rows", "Rows that nothing holds.", status.free_rows);
  gauge("tandem:pool_reclaimable_rows", "Rows that only kept states hold.", status.reclaimable_rows);
  gauge("tandem:kept_states", "Prefixes from which a prompt can be resumed.", status.kept_states);
  gauge("tandem:kept_state_records", "Places for kept states.", status.kept_state_records);
  gauge("tandem:kept_state_bytes", "Memory of all those places.", status.kept_state_bytes);
  counter("tandem:kept_state_evictions_total", "Kept states that had to leave.", status.evictions);
  counter("tandem:steps_total", "Steps of the engine.", status.steps);
  counter("tandem:step_rows_total", "Token rows of all steps.", status.step_rows);
  page.gauge("tandem:seconds_since_last_step", "Age of the last step, or of the moment when the engine became busy.",
             labels_, status.seconds_since_last_step);
}

void ServerMetrics::write_gpu(PrometheusText& page, const ServedModel& model,
                              const forward::RunnerCounts& counts) const {
  const auto counter = [&](const char* name, const char* help, int64_t value) {
    page.counter(name, help, labels_, as_double(value));
  };
  Labels info = labels_;
  info.insert(info.end(), model.gpu.begin(), model.gpu.end());
  page.gauge("tandem:gpu_info", "The GPU that runs the model.", info, 1);
  page.gauge("tandem:gpu_memory_bytes", "Memory of that GPU.", labels_, as_double(model.gpu_memory));
  counter("tandem:gpu_allocations_total", "Allocations of device and pinned memory; stays as it is after ready.",
          counts.allocations);
  counter("tandem:gpu_kernels_loaded_total", "Kernels loaded; stays as it is after ready.", counts.kernels_loaded);
  counter("tandem:gpu_graph_steps_total", "Passes of the model or a drafter that ran as a recorded graph.",
          counts.graph_steps);
  counter("tandem:gpu_result_bytes_total", "Bytes of results, tokens and logits, that steps copied to the host.",
          counts.result_bytes);
  counter("tandem:gpu_launched_steps_total", "Those that were launched kernel by kernel.", counts.launched_steps);
}

void ServerMetrics::write_http(PrometheusText& page) const {
  page.family("http_requests_total", Type::counter, "Requests by route, method and class of status.");
  for (const auto& [key, count] : http_requests_) {
    page.sample({{"handler", key.first.first}, {"method", key.first.second}, {"status", key.second}}, as_double(count));
  }
  page.family("http_request_duration_seconds", Type::histogram, "From the head of a request to the end of its answer.");
  for (const auto& [key, histogram] : http_seconds_) {
    page.sample({{"handler", key.first}, {"method", key.second}}, histogram);
  }
  page.family("tandem:http_answers_total", Type::counter, "Answers by status; 499: the client left before any.");
  for (const auto& [status, count] : http_statuses_) {
    page.sample({{"status", fmt::format("{}", status)}}, as_double(count));
  }
}

}  // namespace tandem::api
