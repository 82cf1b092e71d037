// The page /metrics over a scripted engine: what exists from the start, and counts that follow what was asked.
#include "api/server_metrics.h"

#include <nlohmann/json.hpp>

#include "api/prometheus_parser.h"
#include "api/service_fixture.h"

namespace tandem::api::server_metrics_test {
namespace {

using engine::FinishReason;
using engine::PrefixMiss;
using Json = nlohmann::json;

class MetricsPage : public ServiceTest {
 protected:
  static ParsedMetrics page(Setup& setup, const std::string& path = "/metrics") {
    const auto responder = setup.call("GET", path);
    EXPECT_EQ(responder->replies.at(0).status, 200);
    EXPECT_EQ(responder->replies.at(0).content_type, "text/plain; version=0.0.4; charset=utf-8");
    return ParsedMetrics(responder->replies.at(0).body);
  }
};

// Names and types of D.12 that this server can fill.
const std::map<std::string, std::string> expected_types = {
    {"vllm:num_requests_running", "gauge"},
    {"vllm:num_requests_waiting", "gauge"},
    {"vllm:kv_cache_usage_perc", "gauge"},
    {"vllm:gpu_cache_usage_perc", "gauge"},
    {"vllm:prompt_tokens_total", "counter"},
    {"vllm:generation_tokens_total", "counter"},
    {"vllm:prompt_tokens_cached_total", "counter"},
    {"vllm:prefix_cache_queries_total", "counter"},
    {"vllm:prefix_cache_hits_total", "counter"},
    {"vllm:num_preemptions_total", "counter"},
    {"vllm:request_success_total", "counter"},
    {"vllm:spec_decode_num_drafts_total", "counter"},
    {"vllm:spec_decode_num_draft_tokens_total", "counter"},
    {"vllm:spec_decode_num_accepted_tokens_total", "counter"},
    {"vllm:spec_decode_num_accepted_tokens_per_pos_total", "counter"},
    {"tandem:draft_invalid_proposals_total", "counter"},
    {"vllm:time_to_first_token_seconds", "histogram"},
    {"vllm:inter_token_latency_seconds", "histogram"},
    {"vllm:time_per_output_token_seconds", "histogram"},
    {"vllm:request_time_per_output_token_seconds", "histogram"},
    {"vllm:e2e_request_latency_seconds", "histogram"},
    {"vllm:request_queue_time_seconds", "histogram"},
    {"vllm:request_prefill_time_seconds", "histogram"},
    {"vllm:request_decode_time_seconds", "histogram"},
    {"vllm:request_inference_time_seconds", "histogram"},
    {"vllm:request_prompt_tokens", "histogram"},
    {"vllm:request_generation_tokens", "histogram"},
    {"vllm:request_max_num_generation_tokens", "histogram"},
    {"vllm:request_params_n", "histogram"},
    {"vllm:request_params_max_tokens", "histogram"},
    {"http_requests_total", "counter"},
    {"http_request_duration_seconds", "histogram"},
    {"process_resident_memory_bytes", "gauge"},
    {"process_cpu_seconds_total", "counter"},
    {"process_start_time_seconds", "gauge"},
    {"process_open_fds", "gauge"},
    {"tandem:prefix_misses_total", "counter"},
    {"tandem:kept_states", "gauge"},
    {"tandem:kept_state_evictions_total", "counter"},
    {"tandem:steps_total", "counter"},
};

TEST_F(MetricsPage, EverythingExistsBeforeTheModelIsLoaded) {
  Setup setup;
  setup.service.set_model(nullptr);
  const ParsedMetrics metrics = page(setup);
  for (const auto& [name, type] : expected_types) {
    ASSERT_EQ(metrics.types().count(name), 1u) << name;
    EXPECT_EQ(metrics.types().at(name), type) << name;
    if (type == "histogram" && name.rfind("vllm:", 0) == 0) {
      EXPECT_EQ(metrics.value(name + "_count"), 0) << name;
    } else if (name.rfind("vllm:", 0) == 0 || name.rfind("tandem:", 0) == 0) {
      EXPECT_EQ(metrics.sum(name), 0) << name;
    }
  }
  for (const auto* reason : {"stop", "length", "abort", "error", "deadline", "repetition"}) {
    EXPECT_EQ(metrics.value("vllm:request_success_total", {{"finished_reason", reason}}), 0);
  }
  for (const auto* reason :
       {"new_prefix", "evicted_by_bytes", "other_salt", "effort_changed", "template_changed", "logprobs_asked"}) {
    EXPECT_EQ(metrics.value("tandem:prefix_misses_total", {{"reason", reason}}), 0);
  }
  for (const auto* position : {"0", "6", "14"}) {
    EXPECT_EQ(metrics.value("vllm:spec_decode_num_accepted_tokens_per_pos_total", {{"position", position}}), 0);
  }
  EXPECT_EQ(metrics.value("http_requests_total",
                          {{"handler", "/v1/chat/completions"}, {"method", "POST"}, {"status", "2xx"}}),
            0);
  EXPECT_EQ(metrics.value("tandem:http_answers_total", {{"status", "429"}}), 0);
  EXPECT_EQ(metrics.value("tandem:engine_ready"), 0);
}

TEST_F(MetricsPage, CountsFollowTheRequests) {
  Setup setup;
  const auto whole = setup.chat("");
  setup.engine.admit(0, 3, PrefixMiss::other_salt);
  setup.engine.tokens(model_->ids("</think>2 + 3 = 5"));
  setup.engine.finish(FinishReason::stop, model_->id("<|user|>"));
  setup.executor.run();
  const Json usage = Json::parse(whole->replies.at(0).body)["usage"];
  EXPECT_EQ(usage["prompt_tokens_details"]["cached_tokens"], 3);
  const auto streamed = setup.chat(R"("stream":true,"max_tokens":2)");
  setup.engine.admit(1, 5, PrefixMiss::none);
  setup.engine.tokens(model_->ids("</think>2"), 1);
  setup.engine.finish(FinishReason::length, -1, {}, 1);
  setup.executor.run();
  const auto gone = setup.chat("");
  gone->leave();
  setup.executor.run();
  setup.chat("");
  setup.engine.admit(3);
  setup.engine.finish(FinishReason::error, -1, "x", 3);
  setup.executor.run();

  const ParsedMetrics metrics = page(setup, "/v1/metrics");
  const auto prompt = usage["prompt_tokens"].get<double>();
  const auto reply = usage["completion_tokens"].get<double>();
  const auto ended = [&](const char* reason) {
    return metrics.value("vllm:request_success_total", {{"finished_reason", reason}, {"model_name", "nano"}});
  };
  EXPECT_EQ(ended("stop"), 1);
  EXPECT_EQ(ended("length"), 1);
  EXPECT_EQ(ended("abort"), 1);
  EXPECT_EQ(ended("error"), 1);
  EXPECT_EQ(ended("deadline"), 0);
  EXPECT_EQ(metrics.value("vllm:prompt_tokens_total"), 2 * prompt);  // two requests got a token
  EXPECT_EQ(metrics.value("vllm:prompt_tokens_cached_total"), 8);
  EXPECT_EQ(metrics.value("vllm:generation_tokens_total"), reply + 2);
  EXPECT_EQ(metrics.value("vllm:prefix_cache_queries_total"), 3 * prompt);  // three were admitted
  EXPECT_EQ(metrics.value("vllm:prefix_cache_hits_total"), 8);
  EXPECT_EQ(metrics.value("tandem:prefix_misses_total", {{"reason", "other_salt"}}), 1);
  EXPECT_EQ(metrics.sum("tandem:prefix_misses_total"), 2);  // and one new prefix
  EXPECT_EQ(metrics.value("vllm:time_to_first_token_seconds_count"), 2);
  EXPECT_EQ(metrics.value("vllm:request_queue_time_seconds_count"), 3);
  EXPECT_EQ(metrics.value("vllm:inter_token_latency_seconds_count"), reply + 2 - 2);
  EXPECT_EQ(metrics.value("vllm:request_time_per_output_token_seconds_count"), 2);
  for (const auto* name : {"e2e_request_latency_seconds", "request_prefill_time_seconds", "request_decode_time_seconds",
                           "request_inference_time_seconds", "request_prompt_tokens", "request_params_n"}) {
    EXPECT_EQ(metrics.value("vllm:" + std::string(name) + "_count"), 2) << name;
  }
  EXPECT_EQ(metrics.value("vllm:request_generation_tokens_sum"), reply + 2);
  EXPECT_EQ(metrics.value("vllm:request_params_max_tokens_sum"), 1000 - prompt + 2);
}

TEST_F(MetricsPage, GaugesAreTheEngines) {
  Setup setup;
  setup.served.cache_config = {{"block_size", "256"}, {"cache_dtype", "b\"f"}};
  engine::Status& status = setup.engine.state;
  status.running = 3;
  status.waiting = 4;
  status.pool_rows = 1000;
  status.free_rows = 200;
  status.reclaimable_rows = 300;
  status.kept_states = 5;
  status.kept_state_records = 6;
  status.kept_state_bytes = int64_t{7} << 30;
  status.evictions = 8;
  status.preemptions = 9;
  status.steps = 10;
  status.step_rows = 11;
  status.seconds_since_last_step = 1.5;
  const ParsedMetrics metrics = page(setup);
  const std::vector<std::pair<std::string, double>> expected = {{"vllm:num_requests_running", 3},
                                                                {"vllm:num_requests_waiting", 4},
                                                                {"vllm:kv_cache_usage_perc", 0.5},
                                                                {"vllm:gpu_cache_usage_perc", 0.5},
                                                                {"vllm:num_preemptions_total", 9},
                                                                {"tandem:pool_rows", 1000},
                                                                {"tandem:pool_free_rows", 200},
                                                                {"tandem:pool_reclaimable_rows", 300},
                                                                {"tandem:kept_states", 5},
                                                                {"tandem:kept_state_records", 6},
                                                                {"tandem:kept_state_bytes", 7516192768.0},
                                                                {"tandem:kept_state_evictions_total", 8},
                                                                {"tandem:steps_total", 10},
                                                                {"tandem:step_rows_total", 11},
                                                                {"tandem:seconds_since_last_step", 1.5},
                                                                {"tandem:engine_ready", 1}};
  for (const auto& [name, value] : expected) EXPECT_EQ(metrics.value(name), value) << name;
  EXPECT_EQ(metrics.value("vllm:cache_config_info",
                          {{"block_size", "256"}, {"cache_dtype", "b\"f"}, {"engine", "0"}, {"model_name", "nano"}}),
            1);
}

TEST_F(MetricsPage, GpusAreThereWhenOneRunsTheModel) {
  Setup setup;
  setup.engine.state.runner = {12, 34, 56, 78, 90};
  EXPECT_EQ(page(setup).types().count("tandem:gpu_allocations_total"), 0u);  // on a CPU
  setup.served.gpu = {{"name", "NVIDIA H200"}, {"driver", "580.1"}};
  setup.served.gpu_memory = int64_t{1} << 37;
  const ParsedMetrics metrics = page(setup);
  const std::vector<std::pair<std::string, double>> expected = {
      {"tandem:gpu_allocations_total", 12},  {"tandem:gpu_kernels_loaded_total", 34},
      {"tandem:gpu_graph_steps_total", 56},  {"tandem:gpu_launched_steps_total", 78},
      {"tandem:gpu_result_bytes_total", 90}, {"tandem:gpu_memory_bytes", 137438953472.0}};
  for (const auto& [name, value] : expected) EXPECT_EQ(metrics.value(name), value) << name;
  EXPECT_EQ(metrics.value("tandem:gpu_info",
                          {{"name", "NVIDIA H200"}, {"driver", "580.1"}, {"engine", "0"}, {"model_name", "nano"}}),
            1);
}

TEST_F(MetricsPage, DraftsAreTheEngines) {
  Setup setup;
  engine::Status& status = setup.engine.state;
  status.invalid_proposals = 4;
  engine::DraftStats& drafts = status.drafts;
  drafts.begin_step(0);
  drafts.add_token(0, false);
  drafts.begin_step(3);
  drafts.add_token(0, true);
  drafts.add_token(1, true);
  drafts.add_token(2, false);
  drafts.begin_step(2);
  drafts.add_token(0, true);
  drafts.add_token(1, false);
  const ParsedMetrics metrics = page(setup);
  EXPECT_EQ(metrics.value("vllm:spec_decode_num_drafts_total"), 2);
  EXPECT_EQ(metrics.value("vllm:spec_decode_num_draft_tokens_total"), 5);
  EXPECT_EQ(metrics.value("vllm:spec_decode_num_accepted_tokens_total"), 3);
  const auto accepted_at = [&](const char* position) {
    return metrics.value("vllm:spec_decode_num_accepted_tokens_per_pos_total",
                         {{"position", position}, {"model_name", "nano"}, {"engine", "0"}});
  };
  EXPECT_EQ(accepted_at("0"), 2);
  EXPECT_EQ(accepted_at("1"), 1);
  EXPECT_EQ(accepted_at("2"), 0);
  EXPECT_EQ(metrics.sum("vllm:spec_decode_num_accepted_tokens_per_pos_total"), 3);
  EXPECT_EQ(metrics.value("tandem:draft_invalid_proposals_total"), 4);
}

TEST_F(MetricsPage, NamesAreEscaped) {
  Setup setup;
  setup.served.names = {"a\"b\\c\n"};
  setup.service.set_model(&setup.served);
  EXPECT_EQ(page(setup).value("vllm:num_requests_running", {{"model_name", "a\"b\\c\n"}}), 0);
}

TEST_F(MetricsPage, TokenBucketsReachTheWindow) {
  Setup setup;  // of 1000 tokens
  const ParsedMetrics metrics = page(setup);
  EXPECT_EQ(metrics.value("vllm:request_prompt_tokens_bucket", {{"le", "1000.0"}}), 0);
  EXPECT_THROW(metrics.value("vllm:request_prompt_tokens_bucket", {{"le", "2000.0"}}), std::runtime_error);
}

TEST_F(MetricsPage, HttpCounts) {
  Setup setup;
  const HttpObserver observe = setup.service.http_observer();
  observe({"POST", "/v1/chat/completions", 200, 0.25});
  observe({"POST", "/v1/chat/completions", 429, 0.001});
  observe({"GET", "", 404, 0.001});
  observe({"BREW", "", 405, 0.001});
  observe({"POST", "/v1/chat/completions", 499, 7});
  const ParsedMetrics metrics = page(setup);
  const auto requests = [&](const char* handler, const char* method, const char* status) {
    return metrics.value("http_requests_total", {{"handler", handler}, {"method", method}, {"status", status}});
  };
  EXPECT_EQ(requests("/v1/chat/completions", "POST", "2xx"), 1);
  EXPECT_EQ(requests("/v1/chat/completions", "POST", "4xx"), 2);
  EXPECT_EQ(requests("none", "GET", "4xx"), 1);
  EXPECT_EQ(requests("none", "other", "4xx"), 1);
  EXPECT_EQ(metrics.value("tandem:http_answers_total", {{"status", "429"}}), 1);
  EXPECT_EQ(metrics.value("tandem:http_answers_total", {{"status", "499"}}), 1);
  const auto handler = ParsedMetrics::LabelMap{{"handler", "/v1/chat/completions"}};
  EXPECT_EQ(metrics.value("http_request_duration_seconds_count", handler), 3);
  EXPECT_NEAR(metrics.value("http_request_duration_seconds_sum", handler), 7.251, 1e-9);
}

TEST_F(MetricsPage, PageOfABrokenEngine) {
  Setup setup;
  setup.engine.state.broken = true;
  setup.engine.state.ready = false;
  EXPECT_EQ(page(setup).value("tandem:engine_ready"), 0);
}

}  // namespace
}  // namespace tandem::api::server_metrics_test
