// The endpoints over a scripted engine: shapes, order of the stream, errors, cancelling. Sockets come in src/http.
#include "api/service.h"

#include <nlohmann/json.hpp>
#include <set>

#include "api/fakes.h"

namespace tandem::api {
namespace {

using Json = nlohmann::json;
using engine::FinishReason;

class ServiceTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { model_ = new FakeModel(std::string(TANDEM_SOURCE_DIR) + "/models/nano"); }
  static void TearDownTestSuite() { delete model_; }

  // A fresh engine for every test; the tokenizer is kept.
  struct Setup {
    explicit Setup(ServiceOptions options = {}) : service(executor, options) {
      served = model_->served;
      served.engine = &engine;
      engine.state.ready = true;
      service.set_model(&served);
    }
    std::shared_ptr<RecordingResponder> call(const std::string& method, const std::string& path,
                                             const std::string& body = {}) {
      auto responder = std::make_shared<RecordingResponder>();
      for (const Route& route : service.routes()) {
        const bool prefix = route.path.ends_with("/*") && path.starts_with(route.path.substr(0, route.path.size() - 1));
        if (route.method != method || (route.path != path && !prefix)) continue;
        try {
          route.handler({method, path, "test-id", body, nullptr}, responder);
        } catch (const ApiError& error) {
          responder->reply(error.reply());
        }
        executor.run();
        return responder;
      }
      ADD_FAILURE() << "no route " << method << " " << path;
      return responder;
    }
    std::shared_ptr<RecordingResponder> chat(const std::string& fields, const std::string& text = "What is 2 + 3?") {
      const std::string messages = R"({"messages":[{"role":"user","content":)" + Json(text).dump() + "}]";
      return call("POST", "/v1/chat/completions", messages + (fields.empty() ? "" : "," + fields) + "}");
    }
    // A whole reply of `text` (markers recognised) ended by <|user|>.
    void answer(const std::string& text, size_t i = 0) {
      engine.admit(i);
      engine.tokens(model_->ids(text), i);
      engine.finish(FinishReason::stop, model_->id("<|user|>"), {}, i);
      executor.run();
    }

    ManualExecutor executor;
    FakeEngine engine;
    ServedModel served;
    Service service;
  };

