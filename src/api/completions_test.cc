// Completions over a scripted engine: forms of the prompt, shapes of the reply, several choices, refusals.
#include "api/completions.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "api/service_fixture.h"

namespace tandem::api::completions_test {
namespace {

using Json = nlohmann::json;
using engine::FinishReason;
using Ids = std::vector<int32_t>;

class CompletionsTest : public ServiceTest {
 protected:
  static std::shared_ptr<RecordingResponder> complete(Setup& setup, const Json& body) {
    return setup.call("POST", "/v1/completions", body.dump());
  }
  static Json reply(const RecordingResponder& responder, int status = 200) {
    EXPECT_EQ(responder.replies.size(), 1u);
    if (responder.replies.empty()) return {};
    EXPECT_EQ(responder.replies[0].status, status) << responder.replies[0].body;
    return Json::parse(responder.replies[0].body);
  }
  // Tokens of a text as the engine samples them, then the end.
  static void sample(Setup& setup, const std::string& text, size_t i, FinishReason reason = FinishReason::length) {
    setup.engine.admit(i, 0);
    setup.engine.tokens(model_->ids(text), i);
    setup.engine.finish(reason, -1, {}, i);
    setup.executor.run();
  }
};

TEST_F(CompletionsTest, WholeReply) {
  Setup setup;
  const auto responder = complete(setup, {{"prompt", "What is"}, {"model", "any"}, {"seed", 7}});
  const engine::Request request = setup.engine.request();
  EXPECT_EQ(request.prompt_ids, model_->ids("[gMASK]<sop>What is"));
  EXPECT_EQ(request.max_tokens, 16);
  EXPECT_EQ(request.sampling.seed, 7u);
  EXPECT_EQ(request.stop_token_ids, model_->served.defaults.eos_token_ids);  // a raw text may hold <|assistant|>
  sample(setup, " <think>2</think>\xC3\xA9<|user|>", 0);
  const Json body = reply(*responder);
  EXPECT_EQ(body["id"].get<std::string>().rfind("cmpl-", 0), 0u);
  EXPECT_EQ(body["object"], "text_completion");
  EXPECT_EQ(body["model"], "any");
  EXPECT_EQ(body["choices"], Json({{{"index", 0},
                                    {"text", " <think>2</think>\xC3\xA9"},  // markup stays, special tokens do not
                                    {"logprobs", nullptr},
                                    {"finish_reason", "length"},
                                    {"stop_reason", nullptr}}}));
  EXPECT_EQ(body["usage"]["prompt_tokens"], request.prompt_ids.size());
  EXPECT_EQ(body["usage"]["completion_tokens"], model_->ids(" <think>2</think>\xC3\xA9<|user|>").size());
  EXPECT_EQ(body["metrics"]["seed"], 7);
}

TEST_F(CompletionsTest, FormsOfThePrompt) {
  const auto prompts = [](const Json& prompt, const Json& fields = Json::object()) {
    Setup setup;
    Json body = {{"prompt", prompt}};
    body.update(fields);
    complete(setup, body);
    std::vector<Ids> ids;
    for (size_t i = 0; i < setup.engine.count(); ++i) ids.push_back(setup.engine.request(i).prompt_ids);
    return ids;
  };
  const Ids a = model_->ids("[gMASK]<sop>a"), b = model_->ids("[gMASK]<sop>b");
  EXPECT_EQ(prompts("a"), (std::vector<Ids>{a}));
  EXPECT_EQ(prompts("[gMASK]<sop>a"), (std::vector<Ids>{a}));
  EXPECT_EQ(prompts("a", {{"add_special_tokens", false}}), (std::vector<Ids>{model_->ids("a")}));
  EXPECT_EQ(prompts({"a", "b"}), (std::vector<Ids>{a, b}));
  EXPECT_EQ(prompts({5, 6}), (std::vector<Ids>{{5, 6}}));
  EXPECT_EQ(prompts(Json::array({{5, 6}, {7}})), (std::vector<Ids>{{5, 6}, {7}}));
  EXPECT_EQ(prompts({"a", "b"}, {{"n", 2}}), (std::vector<Ids>{a, a, b, b}));
}

TEST_F(CompletionsTest, ChoicesOfSeveralPrompts) {
  Setup setup;
  const auto responder = complete(setup, {{"prompt", {"a", "b"}}, {"n", 2}, {"seed", 10}, {"bad_words", {"x"}}});
  ASSERT_EQ(setup.engine.count(), 4u);
  EXPECT_EQ(setup.service.active(), 4u);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(setup.engine.request(i).sampling.seed, 10 + i % 2);
  EXPECT_NE(setup.engine.request(0).rule, setup.engine.request(1).rule);  // it has a state
  for (const size_t i : {2u, 0u, 3u, 1u}) {
    EXPECT_TRUE(responder->replies.empty());
    sample(setup, fmt::format("{}", i), i);
  }
  const Json body = reply(*responder);
  ASSERT_EQ(body["choices"].size(), 4u);
  int64_t tokens = 0;
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(body["choices"][i]["index"], i);
    EXPECT_EQ(body["choices"][i]["text"], fmt::format("{}", i));
    tokens += std::ssize(model_->ids(fmt::format("{}", i)));
  }
  EXPECT_EQ(body["usage"]["completion_tokens"], tokens);
  const auto prompt = std::ssize(model_->ids("[gMASK]<sop>a")) + std::ssize(model_->ids("[gMASK]<sop>b"));
  EXPECT_EQ(body["usage"]["prompt_tokens"], prompt);  // each once
  EXPECT_EQ(setup.service.active(), 0u);
}

TEST_F(CompletionsTest, StreamOfTwoChoices) {
  Setup setup;
  const auto responder = complete(
      setup,
      {{"prompt", "a"}, {"n", 2}, {"stream", true}, {"stop", "!"}, {"stream_options", {{"include_usage", true}}}});
  sample(setup, "one", 1);
  EXPECT_FALSE(responder->closed);
  setup.engine.admit(0, 0);
  setup.engine.tokens(model_->ids("two!"), 0);
  setup.executor.run();
  EXPECT_TRUE(responder->closed);
  ASSERT_GE(responder->events.size(), 6u);
  EXPECT_EQ(responder->events.back(), "[DONE]");
  std::string texts[2];
  Json endings[2];
  for (size_t i = 0; i + 2 < responder->events.size(); ++i) {
    const Json chunk = Json::parse(responder->events[i]);
    EXPECT_EQ(chunk["object"], "text_completion");
    EXPECT_EQ(chunk["usage"], nullptr);
    const Json& choice = chunk["choices"].at(0);
    const auto index = choice["index"].get<size_t>();
    texts[index] += choice["text"];
    if (!choice["finish_reason"].is_null()) endings[index] = {choice["finish_reason"], choice["stop_reason"]};
  }
  EXPECT_EQ(texts[0], "two");
  EXPECT_EQ(texts[1], "one");
  EXPECT_EQ(endings[0], Json({"stop", "!"}));
  EXPECT_EQ(endings[1], Json({"length", nullptr}));
  const Json last = Json::parse(responder->events[responder->events.size() - 2]);
  EXPECT_EQ(last["choices"], Json::array());
  EXPECT_EQ(last["usage"]["completion_tokens"], model_->ids("two!").size() + model_->ids("one").size());
}

TEST_F(CompletionsTest, EchoAndNothingElse) {
  Setup setup;
  const auto echoed = complete(setup, {{"prompt", "What is"}, {"echo", true}});
  sample(setup, " 2", 0);
  EXPECT_EQ(reply(*echoed)["choices"][0]["text"], "What is 2");
  const auto only = complete(setup, {{"prompt", model_->ids("What is")}, {"echo", true}, {"max_tokens", 0}});
  EXPECT_EQ(setup.engine.request(1).max_tokens, 1);
  sample(setup, " 2", 1);
  EXPECT_EQ(reply(*only)["choices"][0]["text"], "What is");
  EXPECT_EQ(reply(*only)["usage"]["completion_tokens"], 0);
  const auto streamed = complete(setup, {{"prompt", "W"}, {"echo", true}, {"max_tokens", 0}, {"stream", true}});
  sample(setup, " 2", 2);
  std::string text;
  for (size_t i = 0; i + 1 < streamed->events.size(); ++i)
    text += Json::parse(streamed->events[i])["choices"][0]["text"];
  EXPECT_EQ(text, "W");
}

TEST_F(CompletionsTest, OneThatFailsEndsTheOthers) {
  for (const bool stream : {false, true}) {
    Setup setup;
    const auto responder = complete(setup, {{"prompt", {"a", "b", "c"}}, {"stream", stream}});
    setup.engine.finish(FinishReason::error, -1, "broke", 1);
    setup.executor.run();
    EXPECT_TRUE(setup.engine.cancelled(0) && setup.engine.cancelled(2));
    EXPECT_EQ(setup.service.active(), 0u);
    if (stream) {
      EXPECT_TRUE(responder->closed);
      EXPECT_EQ(Json::parse(responder->events.at(0))["error"]["type"], "server_error");
      EXPECT_EQ(responder->events.at(1), "[DONE]");
    } else {
      EXPECT_EQ(reply(*responder, 500)["error"]["type"], "server_error");
    }
  }
}

TEST_F(CompletionsTest, AClientThatLeavesCancelsAllChoices) {
  Setup setup;
  const auto responder = complete(setup, {{"prompt", {"a", "b"}}});
  responder->leave();
  EXPECT_TRUE(setup.engine.cancelled(0) && setup.engine.cancelled(1));
  EXPECT_EQ(setup.service.active(), 0u);
}

TEST_F(CompletionsTest, ASlowClientHoldsAllChoicesBack) {
  Setup setup;
  const auto responder = complete(setup, {{"prompt", {"a", "b"}}, {"stream", true}});
  responder->is_congested = true;
  sample(setup, "one", 0);
  sample(setup, "two", 1);
  EXPECT_TRUE(responder->events.empty());
  responder->drain();
  setup.executor.run();
  EXPECT_TRUE(responder->closed);
  EXPECT_EQ(responder->events.back(), "[DONE]");
}

TEST_F(CompletionsTest, AllChoicesOrNone) {
  ServiceOptions options;
  options.max_queued_requests = 2;
  Setup setup(options);  // one runs, two wait
  EXPECT_EQ(reply(*complete(setup, {{"prompt", {"a", "b", "c", "d"}}}), 429)["error"]["code"], "queue_full");
  EXPECT_EQ(setup.engine.count(), 0u);
  const auto fits = complete(setup, {{"prompt", {"a", "b", "c"}}});
  EXPECT_EQ(setup.engine.count(), 3u);
  // The engine has the last word: what was started ends too.
  Setup smaller;
  smaller.engine.places = 2;
  EXPECT_EQ(reply(*complete(smaller, {{"prompt", {"a", "b", "c"}}}), 429)["error"]["code"], "queue_full");
  EXPECT_TRUE(smaller.engine.cancelled(0) && smaller.engine.cancelled(1));
  EXPECT_EQ(smaller.service.active(), 0u);
}

TEST_F(CompletionsTest, Refusals) {
  Setup setup;
  const std::vector<std::pair<Json, std::string>> cases = {
      {Json::object(), "prompt"},
      {{{"prompt", nullptr}}, "prompt"},
      {{{"prompt", 5}}, "prompt"},
      {{{"prompt", Json::array()}}, "prompt"},
      {{{"prompt", {"a", 5}}}, "prompt[1]"},
      {{{"prompt", {5, "a"}}}, "prompt[1]"},
      {{{"prompt", Json::array({Json::object()})}}, "prompt[0]"},
      {{{"prompt", Json::array({Json::array()})}}, "prompt"},
      {{{"prompt", {2048}}}, "prompt[0]"},
      {{{"prompt", ""}, {"add_special_tokens", false}}, "prompt"},
      {{{"prompt", "a"}, {"max_tokens", 0}}, "max_tokens"},
      {{{"prompt", "a"}, {"suffix", "b"}}, "suffix"},
      {{{"prompt", "a"}, {"best_of", 2}}, "best_of"},
      {{{"prompt", "a"}, {"logprobs", 21}}, "logprobs"},
      {{{"prompt", "a"}, {"logprobs", true}}, "logprobs"},
      {{{"prompt", {"a", "b"}}, {"n", 65}}, "prompt"},
      {{{"prompt", std::string(9000, 'a')}}, "prompt"},
  };
  for (const auto& [body, param] : cases) {
    EXPECT_EQ(reply(*complete(setup, body), 400)["error"]["param"], param) << body;
  }
  EXPECT_EQ(setup.engine.count(), 0u);
  EXPECT_EQ(reply(*complete(setup, {{"prompt", std::string(9000, 'a')}}), 400)["error"]["code"],
            "context_length_exceeded");
}

}  // namespace
}  // namespace tandem::api::completions_test
