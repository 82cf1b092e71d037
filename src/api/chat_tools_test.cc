// Tool calls in chat replies, whole and streamed, over a scripted engine.
#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "api/service_fixture.h"

namespace tandem::api::chat_tools_test {
namespace {

using Json = nlohmann::json;
using engine::FinishReason;
using ChatToolsTest = ServiceTest;

const std::string kTools =
    R"("tools":[{"type":"function","function":{"name":"get_weather","parameters":{"type":"object",
    "properties":{"city":{"type":"string"},"days":{"type":"integer"}}}}},{"type":"function","function":{"name":"noop"}}])";
const std::string kWeather =
    "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Oslo</arg_value><arg_key>days</arg_key><arg_value>3"
    "</arg_value></tool_call>";
const std::string kNoop = "<tool_call>noop</tool_call>";
const std::string kArguments = R"({"city": "Oslo", "days": 3})";

Json choice_of(const RecordingResponder& responder) {
  EXPECT_EQ(responder.replies.size(), 1u);
  EXPECT_EQ(responder.replies.at(0).status, 200) << responder.replies[0].body;
  return Json::parse(responder.replies.at(0).body)["choices"].at(0);
}

// The calls of a stream, put together as a client does it.
struct Streamed {
  std::string content, reasoning, finish_reason;
  std::vector<Json> calls;
};
Streamed read_stream(const RecordingResponder& responder) {
  Streamed out;
  for (const std::string& event : responder.events) {
    if (event == "[DONE]") continue;
    const Json choice = Json::parse(event)["choices"].at(0);
    const Json& delta = choice["delta"];
    if (choice["finish_reason"].is_string()) out.finish_reason = choice["finish_reason"];
    out.content += delta.value("content", "");
    out.reasoning += delta.value("reasoning", "");
    if (!delta.contains("tool_calls")) continue;
    EXPECT_EQ(delta.size(), 1u) << event;
    const Json& call = delta["tool_calls"].at(0);
    const auto index = call["index"].get<size_t>();
    if (index == out.calls.size()) {
      EXPECT_EQ(call["type"], "function");
      EXPECT_EQ(call["function"]["arguments"], "");
      out.calls.push_back(call);
      continue;
    }
    EXPECT_EQ(index + 1, out.calls.size());
    EXPECT_FALSE(call.contains("id"));
    Json& arguments = out.calls.at(index)["function"]["arguments"];
    arguments = arguments.get<std::string>() + call["function"]["arguments"].get<std::string>();
  }
  return out;
}

TEST_F(ChatToolsTest, WholeReplyWithCalls) {
  Setup setup;
  const auto responder = setup.chat(kTools);
  setup.answer("I look.</think>" + kWeather + kNoop);
  const Json choice = choice_of(*responder);
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  const Json& message = choice["message"];
  EXPECT_EQ(message["content"], nullptr);
  EXPECT_EQ(message["reasoning"], "I look.");
  ASSERT_EQ(message["tool_calls"].size(), 2u);
  const Json& call = message["tool_calls"][0];
  EXPECT_EQ(call["type"], "function");
  EXPECT_EQ(call["function"], Json({{"name", "get_weather"}, {"arguments", kArguments}}));
  EXPECT_EQ(call["id"].get<std::string>().substr(0, 5), "call_");
  EXPECT_EQ(call["id"].get<std::string>().size(), 5u + 24u);
  EXPECT_NE(call["id"], message["tool_calls"][1]["id"]);
  EXPECT_EQ(message["tool_calls"][1]["function"], Json({{"name", "noop"}, {"arguments", "{}"}}));
}

TEST_F(ChatToolsTest, StreamedCallsAddUpToTheWholeOnes) {
  Setup setup;
  const auto responder = setup.chat(R"("stream":true,)" + kTools);
  setup.answer("I look.</think>Here:" + kWeather + kNoop);
  const Streamed reply = read_stream(*responder);
  EXPECT_EQ(reply.content, "Here:");
  EXPECT_EQ(reply.reasoning, "I look.");
  EXPECT_EQ(reply.finish_reason, "tool_calls");
  ASSERT_EQ(reply.calls.size(), 2u);
  EXPECT_EQ(reply.calls[0]["function"], Json({{"name", "get_weather"}, {"arguments", kArguments}}));
  EXPECT_EQ(reply.calls[1]["function"], Json({{"name", "noop"}, {"arguments", "{}"}}));
  EXPECT_NE(reply.calls[0]["id"], reply.calls[1]["id"]);
}

TEST_F(ChatToolsTest, WithoutCallsNothingChanges) {
  Setup setup;
  const auto responder = setup.chat(kTools);
  setup.answer("</think>No.");
  const Json choice = choice_of(*responder);
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_EQ(choice["message"]["content"], "No.");
  EXPECT_FALSE(choice["message"].contains("tool_calls"));
}

