// The endpoints over a scripted engine: models, health, what reaches the engine, what is refused. Sockets come in
// src/http.
#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "api/service_fixture.h"
#include "base/log.h"

namespace tandem::api::service_test {
namespace {

using Json = nlohmann::json;

Json only_reply(const RecordingResponder& responder, int status) {
  EXPECT_EQ(responder.replies.size(), 1u);
  if (responder.replies.empty()) return {};
  EXPECT_EQ(responder.replies[0].status, status) << responder.replies[0].body;
  EXPECT_EQ(responder.replies[0].content_type, "application/json");
  return Json::parse(responder.replies[0].body);
}

std::set<std::string> keys(const Json& object) {
  std::set<std::string> names;
  for (const auto& [name, value] : object.items()) names.insert(name);
  return names;
}

void expect_error(const RecordingResponder& responder, int status, const std::string& type, const Json& param,
                  const Json& code) {
  const Json body = only_reply(responder, status);
  EXPECT_EQ(keys(body), (std::set<std::string>{"error"}));
  EXPECT_EQ(keys(body["error"]), (std::set<std::string>{"message", "type", "param", "code"}));
  EXPECT_EQ(body["error"]["type"], type);
  EXPECT_EQ(body["error"]["param"], param);
  EXPECT_EQ(body["error"]["code"], code);
}

TEST_F(ServiceTest, ModelList) {
  Setup setup;
  setup.served.names = {"nano", "alias/x"};
  const Json body = only_reply(*setup.call("GET", "/v1/models"), 200);
  EXPECT_EQ(body["object"], "list");
  EXPECT_EQ(body["models"], Json::array());
  std::vector<std::string> ids;
  for (const Json& entry : body["data"]) ids.push_back(entry["id"]);
  EXPECT_EQ(ids, (std::vector<std::string>{"nano", "nano-nothink", "nano-low", "nano-high", "alias/x",
                                           "alias/x-nothink", "alias/x-low", "alias/x-high"}));
  const Json& row = body["data"][4];
  EXPECT_EQ(row["id"], "alias/x");
  EXPECT_EQ(row["object"], "model");
  EXPECT_TRUE(row["created"].is_number_integer());
  EXPECT_EQ(row["owned_by"], "vllm");
  EXPECT_EQ(row["root"], "nano");
  EXPECT_EQ(row["parent"], nullptr);
  for (const auto* name : {"max_model_len", "context_length", "max_context_length"}) EXPECT_EQ(row[name], 1000) << name;
  const Json& permission = row["permission"].at(0);
  EXPECT_EQ(permission["id"].get<std::string>().rfind("modelperm-", 0), 0u);
  EXPECT_EQ(keys(permission), (std::set<std::string>{"id", "object", "created", "allow_create_engine", "allow_sampling",
                                                     "allow_logprobs", "allow_search_indices", "allow_view",
                                                     "allow_fine_tuning", "organization", "group", "is_blocking"}));
  EXPECT_EQ(only_reply(*setup.call("GET", "/v1/models/alias/x"), 200)["id"], "alias/x");
  EXPECT_EQ(only_reply(*setup.call("GET", "/v1/models/nano-low"), 200)["root"], "nano");
  expect_error(*setup.call("GET", "/v1/models/nano-max"), 404, "not_found_error", "model", "model_not_found");
  expect_error(*setup.call("GET", "/v1/models/other"), 404, "not_found_error", "model", "model_not_found");
}

TEST_F(ServiceTest, HealthFollowsTheEngine) {
  Setup setup;
  for (const auto* path : {"/health", "/healthz", "/ping", "/v1/health"}) {
    EXPECT_EQ(only_reply(*setup.call("GET", path), 200)["status"], "ok");
  }
  EXPECT_EQ(only_reply(*setup.call("POST", "/ping"), 200)["status"], "ok");
  setup.engine.state.broken = true;
  setup.engine.state.reason = "/secret/path";
  const auto broken = setup.call("GET", "/health");
  EXPECT_EQ(only_reply(*broken, 503)["status"], "broken");
  EXPECT_EQ(broken->replies[0].body.find("secret"), std::string::npos);
  setup.engine.state = {};
  EXPECT_EQ(only_reply(*setup.call("GET", "/health"), 503)["status"], "loading");
  setup.engine.state.ready = true;
  setup.service.set_model(nullptr);
  EXPECT_EQ(only_reply(*setup.call("GET", "/health"), 503)["status"], "loading");
  setup.service.set_model(&setup.served);
  setup.service.start_draining();
  EXPECT_EQ(only_reply(*setup.call("GET", "/health"), 503)["status"], "draining");
}

TEST_F(ServiceTest, Version) {
  Setup setup;
  EXPECT_EQ(only_reply(*setup.call("GET", "/version"), 200), Json({{"version", TANDEM_VERSION}}));
}

TEST_F(ServiceTest, TokenizingNeedsNoEngine) {
  Setup setup;
  const std::string body = R"({"prompt":"x","add_special_tokens":false})";
  for (const auto* path : {"/tokenize", "/v1/tokenize"})
    EXPECT_EQ(only_reply(*setup.call("POST", path, body), 200)["tokens"], model_->ids("x"));
  EXPECT_EQ(only_reply(*setup.call("POST", "/detokenize", R"({"tokens":[]})"), 200)["prompt"], "");
  const std::string chat = R"({"messages":[{"role":"user","content":"x"}]})";
  EXPECT_TRUE(only_reply(*setup.call("POST", "/apply-template", chat), 200)["prompt"].is_string());
  expect_error(*setup.call("POST", "/tokenize", "{}"), 400, "invalid_request_error", "prompt", nullptr);
  EXPECT_EQ(setup.engine.count(), 0u);
  EXPECT_EQ(setup.service.active(), 0u);
  setup.service.start_draining();
  expect_error(*setup.call("POST", "/tokenize", body), 503, "server_error", nullptr, nullptr);
}

TEST_F(ServiceTest, NothingIsServedWhileLoadingDrainingOrBroken) {
  Setup setup;
  setup.engine.state.broken = true;
  expect_error(*setup.chat(""), 503, "server_error", nullptr, nullptr);
  setup.engine.state.broken = false;
  setup.engine.refuse = true;  // broke between the check and submit
  expect_error(*setup.chat(R"("stream":true)"), 503, "server_error", nullptr, nullptr);
  setup.engine.refuse = false;
  setup.service.start_draining();
  const auto draining = setup.chat("");
  expect_error(*draining, 503, "server_error", nullptr, nullptr);
  EXPECT_EQ(draining->replies[0].headers.at(0), std::make_pair(std::string("Retry-After"), std::string("5")));
  EXPECT_EQ(setup.engine.count(), 0u);
  EXPECT_EQ(setup.service.active(), 0u);
}

TEST_F(ServiceTest, PromptLimitsAndStopsReachTheEngine) {
  Setup setup;
  setup.chat(R"("max_tokens":5000,"min_tokens":3,"stop_token_ids":[17],"temperature":0.5,"top_k":4,"seed":9)");
  const engine::Request request = setup.engine.request();
  EXPECT_EQ(request.id, "test-id");
  EXPECT_EQ(request.max_tokens, 1000 - static_cast<int64_t>(request.prompt_ids.size()));  // clamped
  EXPECT_EQ(request.min_tokens, 3);
  EXPECT_EQ(request.sampling.temperature, 0.5);
  EXPECT_EQ(request.sampling.top_p, 0.95);
  EXPECT_EQ(request.sampling.top_k, 4);
  EXPECT_EQ(request.sampling.seed, 9u);
  const std::set<int32_t> stops(request.stop_token_ids.begin(), request.stop_token_ids.end());
  EXPECT_EQ(stops,
            (std::set<int32_t>{17, model_->id("<|endoftext|>"), model_->id("<|user|>"), model_->id("<|observation|>"),
                               model_->id("<|assistant|>"), model_->id("<|system|>")}));
  setup.chat(R"("ignore_eos":true,"stop_token_ids":[17],"max_tokens":4)");
  EXPECT_EQ(setup.engine.request(1).stop_token_ids, std::vector<int32_t>{17});
  EXPECT_EQ(setup.engine.request(1).max_tokens, 4);
}

TEST_F(ServiceTest, SeedsAreRandomOrFollowFromThePrompt) {
  Setup random;
  random.chat("");
  random.chat("");
  EXPECT_NE(random.engine.request(0).sampling.seed, random.engine.request(1).sampling.seed);
  ServiceOptions options;
  options.chat.seed_from_prompt = true;
  Setup fixed(options);
  fixed.chat("");
  fixed.chat("");
  fixed.chat("", "another prompt");
  EXPECT_EQ(fixed.engine.request(0).sampling.seed, fixed.engine.request(1).sampling.seed);
  EXPECT_NE(fixed.engine.request(0).sampling.seed, fixed.engine.request(2).sampling.seed);
}

TEST_F(ServiceTest, PromptTooLong) {
  Setup setup;
  setup.served.max_model_len = 12;
  const auto responder = setup.chat("");
  expect_error(*responder, 400, "invalid_request_error", "messages", "context_length_exceeded");
  const std::string message = only_reply(*responder, 400)["error"]["message"];
  EXPECT_EQ(message.rfind("This model's maximum context length is 12 tokens. However, your request has ", 0), 0u)
      << message;
  EXPECT_NE(message.find("prompt is too long: "), std::string::npos);
  EXPECT_NE(message.find(" tokens > 11 maximum)."), std::string::npos);
  EXPECT_EQ(setup.engine.count(), 0u);
}

TEST_F(ServiceTest, APromptMustLeaveRoomForOneTokenOfReply) {
  Setup setup;
  setup.chat("");
  const auto length = static_cast<int64_t>(setup.engine.request(0).prompt_ids.size());
  setup.served.max_model_len = length + 1;
  EXPECT_TRUE(setup.chat("")->replies.empty());  // runs
  EXPECT_EQ(setup.engine.request(1).max_tokens, 1);
  setup.served.max_model_len = length;
  const std::string message = only_reply(*setup.chat(""), 400)["error"]["message"];
  EXPECT_NE(message.find(fmt::format("(prompt is too long: {} tokens > {} maximum).", length, length - 1)),
            std::string::npos)
      << message;
  EXPECT_EQ(setup.engine.count(), 2u);
}

TEST_F(ServiceTest, ModelNames) {
  Setup setup;
  EXPECT_TRUE(setup.chat(R"("model":"gpt-9")")->replies.empty());
  ServiceOptions options;
  options.chat.strict_model_name = true;
  Setup strict(options);
  expect_error(*strict.chat(R"("model":"gpt-9")"), 404, "not_found_error", "model", "model_not_found");
  EXPECT_TRUE(strict.chat(R"("model":"nano")")->replies.empty());
  EXPECT_TRUE(strict.chat(R"("model":"nano-nothink")")->replies.empty());
  EXPECT_TRUE(strict.chat("")->replies.empty());
}

TEST_F(ServiceTest, BadBodies) {
  Setup setup;
  const auto post = [&](const std::string& body) { return setup.call("POST", "/v1/chat/completions", body); };
  expect_error(*post(""), 400, "invalid_request_error", nullptr, nullptr);
  expect_error(*post("[]"), 400, "invalid_request_error", nullptr, nullptr);
  expect_error(*post("{\"messages\":[{\"role\":\"user\",\"content\":\"\xff\"}]}"), 400, "invalid_request_error",
               nullptr, nullptr);
  expect_error(*post("{}"), 400, "invalid_request_error", "messages", nullptr);
  expect_error(*post(R"({"messages":[]})"), 400, "invalid_request_error", "messages", nullptr);
  expect_error(*post(R"({"messages":"hi"})"), 400, "invalid_request_error", "messages", nullptr);
  expect_error(*post(R"({"messages":[{"role":"king","content":"x"}]})"), 400, "invalid_request_error",
               "messages[0].role", nullptr);
  expect_error(*setup.chat(R"("temperature":"hot")"), 400, "invalid_request_error", "temperature", nullptr);
  expect_error(*setup.chat(R"("best_of":2)"), 400, "invalid_request_error", "best_of", "unsupported_parameter");
  EXPECT_EQ(setup.engine.count(), 0u);
  EXPECT_EQ(setup.service.active(), 0u);
}

TEST_F(ServiceTest, HealthSaysHowTheEngineIs) {
  Setup setup;
  engine::Status& status = setup.engine.state;
  status.running = 2;
  status.waiting = 3;
  status.pool_rows = 1024;
  status.free_rows = 256;
  status.reclaimable_rows = 512;
  status.kept_states = 4;
  status.steps = 17;
  status.seconds_since_last_step = 0.25;
  const Json expected = {{"status", "ok"},    {"running", 2},     {"waiting", 3},
                         {"pool_rows", 1024}, {"free_rows", 256}, {"reclaimable_rows", 512},
                         {"kept_states", 4},  {"steps", 17},      {"seconds_since_last_step", 0.25}};
  EXPECT_EQ(only_reply(*setup.call("GET", "/health"), 200), expected);
  status.seconds_since_last_step = 301;  // idle for long, or the process was paused: that is the watchdog's to judge
  EXPECT_EQ(only_reply(*setup.call("GET", "/health"), 200)["status"], "ok");
  status.stuck = true;
  status.ready = false;
  const auto stuck = setup.call("GET", "/health");
  EXPECT_EQ(only_reply(*stuck, 503)["status"], "stuck");
  EXPECT_EQ(stuck->replies[0].headers.at(0), std::make_pair(std::string("Retry-After"), std::string("5")));
  status.broken = true;
  EXPECT_EQ(only_reply(*setup.call("GET", "/health"), 503)["status"], "broken");
  status.stuck = status.broken = false;
  status.ready = true;
  EXPECT_EQ(only_reply(*setup.call("GET", "/health"), 200)["status"], "ok");
}

void expect_queue_full(const RecordingResponder& refused) {
  expect_error(refused, 429, "rate_limit_error", nullptr, "queue_full");
  EXPECT_FALSE(refused.opened);
  EXPECT_EQ(refused.replies[0].headers.at(0), std::make_pair(std::string("Retry-After"), std::string("5")));
}

// Ten times more requests than places: the surplus is refused, everybody else is answered.
TEST_F(ServiceTest, FullQueueRefusesExactlyTheSurplus) {
  ServiceOptions options;
  options.max_queued_requests = 3;
  Setup setup(options);
  setup.served.max_running = 2;
  std::vector<std::shared_ptr<RecordingResponder>> clients;
  for (int i = 0; i < 50; ++i) clients.push_back(setup.chat(i % 2 ? R"("stream":true)" : ""));
  EXPECT_EQ(setup.engine.count(), 5u);
  EXPECT_EQ(setup.service.active(), 5u);
  for (size_t i = 5; i < 50; ++i) expect_queue_full(*clients[i]);
  for (size_t i = 0; i < 5; ++i) {
    setup.answer("</think>5", i);
    EXPECT_TRUE(i % 2 ? clients[i]->closed : clients[i]->replies.at(0).status == 200) << i;
  }
  EXPECT_TRUE(setup.chat("")->replies.empty());  // there is room again
}

// Settings that no command line passes on, but sums must not overflow.
TEST_F(ServiceTest, TheLargestNumbersOfPlacesAreNoOverflow) {
  ServiceOptions options;
  options.max_queued_requests = std::numeric_limits<int64_t>::max();
  Setup setup(options);
  for (const int64_t running : {int64_t{1}, std::numeric_limits<int64_t>::max()}) {
    setup.served.max_running = running;
    EXPECT_TRUE(setup.chat("")->replies.empty());
  }
  EXPECT_EQ(setup.engine.count(), 2u);
}

// Requests that arrive together are counted while they are being tokenised.
TEST_F(ServiceTest, RequestsBeingPreparedTakePlaces) {
  ServiceOptions options;
  options.max_queued_requests = 1;
  Setup setup(options);
  const std::vector<Route> routes = setup.service.routes();
  const auto route =
      std::find_if(routes.begin(), routes.end(), [](const Route& r) { return r.path == "/v1/chat/completions"; });
  std::vector<std::shared_ptr<RecordingResponder>> clients;
  for (int i = 0; i < 5; ++i) {
    clients.push_back(std::make_shared<RecordingResponder>());
    route->handler({"POST", route->path, "id", R"({"messages":[{"role":"user","content":"x"}]})", nullptr}, clients[i]);
  }
  setup.executor.run();
  EXPECT_EQ(setup.engine.count(), 2u);
  for (size_t i = 2; i < 5; ++i) expect_queue_full(*clients[i]);
}

// The engine has the last word.
TEST_F(ServiceTest, QueueOfTheEngineIsFull) {
  Setup setup;
  setup.engine.places = 1;
  EXPECT_TRUE(setup.chat("")->replies.empty());
  expect_queue_full(*setup.chat(R"("stream":true)"));
  EXPECT_EQ(setup.service.active(), 1u);
}

// A request whose client reads slowly, but which the engine has finished, takes no place.
TEST_F(ServiceTest, SlowReadersTakeNoPlace) {
  ServiceOptions options;
  options.max_queued_requests = 0;
  Setup setup(options);
  const auto slow = setup.chat(R"("stream":true)");
  slow->is_congested = true;
  setup.answer("</think>5");
  EXPECT_EQ(setup.service.active(), 1u);
  EXPECT_TRUE(setup.chat("")->replies.empty());
  slow->drain();
  EXPECT_TRUE(slow->closed);
}

TEST_F(ServiceTest, RequestsHaveADeadlineIfTheServerSetsOne) {
  Setup without;
  without.chat("");
  EXPECT_FALSE(without.engine.request().deadline_s);
  ServiceOptions options;
  options.request_timeout_s = 60;
  Setup setup(options);
  const auto whole = setup.chat("");
  const auto streamed = setup.chat(R"("stream":true)");
  ASSERT_TRUE(setup.engine.request().deadline_s);
  EXPECT_LT(*setup.engine.request().deadline_s, 60);
  EXPECT_GT(*setup.engine.request().deadline_s, 30);
  for (size_t i = 0; i < 2; ++i) {
    setup.engine.admit(i);
    setup.engine.tokens(model_->ids("</think>half"), i);
    setup.engine.finish(engine::FinishReason::deadline, -1, {}, i);
  }
  setup.executor.run();
  expect_error(*whole, 504, "server_error", nullptr, "deadline_exceeded");
  EXPECT_EQ(Json::parse(streamed->events.at(streamed->events.size() - 2))["error"]["code"], "deadline_exceeded");
  EXPECT_EQ(streamed->events.back(), "[DONE]");
  EXPECT_TRUE(streamed->closed);
  EXPECT_EQ(setup.service.active(), 0u);

  options.request_timeout_s = 1e-9;  // has passed before the engine hears of the request
  Setup late(options);
  expect_error(*late.chat(R"("stream":true)"), 504, "server_error", nullptr, "deadline_exceeded");
  EXPECT_EQ(late.engine.count(), 0u);
}

// A step has failed: every request ends with an error, new ones are refused, and /health says so for good.
TEST_F(ServiceTest, BrokenEngineEndsEveryRequest) {
  Setup setup;
  std::vector<std::shared_ptr<RecordingResponder>> whole, streamed;
  for (int i = 0; i < 4; ++i) {
    whole.push_back(setup.chat(""));
    streamed.push_back(setup.chat(R"("stream":true)"));
  }
  for (size_t i = 0; i < 4; ++i) setup.engine.admit(i);  // the others are still queued
  setup.engine.tokens(model_->ids("</think>1"), 1);
  setup.executor.run();
  setup.engine.state.broken = true;
  setup.engine.state.ready = false;
  for (size_t i = 0; i < 8; ++i) setup.engine.finish(engine::FinishReason::error, -1, "a step failed", i);
  setup.executor.run();
  for (const auto& client : whole) expect_error(*client, 500, "server_error", nullptr, nullptr);
  for (const auto& client : streamed) {
    ASSERT_GE(client->events.size(), 2u);
    EXPECT_EQ(client->events.back(), "[DONE]");
    EXPECT_EQ(Json::parse(client->events[client->events.size() - 2])["error"]["type"], "server_error");
    EXPECT_TRUE(client->closed);
  }
  EXPECT_EQ(setup.service.active(), 0u);
  EXPECT_EQ(only_reply(*setup.call("GET", "/health"), 503)["status"], "broken");
  setup.service.start_draining();
  EXPECT_EQ(only_reply(*setup.call("GET", "/health"), 503)["status"], "broken");
  expect_error(*setup.chat(""), 503, "server_error", nullptr, nullptr);
}

// What the log says of a request, field by field.
TEST_F(ServiceTest, OneLogRecordForEachRequest) {
  const auto records = [](const std::string& log) {
    std::vector<Json> out;
    size_t begin = 0;
    for (size_t end; (end = log.find('\n', begin)) != std::string::npos; begin = end + 1) {
      const Json line = Json::parse(log.substr(begin, end - begin));
      if (line["message"].get<std::string>().rfind("request", 0) == 0 && line.contains("id")) out.push_back(line);
    }
    return out;
  };
  set_log_json(true);
  testing::internal::CaptureStderr();
  {
    Setup setup;
    setup.chat("");
    setup.answer("</think>5 7", 0, 2);
    setup.chat(R"("stream":true)")->leave();
    setup.chat(R"("temperature":"hot")");
  }
  set_log_json(false);
  const std::vector<Json> lines = records(testing::internal::GetCapturedStderr());
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0]["message"], "request");
  EXPECT_EQ(lines[0]["id"], "test-id");
  EXPECT_EQ(lines[0]["outcome"], "stop");
  EXPECT_EQ(lines[0]["stream"], false);
  EXPECT_GT(lines[0]["prompt_tokens"].get<int>(), 5);
  EXPECT_EQ(lines[0]["cached_tokens"], 2);
  EXPECT_EQ(lines[0]["miss"], "new prefix");
  EXPECT_EQ(lines[0]["reply_tokens"], model_->ids("</think>5 7").size() + 1);
  for (const auto* name : {"queue_ms", "ttft_ms", "itl_p50_ms", "itl_p99_ms", "total_ms"}) {
    EXPECT_TRUE(lines[0][name].is_number()) << name;
  }
  EXPECT_EQ(lines[1]["outcome"], "abort");
  EXPECT_EQ(lines[1]["stream"], true);
  EXPECT_TRUE(lines[1]["ttft_ms"].is_null());
  EXPECT_TRUE(lines[1]["itl_p99_ms"].is_null());
  EXPECT_EQ(lines[2]["message"], "request refused");
  EXPECT_EQ(lines[2]["status"], 400);
  EXPECT_EQ(lines[2]["param"], "temperature");
}

TEST_F(ServiceTest, StoppingEndsWhatIsStillRunning) {
  Setup setup;
  const auto whole = setup.chat("");
  const auto streamed = setup.chat(R"("stream":true)");
  setup.service.start_draining();
  EXPECT_EQ(setup.service.active(), 2u);
  setup.service.abort_active();
  EXPECT_EQ(setup.service.active(), 0u);
  EXPECT_TRUE(setup.engine.cancelled(0) && setup.engine.cancelled(1));
  expect_error(*whole, 503, "server_error", nullptr, nullptr);
  ASSERT_EQ(streamed->events.size(), 2u);
  EXPECT_EQ(Json::parse(streamed->events[0])["error"]["type"], "server_error");
  EXPECT_EQ(streamed->events[1], "[DONE]");
}

}  // namespace
}  // namespace tandem::api::service_test
