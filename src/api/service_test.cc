// The endpoints over a scripted engine: models, health, what reaches the engine, what is refused. Sockets come in
// src/http.
#include <nlohmann/json.hpp>
#include <set>

#include "api/service_fixture.h"

namespace tandem::api {
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
  ASSERT_EQ(body["data"].size(), 2u);
  const Json& row = body["data"][1];
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
  EXPECT_NE(message.find(" tokens > 12 maximum)."), std::string::npos);
  EXPECT_EQ(setup.engine.count(), 0u);
}

TEST_F(ServiceTest, ModelNames) {
  Setup setup;
  EXPECT_TRUE(setup.chat(R"("model":"gpt-9")")->replies.empty());
  ServiceOptions options;
  options.chat.strict_model_name = true;
  Setup strict(options);
  expect_error(*strict.chat(R"("model":"gpt-9")"), 404, "not_found_error", "model", "model_not_found");
  EXPECT_TRUE(strict.chat(R"("model":"nano")")->replies.empty());
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
  expect_error(*setup.chat(R"("n":2)"), 400, "invalid_request_error", "n", "unsupported_parameter");
  EXPECT_EQ(setup.engine.count(), 0u);
  EXPECT_EQ(setup.service.active(), 0u);
}

TEST_F(ServiceTest, FullQueue) {
  ServiceOptions options;
  options.max_queued_requests = 1;
  Setup setup(options);
  setup.chat("");
  const auto refused = setup.chat(R"("stream":true)");
  expect_error(*refused, 429, "rate_limit_error", nullptr, "queue_full");
  EXPECT_FALSE(refused->opened);
  EXPECT_EQ(refused->replies[0].headers.at(0), std::make_pair(std::string("Retry-After"), std::string("5")));
  setup.answer("</think>5");
  EXPECT_TRUE(setup.chat("")->replies.empty());
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
}  // namespace tandem::api