  static FakeModel* model_;
};
FakeModel* ServiceTest::model_ = nullptr;

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

TEST_F(ServiceTest, FullReply) {
  Setup setup;
  const auto responder = setup.chat(R"("model":"any","seed":7)");
  EXPECT_TRUE(responder->replies.empty());
  EXPECT_EQ(setup.service.active(), 1u);
  setup.answer("because</think>2 + 3 = 5");
  const Json body = only_reply(*responder, 200);
  EXPECT_EQ(setup.service.active(), 0u);
  EXPECT_EQ(body["id"].get<std::string>().rfind("chatcmpl-", 0), 0u);
  EXPECT_EQ(body["id"].get<std::string>().size(), 9u + 32u);
  EXPECT_EQ(body["object"], "chat.completion");
  EXPECT_EQ(body["model"], "any");
  ASSERT_EQ(body["choices"].size(), 1u);
  const Json& choice = body["choices"][0];
  EXPECT_EQ(choice["index"], 0);
  EXPECT_EQ(choice["logprobs"], nullptr);
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_EQ(choice["stop_reason"], nullptr);
  EXPECT_FALSE(choice.contains("reasoning_closed_by"));
  EXPECT_EQ(choice["message"], Json({{"role", "assistant"},
                                     {"content", "2 + 3 = 5"},
                                     {"refusal", nullptr},
                                     {"annotations", nullptr},
                                     {"audio", nullptr},
                                     {"function_call", nullptr},
                                     {"reasoning", "because"},
                                     {"reasoning_content", "because"}}));
  for (const auto* name : {"system_fingerprint", "service_tier", "prompt_logprobs"}) {
    EXPECT_TRUE(body.contains(name) && body[name].is_null()) << name;
  }
  const auto reply_tokens = static_cast<int64_t>(model_->ids("because</think>2 + 3 = 5").size()) + 1;  // and the stop
  const auto reasoning_tokens = static_cast<int64_t>(model_->ids("because</think>").size());
  const auto prompt_tokens = static_cast<int64_t>(setup.engine.request().prompt_ids.size());
  EXPECT_EQ(body["usage"], Json({{"prompt_tokens", prompt_tokens},
                                 {"completion_tokens", reply_tokens},
                                 {"total_tokens", prompt_tokens + reply_tokens},
                                 {"prompt_tokens_details", {{"cached_tokens", 0}}},
                                 {"completion_tokens_details", {{"reasoning_tokens", reasoning_tokens}}}}));
  EXPECT_EQ(body["metrics"]["seed"], 7);
  for (const auto* name : {"time_to_first_token_ms", "generation_time_ms", "queue_time_ms", "mean_itl_ms"}) {
    EXPECT_GE(body["metrics"][name].get<double>(), 0) << name;
  }
}

TEST_F(ServiceTest, StreamOrder) {
  Setup setup;
  const auto responder = setup.chat(R"("stream":true,"stream_options":{"include_usage":true})");
  EXPECT_TRUE(responder->opened);
  EXPECT_TRUE(responder->events.empty());  // the first chunk comes with the admission, not before
  setup.engine.admit();
  setup.executor.run();
  ASSERT_EQ(responder->events.size(), 1u);
  std::vector<int32_t> reply = model_->ids("why</think>5");
  for (const int32_t id : reply) {
    setup.engine.token(id);
    setup.executor.run();
  }
  setup.engine.finish(FinishReason::stop, model_->id("<|user|>"));
  setup.executor.run();
  EXPECT_TRUE(responder->closed);
  EXPECT_TRUE(responder->replies.empty());
  ASSERT_GE(responder->events.size(), 5u);
  EXPECT_EQ(responder->events.back(), "[DONE]");

  std::vector<Json> chunks;
  for (size_t i = 0; i + 1 < responder->events.size(); ++i) chunks.push_back(Json::parse(responder->events[i]));
  for (const Json& chunk : chunks) {
    EXPECT_EQ(chunk["id"], chunks[0]["id"]);
    EXPECT_EQ(chunk["created"], chunks[0]["created"]);
    EXPECT_EQ(chunk["model"], "nano");
    EXPECT_EQ(chunk["object"], "chat.completion.chunk");
  }
  const Json first = {{"index", 0},
                      {"delta", {{"role", "assistant"}, {"content", ""}}},
                      {"finish_reason", nullptr},
                      {"logprobs", nullptr}};
  EXPECT_EQ(chunks[0]["choices"], Json::array({first}));
  EXPECT_TRUE(chunks[0].contains("usage") && chunks[0]["usage"].is_null());

  std::string reasoning, content;
  for (size_t i = 1; i + 2 < chunks.size(); ++i) {
    const Json& choice = chunks[i]["choices"].at(0);
    EXPECT_EQ(choice["finish_reason"], nullptr);
    if (choice["delta"].contains("content")) {
      EXPECT_EQ(keys(choice["delta"]), (std::set<std::string>{"content"}));
      content += choice["delta"]["content"].get<std::string>();
    } else {
      EXPECT_EQ(keys(choice["delta"]), (std::set<std::string>{"reasoning", "reasoning_content"}));
      EXPECT_EQ(choice["delta"]["reasoning"], choice["delta"]["reasoning_content"]);
      EXPECT_TRUE(content.empty()) << "reasoning after content";
      reasoning += choice["delta"]["reasoning"].get<std::string>();
    }
  }
  EXPECT_EQ(reasoning, "why");
  EXPECT_EQ(content, "5");
  const Json& last = chunks[chunks.size() - 2];
  EXPECT_EQ(last["choices"].at(0)["delta"], Json::object());
  EXPECT_EQ(last["choices"].at(0)["finish_reason"], "stop");
  EXPECT_TRUE(last["choices"].at(0).contains("stop_reason"));
  EXPECT_TRUE(last["metrics"]["seed"].is_number_unsigned());
  EXPECT_TRUE(last["usage"].is_null());
  const Json& usage = chunks.back();
  EXPECT_EQ(usage["choices"], Json::array());
  EXPECT_EQ(usage["usage"]["completion_tokens"], reply.size() + 1);
}

TEST_F(ServiceTest, UsageIsAbsentUnlessAskedFor) {
  Setup setup;
  const auto responder = setup.chat(R"("stream":true)");
  setup.answer("</think>5");
  for (const std::string& event : responder->events) EXPECT_EQ(event.find("\"usage\""), std::string::npos) << event;
}

TEST_F(ServiceTest, ContinuousUsageCountsUp) {
  Setup setup;
  const auto responder =
      setup.chat(R"("stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true})");
  setup.answer("</think>5 7");
  int64_t before = 0;
  for (size_t i = 0; i + 1 < responder->events.size(); ++i) {
    const Json chunk = Json::parse(responder->events[i]);
    const int64_t now = chunk["usage"]["completion_tokens"].get<int64_t>();
    EXPECT_GE(now, before);
    if (i == 0) {
      EXPECT_EQ(now, 0);
    }
    before = now;
  }
  EXPECT_EQ(before, static_cast<int64_t>(model_->ids("</think>5 7").size()) + 1);
}

