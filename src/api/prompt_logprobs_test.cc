// Log-probabilities of the prompt, in chats and completions: what the engine is asked, and how they are written.
#include <nlohmann/json.hpp>

#include "api/service_fixture.h"

namespace tandem::api::prompt_logprobs_test {
namespace {

using Json = nlohmann::json;
using engine::FinishReason;
using engine::TokenLogprobs;

TokenLogprobs report_of(float chosen, int32_t rank, const std::vector<std::pair<int32_t, float>>& best) {
  TokenLogprobs report;
  report.chosen = chosen;
  report.rank = rank;
  for (const auto& entry : best) report.best[static_cast<size_t>(report.size++)] = entry;
  return report;
}

class PromptLogprobsTest : public ServiceTest {
 protected:
  // Every token of the prompt is the second likeliest, behind token 65.
  static void report_prompt(Setup& setup, size_t i) {
    setup.engine.admit(i);
    const auto prompt = setup.engine.request(i).prompt_ids;
    for (size_t k = 1; k < prompt.size(); ++k) {
      setup.engine.prompt_token(prompt[k], report_of(-2, 2, {{65, -0.5f}, {prompt[k], -2}}), i);
    }
  }
  static Json reply(const RecordingResponder& responder, int status = 200) {
    EXPECT_EQ(responder.replies.size(), 1u);
    if (responder.replies.empty()) return {};
    EXPECT_EQ(responder.replies[0].status, status) << responder.replies[0].body;
    return Json::parse(responder.replies[0].body);
  }
  static std::string refused_field(Setup& setup, const std::string& path, const std::string& body) {
    return reply(*setup.call("POST", path, body), 400)["error"]["param"];
  }
};

TEST_F(PromptLogprobsTest, OfAChat) {
  Setup setup;
  const auto responder = setup.chat(R"("prompt_logprobs":2,"n":2)", "Hi");
  EXPECT_EQ(setup.engine.request(0).prompt_logprobs, 2);
  EXPECT_EQ(setup.engine.request(1).prompt_logprobs, -1);  // the prompt is the same
  report_prompt(setup, 0);
  setup.engine.admit(1);
  for (const size_t i : {0, 1}) {
    setup.engine.tokens(model_->ids("</think>Yes"), i);
    setup.engine.finish(FinishReason::stop, model_->id("<|user|>"), {}, i);
  }
  setup.executor.run();
  const Json list = reply(*responder)["prompt_logprobs"];
  const auto prompt = setup.engine.request(0).prompt_ids;
  ASSERT_EQ(list.size(), prompt.size());
  EXPECT_EQ(list[0], nullptr);
  const std::string last = std::to_string(prompt.back());
  EXPECT_EQ(
      list.back(),
      Json(
          {{last, {{"logprob", -2}, {"rank", 2}, {"decoded_token", "<think>"}}},
           {"65",
            {{"logprob", -0.5}, {"rank", 1}, {"decoded_token", model_->tokenizer.decode(std::vector<int32_t>{65})}}}}));

  const auto plain = setup.chat("", "Hi");
  setup.answer("</think>Yes", 2);
  EXPECT_EQ(reply(*plain)["prompt_logprobs"], nullptr);
  EXPECT_EQ(setup.engine.request(2).prompt_logprobs, -1);
  setup.chat(R"("prompt_logprobs":0,"stream":true)");  // nothing is asked for
  EXPECT_EQ(setup.engine.request(3).prompt_logprobs, -1);
}

TEST_F(PromptLogprobsTest, OfACompletion) {
  Setup setup;
  const auto responder = setup.call("POST", "/v1/completions", R"({"prompt":["a b","c"],"prompt_logprobs":1})");
  for (const size_t i : {1, 0}) {
    report_prompt(setup, i);
    setup.engine.tokens(model_->ids("d"), i);
    setup.engine.finish(FinishReason::length, -1, {}, i);
  }
  setup.executor.run();
  const Json choices = reply(*responder)["choices"];
  for (const size_t i : {0, 1}) {
    const auto prompt = setup.engine.request(i).prompt_ids;
    ASSERT_EQ(choices[i]["prompt_logprobs"].size(), prompt.size());
    EXPECT_EQ(choices[i]["prompt_logprobs"][1].size(), 2u);  // the token itself and the likeliest
    EXPECT_EQ(choices[i]["logprobs"], nullptr);
  }
}

// echo with logprobs: those of the prompt come first, as OpenAI's API has them.
TEST_F(PromptLogprobsTest, OfAnEchoedPrompt) {
  for (const bool stream : {false, true}) {
    for (const bool prompt_only : {false, true}) {
      Setup setup;
      Json body{{"prompt", "a b"}, {"echo", true}, {"logprobs", 1}, {"stream", stream}};
      if (prompt_only) body["max_tokens"] = 0;
      const auto responder = setup.call("POST", "/v1/completions", body.dump());
      const auto prompt = setup.engine.request(0).prompt_ids;
      EXPECT_EQ(setup.engine.request(0).prompt_logprobs, 1);
      report_prompt(setup, 0);
      const auto next = report_of(-1, 0, {{7, -1}});
      setup.engine.token(model_->ids("d")[0], 0, &next);
      setup.engine.finish(FinishReason::length, -1, {}, 0);
      setup.executor.run();
      Json logprobs{{"tokens", Json::array()},
                    {"token_logprobs", Json::array()},
                    {"top_logprobs", Json::array()},
                    {"text_offset", Json::array()}};
      std::string text;
      const auto add = [&](const Json& choice) {
        text += choice["text"].get<std::string>();
        if (choice["logprobs"].is_null()) return;
        for (auto& [name, list] : logprobs.items()) {
          for (const Json& entry : choice["logprobs"][name]) list.push_back(entry);
        }
      };
      if (stream) {
        for (const std::string& event : responder->events) {
          if (event != "[DONE]") add(Json::parse(event)["choices"][0]);
        }
      } else {
        add(reply(*responder)["choices"][0]);
      }
      EXPECT_EQ(text, prompt_only ? "a b" : "a bd");
      const size_t tokens = prompt.size() + (prompt_only ? 0 : 1);
      for (const auto& [name, list] : logprobs.items()) ASSERT_EQ(list.size(), tokens) << name;
      EXPECT_EQ(logprobs["tokens"][0], "[gMASK]");
      EXPECT_EQ(logprobs["token_logprobs"][0], nullptr);
      EXPECT_EQ(logprobs["top_logprobs"][0], nullptr);
      EXPECT_EQ(logprobs["token_logprobs"][1], -2);
      EXPECT_EQ(logprobs["top_logprobs"][1].size(), 2u);  // one was asked for, and the token itself
      EXPECT_EQ(logprobs["text_offset"][2], 0);           // what was put before the text is not in it
      if (!prompt_only) {
        EXPECT_EQ(logprobs["text_offset"].back(), 3);
        EXPECT_EQ(logprobs["token_logprobs"].back(), -1);
      }
    }
  }
}

TEST_F(PromptLogprobsTest, Refusals) {
  Setup setup;
  const std::string chat = R"({"messages":[{"role":"user","content":"Hi"}],)", raw = R"({"prompt":"a",)";
  for (const auto* fields : {R"("prompt_logprobs":-1})", R"("prompt_logprobs":21})", R"("prompt_logprobs":true})",
                             R"("prompt_logprobs":"1"})", R"("prompt_logprobs":1,"stream":true})"}) {
    EXPECT_EQ(refused_field(setup, "/v1/chat/completions", chat + fields), "prompt_logprobs") << fields;
    EXPECT_EQ(refused_field(setup, "/v1/completions", raw + fields), "prompt_logprobs") << fields;
  }
  EXPECT_EQ(refused_field(setup, "/v1/responses", R"({"input":"a","prompt_logprobs":0})"), "prompt_logprobs");
}

TEST_F(PromptLogprobsTest, PrioritiesReachTheEngine) {
  Setup setup;
  setup.chat(R"("priority":-3)");
  setup.chat(R"("priority":"background")");
  setup.chat(R"("priority":9223372036854775807)");  // a number is no background
  setup.chat("");
  EXPECT_EQ(setup.engine.request(0).priority, -3);
  EXPECT_EQ(setup.engine.request(1).priority, engine::background_priority);
  EXPECT_EQ(setup.engine.request(2).priority, engine::background_priority - 1);
  EXPECT_EQ(setup.engine.request(3).priority, 0);
}

}  // namespace
}  // namespace tandem::api::prompt_logprobs_test