TEST_F(ChatToolsTest, MarkupIsTextWithoutToolsAndWithToolChoiceNone) {
  Setup setup;
  const auto without = setup.chat("");
  const auto none = setup.chat(kTools + R"(,"tool_choice":"none")");
  setup.answer("</think>" + kWeather, 0);
  setup.answer("</think>" + kWeather, 1);
  for (const auto& responder : {without, none}) {
    const Json choice = choice_of(*responder);
    EXPECT_EQ(choice["message"]["content"], kWeather);
    EXPECT_EQ(choice["finish_reason"], "stop");
  }
  EXPECT_TRUE(setup.engine.request(0).sampling.logit_bias.empty());
  const auto& bias = setup.engine.request(1).sampling.logit_bias;  // the model is kept from trying
  ASSERT_EQ(bias.size(), 1u);
  EXPECT_EQ(bias[0].first, model_->id("<tool_call>"));
  EXPECT_EQ(bias[0].second, -100);
  EXPECT_GT(setup.engine.request(1).prompt_ids.size(), setup.engine.request(0).prompt_ids.size());  // yet it sees them
}

TEST_F(ChatToolsTest, OneCallEndsTheReplyIfNoMoreAreWanted) {
  Setup setup;
  const std::string fields = kTools + R"(,"parallel_tool_calls":false)";
  const auto whole = setup.chat(fields);
  const auto streamed = setup.chat(R"("stream":true,)" + fields);
  for (const size_t i : {size_t{0}, size_t{1}}) {
    setup.engine.admit(i);
    setup.engine.tokens(model_->ids("</think>" + kWeather + kNoop), i);  // the engine stops by itself after the first
    setup.executor.run();
  }
  const Json choice = choice_of(*whole);
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_EQ(choice["message"]["tool_calls"].size(), 1u);
  EXPECT_EQ(read_stream(*streamed).calls.size(), 1u);
  EXPECT_EQ(read_stream(*streamed).finish_reason, "tool_calls");
}

TEST_F(ChatToolsTest, CallsInsideOpenReasoning) {
  Setup setup;
  const auto responder = setup.chat(R"("stream":true,)" + kTools);
  setup.answer("I look." + kWeather);
  const Streamed reply = read_stream(*responder);
  EXPECT_EQ(reply.reasoning, "I look.");
  EXPECT_EQ(reply.content, "");
  ASSERT_EQ(reply.calls.size(), 1u);
  EXPECT_EQ(reply.calls[0]["function"]["arguments"], kArguments);
  EXPECT_EQ(reply.finish_reason, "tool_calls");
}

TEST_F(ChatToolsTest, ACallThatIsCutOffIsNotDelivered) {
  Setup setup;
  const auto responder = setup.chat(kTools);
  setup.engine.admit();
  setup.engine.tokens(model_->ids("</think>" + kNoop + "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Os"));
  setup.engine.finish(FinishReason::length);
  setup.executor.run();
  const Json choice = choice_of(*responder);
  EXPECT_EQ(choice["finish_reason"], "length");
  EXPECT_EQ(choice["message"]["tool_calls"].size(), 1u);
}

TEST_F(ChatToolsTest, ForcedCallsNeedTheTool) {
  Setup setup;
  const auto refused = [&](const std::string& fields, const std::string& param) {
    const auto responder = setup.chat(fields);
    ASSERT_EQ(responder->replies.size(), 1u);
    EXPECT_EQ(responder->replies[0].status, 400);
    EXPECT_EQ(Json::parse(responder->replies[0].body)["error"]["param"], param) << responder->replies[0].body;
  };
  refused(R"("tool_choice":"required")", "tool_choice");
  refused(std::string(kTools) + R"(,"tool_choice":{"type":"function","function":{"name":"nobody"}})", "tool_choice");
  refused(std::string(kTools) + R"(,"tool_choice":"required","response_format":{"type":"json_object"})", "tool_choice");
}

// Without an engine of grammars a constraint is an error, not ignored.
TEST_F(ChatToolsTest, WithoutGrammarsAConstraintIsAnError) {
  Setup setup;
  setup.served.grammars = nullptr;
  for (const auto& fields : {std::string(kTools) + R"(,"tool_choice":"required")",
                             std::string(R"("response_format":{"type":"json_object"})")}) {
    const auto responder = setup.chat(fields);
    ASSERT_EQ(responder->replies.size(), 1u);
    EXPECT_EQ(responder->replies[0].status, 501);
    EXPECT_EQ(Json::parse(responder->replies[0].body)["error"]["code"], "structured_output_unavailable");
  }
}

// What a client sends back is what the model wrote: the prompt of the next turn begins with prompt and reply.
TEST_F(ChatToolsTest, TheNextTurnContinuesThePrompt) {
  Setup setup;
  setup.chat(kTools);
  const std::string call =
      R"([{"id":"c","type":"function","function":{"name":"get_weather","arguments":)" + Json(kArguments).dump() + "}}]";
  setup.call("POST", "/v1/chat/completions",
             R"({"messages":[{"role":"user","content":"What is 2 + 3?"},{"role":"assistant","content":null,)"
             R"("reasoning_content":"I look.","tool_calls":)" +
                 call + R"(},{"role":"tool","tool_call_id":"c","content":"sunny"}],)" + kTools + "}");
  std::vector<int32_t> expected = setup.engine.request(0).prompt_ids;
  for (const int32_t id : model_->ids("I look.</think>" + kWeather +
                                      "<|observation|><tool_response>sunny</tool_response><|assistant|><think>")) {
    expected.push_back(id);
  }
  EXPECT_EQ(setup.engine.request(1).prompt_ids, expected);
}

}  // namespace
}  // namespace tandem::api::chat_tools_test