TEST_F(ServiceTest, StreamedAndWholeRepliesHoldTheSameText) {
  const std::string text = "eins – zwei</think>drei 😀 vier";
  Setup setup;
  const auto whole = setup.chat("");
  const auto streamed = setup.chat(R"("stream":true)");
  setup.answer(text, 0);
  setup.answer(text, 1);
  const Json message = only_reply(*whole, 200)["choices"][0]["message"];
  std::string reasoning, content;
  for (size_t i = 0; i + 1 < streamed->events.size(); ++i) {
    const Json delta = Json::parse(streamed->events[i])["choices"][0]["delta"];
    reasoning += delta.value("reasoning", "");
    content += delta.value("content", "");
  }
  EXPECT_EQ(reasoning, message["reasoning"]);
  EXPECT_EQ(content, message["content"]);
  EXPECT_EQ(content, "drei 😀 vier");
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

TEST_F(ServiceTest, StopStringEndsTheReply) {
  Setup setup;
  const auto responder = setup.chat(R"("stop":["two","7"])");
  setup.engine.admit();
  setup.engine.tokens(model_->ids("7</think>one 7 three"));  // inside the reasoning a stop string means nothing
  setup.executor.run();
  const Json body = only_reply(*responder, 200);
  EXPECT_TRUE(setup.engine.cancelled());
  EXPECT_EQ(body["choices"][0]["message"]["content"], "one ");
  EXPECT_EQ(body["choices"][0]["message"]["reasoning"], "7");
  EXPECT_EQ(body["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(body["choices"][0]["stop_reason"], "7");
  EXPECT_EQ(body["usage"]["completion_tokens"], model_->ids("7</think>one 7").size());
  setup.engine.finish(FinishReason::cancelled);  // comes later and changes nothing
  setup.executor.run();
  EXPECT_EQ(responder->replies.size(), 1u);
}

TEST_F(ServiceTest, StopStringMayBeKeptAndWaitsForMinTokens) {
  Setup setup;
  const auto kept = setup.chat(R"("stop":"7","include_stop_str_in_output":true)");
  setup.answer("</think>1 7 2", 0);
  EXPECT_EQ(only_reply(*kept, 200)["choices"][0]["message"]["content"], "1 7");
  const auto late = setup.chat(R"("stop":"7","min_tokens":)" + std::to_string(model_->ids("</think>1 7").size()));
  setup.answer("</think>1 7 2 7 3", 1);
  EXPECT_EQ(only_reply(*late, 200)["choices"][0]["message"]["content"], "1 7 2 ");
}

TEST_F(ServiceTest, OwnStopTokenIsNamed) {
  Setup setup;
  const int32_t id = model_->ids("7").front();
  const auto responder = setup.chat("\"stop_token_ids\":[" + std::to_string(id) + "]");
  setup.engine.admit();
  setup.engine.tokens(model_->ids("</think>1"));
  setup.engine.finish(FinishReason::stop, id);
  setup.executor.run();
  const Json choice = only_reply(*responder, 200)["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_EQ(choice["stop_reason"], id);
  EXPECT_EQ(choice["message"]["content"], "17");  // its text is kept
}

TEST_F(ServiceTest, CutByLength) {
  Setup setup;
  const auto in_content = setup.chat("");
  setup.engine.admit(0);
  setup.engine.tokens(model_->ids("</think>1"), 0);
  setup.engine.finish(FinishReason::length, -1, {}, 0);
  setup.executor.run();
  Json choice = only_reply(*in_content, 200)["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "length");
  EXPECT_EQ(choice["message"]["content"], "1");
  EXPECT_EQ(choice["message"]["reasoning"], nullptr);
  const auto in_reasoning = setup.chat("");
  setup.engine.admit(1);
  setup.engine.tokens(model_->ids("still thinking"), 1);
  setup.engine.finish(FinishReason::length, -1, {}, 1);
  setup.executor.run();
  choice = only_reply(*in_reasoning, 200)["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "length");
  EXPECT_EQ(choice["message"]["content"], nullptr);
  EXPECT_EQ(choice["message"]["reasoning"], "still thinking");
}

// Rule C.8 b: the model never closed its reasoning, so what it wrote is the answer.
TEST_F(ServiceTest, ReasoningThatNeverClosedIsContent) {
  Setup setup;
  const auto whole = setup.chat("");
  const auto streamed = setup.chat(R"("stream":true)");
  setup.answer("just five", 0);
  setup.answer("just five", 1);
  const Json body = only_reply(*whole, 200);
  EXPECT_EQ(body["choices"][0]["message"]["content"], "just five");
  EXPECT_EQ(body["choices"][0]["message"]["reasoning"], nullptr);
  EXPECT_EQ(body["choices"][0]["reasoning_closed_by"], "eos");
  EXPECT_EQ(body["usage"]["completion_tokens_details"]["reasoning_tokens"], 0);
  std::string content;
  for (size_t i = 0; i + 1 < streamed->events.size(); ++i) {
    content += Json::parse(streamed->events[i])["choices"][0]["delta"].value("content", "");
  }
  EXPECT_EQ(content, "just five");
}

TEST_F(ServiceTest, ReasoningCanBeHidden) {
  Setup setup;
  const auto whole = setup.chat(R"("include_reasoning":false)");
  const auto streamed = setup.chat(R"("include_reasoning":false,"stream":true)");
  setup.answer("secret</think>5", 0);
  setup.answer("secret</think>5", 1);
  const Json body = only_reply(*whole, 200);
  EXPECT_EQ(body["choices"][0]["message"]["reasoning_content"], nullptr);
  EXPECT_GT(body["usage"]["completion_tokens_details"]["reasoning_tokens"], 1);
  for (const std::string& event : streamed->events) EXPECT_EQ(event.find("secret"), std::string::npos);
}

TEST_F(ServiceTest, FailureOfTheEngine) {
  Setup setup;
  const auto whole = setup.chat("");
  const auto streamed = setup.chat(R"("stream":true)");
  for (size_t i = 0; i < 2; ++i) {
    setup.engine.admit(i);
    setup.engine.tokens(model_->ids("</think>half"), i);
    setup.engine.finish(FinishReason::error, -1, "NaN in /secret/layer", i);
  }
  setup.executor.run();
  expect_error(*whole, 500, "server_error", nullptr, nullptr);
  EXPECT_EQ(whole->replies[0].body.find("half"), std::string::npos);
  ASSERT_GE(streamed->events.size(), 3u);
  EXPECT_EQ(streamed->events.back(), "[DONE]");
  const Json error = Json::parse(streamed->events[streamed->events.size() - 2]);
  EXPECT_EQ(error["error"]["type"], "server_error");
  EXPECT_TRUE(streamed->closed);
  EXPECT_EQ(streamed->events[streamed->events.size() - 2].find("secret"), std::string::npos);
  EXPECT_EQ(setup.service.active(), 0u);
}

TEST_F(ServiceTest, ClientThatLeavesCancels) {
  Setup setup;
  const auto queued = setup.chat("");
  queued->leave();
  EXPECT_TRUE(setup.engine.cancelled(0));
  const auto running = setup.chat(R"("stream":true)");
  setup.engine.admit(1);
  setup.executor.run();
  running->leave();
  EXPECT_TRUE(setup.engine.cancelled(1));
  setup.engine.finish(FinishReason::cancelled, -1, {}, 1);
  setup.executor.run();
  EXPECT_EQ(setup.service.active(), 0u);
  EXPECT_TRUE(queued->replies.empty());
}

TEST_F(ServiceTest, SlowClientGetsFewerLargerChunks) {
  Setup setup;
  const auto responder = setup.chat(R"("stream":true)");
  setup.engine.admit();
  setup.executor.run();
  responder->is_congested = true;
  setup.engine.tokens(model_->ids("why</think>one two three four"));
  setup.engine.finish(FinishReason::stop, model_->id("<|user|>"));
  setup.executor.run();
  EXPECT_EQ(responder->events.size(), 1u);
  responder->drain();
  ASSERT_EQ(responder->events.size(), 5u);  // first, reasoning, content, final, [DONE]
  EXPECT_EQ(Json::parse(responder->events[1])["choices"][0]["delta"]["reasoning"], "why");
  EXPECT_EQ(Json::parse(responder->events[2])["choices"][0]["delta"]["content"], "one two three four");
  EXPECT_TRUE(responder->closed);
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
