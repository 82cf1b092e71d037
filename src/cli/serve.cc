// The command that serves: port first, then the model, then requests until a stop signal.
#include "cli/serve.h"

#include <fmt/core.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <memory>
#include <set>
#include <utility>

#include "api/service.h"
#include "base/error.h"
#include "base/log.h"
#include "chat/messages.h"
#include "chat/render.h"
#include "cli/loaded_model.h"
#include "cli/serve_loop.h"
#include "engine/engine.h"
#include "engine/scheduler_options.h"
#include "grammar/compiler.h"
#include "http/server.h"

namespace tandem::cli {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int workers = 2;  // one long prompt must not hold up short ones
constexpr int32_t most_streams = 8;
constexpr int smoke_tokens = 16;

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

void check(const ServeOptions& options) {
  const auto refuse = [](const char* flag, const std::string& found, const char* expected) {
    throw Error(ErrorCode::usage, flag, found, expected);
  };
  constexpr double longest_s = 86400;
  if (options.max_queued_requests < 1 || options.max_queued_requests > engine::most_waiting) {
    refuse("--max-queued-requests", fmt::format("{}", options.max_queued_requests), "1 to 1000000");
  }
  if (!(options.fill_share >= engine::smallest_fill_share && options.fill_share <= 1)) {
    refuse("--fill-share", fmt::format("{}", options.fill_share), "0.01 to 1");
  }
  if (!(options.sse_keepalive_s >= 0 && options.sse_keepalive_s <= longest_s)) {
    refuse("--sse-keepalive-s", fmt::format("{}", options.sse_keepalive_s), "0 to 86400 seconds");
  }
  if (!(options.drain_timeout_s >= 0 && options.drain_timeout_s <= longest_s)) {
    refuse("--drain-timeout-s", fmt::format("{}", options.drain_timeout_s), "0 to 86400 seconds");
  }
  if (options.max_num_seqs < 1 || options.max_num_seqs > most_streams) {
    refuse("--max-num-seqs", fmt::format("{}", options.max_num_seqs), "1 to 8");
  }
  if (!(options.request_timeout_s >= 0 && options.request_timeout_s <= longest_s)) {
    refuse("--request-timeout-s", fmt::format("{}", options.request_timeout_s), "0 (no limit) to 86400 seconds");
  }
  if (options.schema_unsupported != "refuse" && options.schema_unsupported != "warn") {
    refuse("--schema-unsupported", options.schema_unsupported, "refuse or warn");
  }
  if (options.default_seed != "random" && options.default_seed != "prompt") {
    refuse("--default-seed", options.default_seed, "random or prompt");
  }
  if (options.reasoning_hold < 0 || options.reasoning_hold > 1024) {
    refuse("--reasoning-hold", fmt::format("{}", options.reasoning_hold), "0 (off) to 1024 tokens");
  }
}

http::ServerOptions server_options(const ServeOptions& options) {
  http::ServerOptions server;
  server.host = options.host;
  server.port = options.port;
  server.api_keys = options.api_keys;
  if (const char* key = std::getenv("TANDEM_API_KEY"); key && *key) server.api_keys.emplace_back(key);
  server.insecure = options.insecure;
  server.tls_cert = options.tls_cert;
  server.tls_key = options.tls_key;
  server.workers = workers;
  server.open_metrics = options.open_metrics;
  server.limits.sse_keepalive = milliseconds(options.sse_keepalive_s);
  return server;
}

api::ServiceOptions service_options(const ServeOptions& options, const http::Server& server) {
  api::ServiceOptions service;
  service.access = {.needs_key = server.needs_key(), .metrics_are_open = server.metrics_are_open()};
  service.chat.strict_model_name = options.strict_model_name;
  service.chat.reasoning_hold = options.reasoning_hold;
  service.chat.seed_from_prompt = options.default_seed == "prompt";
  service.chat.ignore_unsupported_schema = options.schema_unsupported == "warn";
  service.chat.mask_turns_in_reasoning = !options.turns_may_end_in_reasoning;
  service.max_queued_requests = options.max_queued_requests;
  service.request_timeout_s = options.request_timeout_s;
  return service;
}

LoadOptions load_options(const ServeOptions& options) {
  LoadOptions load;
  load.model = options.model;
  load.threads = options.threads;
  load.max_model_len = options.max_model_len;
  load.kv_cache_memory = options.kv_cache_memory;
  load.max_num_batched_tokens = options.max_num_batched_tokens;
  load.max_num_seqs = options.max_num_seqs;
  load.kept_states_memory = options.kept_states_memory;
  load.device = options.device;
  load.check_numerics = options.check_numerics;
  load.announce_device = true;
  load.gpu_memory_utilization = options.gpu_memory_utilization;
  load.compute = options.compute;
  load.kv_cache_dtype = options.kv_cache_dtype;
  load.kv_scales = options.kv_scales;
  load.nvfp4_nibble_order = options.nvfp4_nibble_order;
  load.tensor_parallel_size = options.tensor_parallel_size;
  load.decode_context_parallel_size = options.decode_context_parallel_size;
  load.prefill_slice_ms = options.prefill_slice_ms;
  load.fill_share = options.fill_share;
  load.max_waiting = options.max_queued_requests;
  load.watchdog_s = options.watchdog_s;
  load.watchdog_exit = options.watchdog_exit;
  load.record_steps = options.record_steps;
  load.drafting = options.drafting;
  return load;
}

// One greedy reply before the first request: a model whose arithmetic has gone wrong gives NaN, which the engine
// refuses, or the same token for ever.
void smoke_test(const api::ServedModel& model) {
  const auto conversation = chat::parse_conversation(R"({"messages":[{"role":"user","content":"Hello"}]})");
  engine::Request request;
  request.id = "smoke-test";
  request.prompt_ids = model.tokenizer->encode(chat::render(conversation).segments);
  request.sampling.temperature = 0;
  request.max_tokens = smoke_tokens;
  request.drafter = draft::Choice::none;  // counters of drafts are of users' requests
  request.stop_token_ids = api::turn_end_ids(model);
  if (static_cast<int64_t>(request.prompt_ids.size()) + smoke_tokens > model.max_model_len) return;
  struct Heard {
    std::vector<int32_t> tokens;
    std::promise<engine::Event> end;
  };
  auto heard = std::make_shared<Heard>();
  model.engine->submit(std::move(request), [heard](const engine::Event& event) {
    if (event.kind == engine::Event::Kind::token) heard->tokens.push_back(event.token);
    if (event.kind == engine::Event::Kind::finished) heard->end.set_value(event);
  });
  const engine::Event end = heard->end.get_future().get();
  const std::vector<int32_t>& tokens = heard->tokens;
  if (end.reason == engine::FinishReason::error) throw Error(ErrorCode::internal, "smoke test", end.error);
  if (tokens.size() == smoke_tokens && std::set<int32_t>(tokens.begin(), tokens.end()).size() == 1) {
    throw Error(ErrorCode::failed_check, "smoke test", fmt::format("the model only repeats token {}", tokens[0]),
                "a reply");
  }
}

}  // namespace

