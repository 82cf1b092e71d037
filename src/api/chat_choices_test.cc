// What a chat reports beside its text: several choices, log-probabilities, the echo, longer chunks.
#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "api/service_fixture.h"

namespace tandem::api::chat_choices_test {
namespace {

using Json = nlohmann::json;
using engine::FinishReason;
using ChatChoicesTest = ServiceTest;

Json only_reply(const RecordingResponder& responder) {
  EXPECT_EQ(responder.replies.size(), 1u);
  if (responder.replies.empty()) return {};
  EXPECT_EQ(responder.replies[0].status, 200) << responder.replies[0].body;
  return Json::parse(responder.replies[0].body);
}

std::vector<Json> chunks_of(const RecordingResponder& responder) {
  std::vector<Json> chunks;
  for (const std::string& event : responder.events)
    if (event != "[DONE]") chunks.push_back(Json::parse(event));
  return chunks;
}

TEST_F(ChatChoicesTest, ChoicesDifferInTheirSeeds) {
  Setup setup;
  const auto responder = setup.chat(R"("n":3,"seed":5)");
  ASSERT_EQ(setup.engine.count(), 3u);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(setup.engine.request(i).sampling.seed, 5 + i);
  EXPECT_EQ(setup.engine.request(2).prompt_ids, setup.engine.request(0).prompt_ids);
  for (const size_t i : {1u, 2u, 0u}) setup.answer(fmt::format("r</think>{}", i), i);
  const Json body = only_reply(*responder);
  ASSERT_EQ(body["choices"].size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(body["choices"][i]["index"], i);
    EXPECT_EQ(body["choices"][i]["message"]["content"], fmt::format("{}", i));
    EXPECT_EQ(body["choices"][i]["message"]["reasoning"], "r");
  }
  const auto tokens = std::ssize(model_->ids("r</think>0")) + 1;  // and the stop
  EXPECT_EQ(body["usage"]["completion_tokens"], 3 * tokens);
  EXPECT_EQ(body["usage"]["prompt_tokens"], setup.engine.request().prompt_ids.size());
}

TEST_F(ChatChoicesTest, StreamedChoices) {
  Setup setup;
  const auto responder = setup.chat(R"("n":2,"stream":true,"stream_options":{"include_usage":true})");
  setup.answer("</think>one", 1);
  EXPECT_FALSE(responder->closed);
  setup.answer("</think>zero", 0);
  EXPECT_TRUE(responder->closed);
  EXPECT_EQ(std::count(responder->events.begin(), responder->events.end(), "[DONE]"), 1);
  const std::vector<Json> chunks = chunks_of(*responder);
  std::string texts[2];
  int finished = 0;
  for (size_t i = 0; i + 1 < chunks.size(); ++i) {
    EXPECT_EQ(chunks[i]["id"], chunks[0]["id"]);
    const Json& choice = chunks[i]["choices"].at(0);
    texts[choice["index"].get<size_t>()] += choice["delta"].value("content", "");
    finished += !choice["finish_reason"].is_null();
  }
  EXPECT_EQ(texts[0], "zero");
  EXPECT_EQ(texts[1], "one");
  EXPECT_EQ(finished, 2);
  EXPECT_EQ(chunks.back()["choices"], Json::array());
  EXPECT_EQ(chunks.back()["usage"]["completion_tokens"],
            model_->ids("</think>zero").size() + model_->ids("</think>one").size() + 2);
}

// A token with its two best, as the engine reports it.
void send_token(FakeEngine& engine, int32_t id, float chosen, const std::vector<std::pair<int32_t, float>>& best) {
  engine::TokenLogprobs logprobs;
  logprobs.chosen = chosen;
  logprobs.size = static_cast<int32_t>(best.size());
  std::copy(best.begin(), best.end(), logprobs.best.begin());
  engine.token(id, 0, &logprobs);
}

TEST_F(ChatChoicesTest, LogProbabilities) {
  for (const bool stream : {false, true}) {
    Setup setup;
    const auto responder =
        setup.chat(fmt::format(R"("logprobs":true,"top_logprobs":2,"reasoning_effort":"none","stream":{})", stream));
    EXPECT_EQ(setup.engine.request().logprobs, 2);
    const std::vector<int32_t> emoji = model_->ids("\xF0\x9F\xA6\x84");  // a character in several tokens
    ASSERT_GT(emoji.size(), 1u);
    const int32_t two = model_->ids("2")[0];
    setup.engine.admit(0, 0);
    send_token(setup.engine, emoji[0], -0.5f, {{emoji[0], -0.5f}, {two, -1.0f}});
    for (size_t i = 1; i < emoji.size(); ++i) send_token(setup.engine, emoji[i], 0.0f, {{emoji[i], 0.0f}});
    send_token(setup.engine, two, -std::numeric_limits<float>::infinity(), {});
    setup.engine.finish(FinishReason::length, -1, {}, 0);
    setup.executor.run();
    Json content = Json::array();
    if (stream) {
      for (const Json& chunk : chunks_of(*responder)) {
        const Json& logprobs = chunk["choices"].at(0)["logprobs"];
        if (!logprobs.is_null()) content.insert(content.end(), logprobs["content"].begin(), logprobs["content"].end());
      }
    } else {
      content = only_reply(*responder)["choices"][0]["logprobs"]["content"];
    }
    ASSERT_EQ(content.size(), emoji.size() + 1);
    EXPECT_EQ(content[0]["token"], "\xEF\xBF\xBD");  // the first part of a character
    EXPECT_EQ(content[0]["logprob"], -0.5);
    ASSERT_EQ(content[0]["top_logprobs"].size(), 2u);
    EXPECT_EQ(content[0]["top_logprobs"][1], Json({{"token", "2"}, {"logprob", -1.0}, {"bytes", {50}}}));
    std::string bytes;
    for (const Json& entry : content)
      for (const int byte : entry["bytes"].get<std::vector<int>>()) bytes += static_cast<char>(byte);
    EXPECT_EQ(bytes,
              "\xF0\x9F\xA6\x84"
              "2");
    EXPECT_EQ(content.back(),
              Json({{"token", "2"}, {"logprob", -9999.0}, {"bytes", {50}}, {"top_logprobs", Json::array()}}));
  }
}

TEST_F(ChatChoicesTest, TokensAsIdsAndCompletions) {
  Setup setup;
  const int32_t two = model_->ids("2")[0], three = model_->ids("3")[0];
  const auto responder =
      setup.call("POST", "/v1/completions", R"({"prompt":"a","logprobs":1,"return_tokens_as_token_ids":true})");
  EXPECT_EQ(setup.engine.request().logprobs, 1);
  setup.engine.admit(0, 0);
  send_token(setup.engine, two, -2.0f, {{three, -0.25f}});
  send_token(setup.engine, three, -0.25f, {{three, -0.25f}});
  setup.engine.finish(FinishReason::length, -1, {}, 0);
  setup.executor.run();
  const std::string second = fmt::format("token_id:{}", two), third = fmt::format("token_id:{}", three);
  const Json expected = {{"tokens", {second, third}},
                         {"token_logprobs", {-2.0, -0.25}},
                         {"top_logprobs", {{{third, -0.25}, {second, -2.0}}, {{third, -0.25}}}},
                         {"text_offset", {0, 1}}};
  EXPECT_EQ(only_reply(*responder)["choices"][0]["logprobs"], expected);
}

TEST_F(ChatChoicesTest, EchoRepeatsTheContinuedMessage) {
  const std::string messages = R"({"messages":[{"role":"user","content":"Hi"},{"role":"assistant","content":"Good "}],)"
                               R"("continue_final_message":true,"echo":true,"stream":)";
  for (const bool stream : {false, true}) {
    Setup setup;
    const auto responder = setup.call("POST", "/v1/chat/completions", fmt::format("{}{}}}", messages, stream));
    setup.answer("morning");
    std::string content;
    if (stream) {
      for (const Json& chunk : chunks_of(*responder)) content += chunk["choices"].at(0)["delta"].value("content", "");
    } else {
      content = only_reply(*responder)["choices"][0]["message"]["content"];
    }
    EXPECT_EQ(content, "Good morning");
  }
  Setup setup;  // the last message is not the assistant's
  const auto responder = setup.chat(R"("echo":true)");
  setup.answer("</think>x");
  EXPECT_EQ(only_reply(*responder)["choices"][0]["message"]["content"], "x");
}

TEST_F(ChatChoicesTest, LongerChunks) {
  Setup setup;
  const auto responder = setup.chat(R"("stream":true,"stream_interval":3,"reasoning_effort":"none")");
  setup.engine.admit(0, 0);
  std::vector<std::string> texts;
  for (int i = 0; i < 8; ++i) {
    setup.engine.tokens(model_->ids(fmt::format("{}", i)), 0);
    setup.executor.run();
  }
  setup.engine.finish(FinishReason::length, -1, {}, 0);
  setup.executor.run();
  for (const Json& chunk : chunks_of(*responder)) {
    const std::string text = chunk["choices"].at(0)["delta"].value("content", "");
    if (!text.empty()) texts.push_back(text);
  }
  EXPECT_EQ(texts, (std::vector<std::string>{"0", "123", "456", "7"}));
}

}  // namespace
}  // namespace tandem::api::chat_choices_test