void check_serve(const ServeOptions& options) {
  check(options);
  http::check_listener(server_options(options));
  check_load(load_options(options));
}

int run_serve(const ServeOptions& options) {
  check_serve(options);
  const auto begin = Clock::now();
  // The order of these is the order of their life backwards: the server's threads end first, then the engine, whose
  // last events still find the executor.
  http::Server server(server_options(options));
  api::Service service(server, service_options(options, server));
  std::unique_ptr<LoadedModel> model;
  std::unique_ptr<grammar::Compiler> grammars;
  api::ServedModel served;
  struct Closer {
    http::Server& server;
    ~Closer() { server.close(); }
  } closer{server};

  // /health says "loading" from here on.
  server.start(service.routes(), service.http_observer());
  model = std::make_unique<LoadedModel>(load_options(options));
  served = model->served(options.served_model_name);
  if (grammar::is_available()) {
    grammars = std::make_unique<grammar::Compiler>(
        std::make_shared<const grammar::Vocabulary>(*served.tokenizer, served.vocab_size));
    served.grammars = grammars.get();
  } else {
    log(LogLevel::warning, "built without xgrammar: requests for structured output are answered with 501");
  }
  const engine::Plan& plan = model->plan();
  log(LogLevel::info,
      "plan: {} MiB beside the weights; {} pages of 256 tokens, {} KiB each; {} streams of up to {} tokens, {} kept "
      "states of {} KiB, prompts in steps of {}",
      plan.machine_bytes() >> 20, plan.pool_rows / 256, plan.page_bytes >> 10, plan.capacity.slots, plan.max_model_len,
      plan.capacity.kept_states, plan.kept_state_bytes >> 10, plan.capacity.max_rows);
  log(LogLevel::info, "drafts: {}", text_of(model->drafting(), model->table()));
  smoke_test(served);
  on_io(server, [&] {
    service.set_model(&served);
    return 0;
  });
  server.catch_stop_signals();  // until here a signal ends the process at once: there is nothing to finish
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  const http::Limits limits;
  log(LogLevel::info, "limits: {} connections, {} MiB a body, {} MiB for all bodies, {} waiting requests",
      limits.connections, limits.body_bytes >> 20, limits.all_bodies_bytes >> 20, options.max_queued_requests);
  fmt::print("tandem: serving {} on {} (up to {} tokens, {} threads, ready after {:.2f} s)\n", served.names.front(),
             server.url(), served.max_model_len, model->threads(), seconds);
  std::fflush(stdout);
  const int status = serve_until_stopped(server, service, model->engine(), options.drain_timeout_s);
  server.close();
  return status;
}

}  // namespace tandem::cli
