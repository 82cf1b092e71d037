// Replies of the Anthropic dialect over a scripted engine: blocks, the order of events, stops, usage, errors.
#include <nlohmann/json.hpp>

#include "api/service_fixture.h"

namespace tandem::api::messages_test {
namespace {

using Json = nlohmann::json;
using engine::FinishReason;

const std::string kTools =
    R"("tools":[{"name":"get_weather","input_schema":{"properties":{"city":{"type":"string"},"n":{"type":"integer"}}}},)"
    R"({"name":"noop","input_schema":{}}])";
const std::string kThinking = R"("thinking":{"type":"enabled","budget_tokens":2000})";
const std::string kWeather =
    "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Oslo</arg_value><arg_key>n</arg_key><arg_value>"
    "123456789012345678901</arg_value></tool_call>";

class MessagesTest : public ServiceTest {
 protected:
  static std::shared_ptr<RecordingResponder> send(Setup& setup, const std::string& fields) {
    return setup.call("POST", "/v1/messages",
                      R"({"model":"claude","max_tokens":100,"messages":[{"role":"user","content":"Hi"}])" +
                          (fields.empty() ? "" : "," + fields) + "}");
  }
  static Json only_reply(const RecordingResponder& responder, int status = 200) {
    EXPECT_EQ(responder.replies.size(), 1u);
    if (responder.replies.empty()) return {};
    EXPECT_EQ(responder.replies[0].status, status) << responder.replies[0].body;
    return Json::parse(responder.replies[0].body);
  }
};

// A stream read as Anthropic's clients do: every event checked against the state that the ones before it left.
struct Streamed {
  Json message, delta;
  std::vector<std::string> order;  // event types, deltas of one kind once
};
Streamed read_stream(const RecordingResponder& responder) {
  Streamed out;
  int open = -1;
  for (size_t i = 0; i < responder.events.size(); ++i) {
    const Json event = Json::parse(responder.events[i]);
    const std::string type = event["type"];
    EXPECT_EQ(responder.names[i], type);
    std::string step = type;
    if (type == "message_start") out.message = event["message"];
    Json* content = out.message.is_null() ? nullptr : &out.message["content"];
    if (type == "content_block_start") {
      EXPECT_EQ(open, -1);
      open = event["index"];
      EXPECT_EQ(static_cast<size_t>(open), content->size());
      content->push_back(event["content_block"]);
      if (content->back()["type"] == "tool_use") {
        EXPECT_EQ(content->back()["input"], Json::object());
        content->back()["input"] = "";
      }
    } else if (type == "content_block_delta") {
      EXPECT_EQ(event["index"], open);
      const Json& delta = event["delta"];
      step = delta["type"];
      const std::string key = step == "text_delta"        ? "text"
                              : step == "thinking_delta"  ? "thinking"
                              : step == "signature_delta" ? "signature"
                                                          : "partial_json";
      Json& target = content->back()[key == "partial_json" ? "input" : key];
      target = target.get<std::string>() + delta[key].get<std::string>();
    } else if (type == "content_block_stop") {
      EXPECT_EQ(event["index"], open);
      open = -1;
      Json& block = content->back();
      if (block["type"] == "tool_use") block["input"] = Json::parse(block["input"].get<std::string>(), nullptr, false);
    } else if (type == "message_delta") {
      out.delta = event;
    }
    if (out.order.empty() || out.order.back() != step) out.order.push_back(step);
  }
  EXPECT_EQ(open, -1);
  return out;
}

TEST_F(MessagesTest, WholeReply) {
  Setup setup;
  const auto responder = send(setup, kThinking + "," + kTools);
  setup.answer("why</think>Let me see." + kWeather, 0, 4);
  const Json body = only_reply(*responder);
  EXPECT_EQ(body["id"].get<std::string>().substr(0, 4), "msg_");
  EXPECT_EQ(body["type"], "message");
  EXPECT_EQ(body["role"], "assistant");
  EXPECT_EQ(body["model"], "claude");
  ASSERT_EQ(body["content"].size(), 3u);
  EXPECT_EQ(body["content"][0], Json({{"type", "thinking"}, {"thinking", "why"}, {"signature", ""}}));
  EXPECT_EQ(body["content"][1], Json({{"type", "text"}, {"text", "Let me see."}}));
  EXPECT_EQ(body["content"][2]["type"], "tool_use");
  EXPECT_EQ(body["content"][2]["id"].get<std::string>().substr(0, 6), "toolu_");
  EXPECT_EQ(body["content"][2]["name"], "get_weather");
  EXPECT_EQ(body["content"][2]["input"]["city"], "Oslo");
  EXPECT_NE(responder->replies[0].body.find("123456789012345678901"), std::string::npos);  // with all its digits
  EXPECT_EQ(body["stop_reason"], "tool_use");
  EXPECT_EQ(body["stop_sequence"], nullptr);
  const auto prompt = static_cast<int64_t>(setup.engine.request().prompt_ids.size());
  EXPECT_EQ(body["usage"], Json({{"input_tokens", prompt - 4},
                                 {"cache_creation_input_tokens", 0},
                                 {"cache_read_input_tokens", 4},
                                 {"output_tokens", model_->ids("why</think>Let me see." + kWeather).size() + 1}}));
}

TEST_F(MessagesTest, StreamedEvents) {
  Setup setup;
  const auto whole = send(setup, kThinking + "," + kTools);
  const auto responder = send(setup, R"("stream":true,)" + kThinking + "," + kTools);
  const std::string text = "why</think>Let me see." + kWeather + "<tool_call>noop</tool_call>";
  setup.answer(text, 0);
  setup.answer(text, 1, 4);
  EXPECT_TRUE(responder->closed);
  const Streamed reply = read_stream(*responder);
  EXPECT_EQ(reply.order, (std::vector<std::string>{
                             "message_start", "ping", "content_block_start", "thinking_delta", "signature_delta",
                             "content_block_stop", "content_block_start", "text_delta", "content_block_stop",
                             "content_block_start", "input_json_delta", "content_block_stop", "content_block_start",
                             "input_json_delta", "content_block_stop", "message_delta", "message_stop"}));
  Json expected = only_reply(*whole)["content"], content = reply.message["content"];
  ASSERT_EQ(content.size(), 4u);
  for (const size_t i : {2, 3}) {
    EXPECT_EQ(content[i]["id"].get<std::string>().substr(0, 6), "toolu_");
    expected[i].erase("id");
    content[i].erase("id");
  }
  EXPECT_EQ(content, expected);
  EXPECT_EQ(reply.message["stop_reason"], nullptr);
  EXPECT_EQ(reply.message["usage"]["cache_read_input_tokens"], 4);
  EXPECT_EQ(reply.message["usage"]["output_tokens"], 0);
  EXPECT_EQ(reply.delta["delta"], Json({{"stop_reason", "tool_use"}, {"stop_sequence", nullptr}}));
  EXPECT_EQ(reply.delta["usage"]["output_tokens"], model_->ids(text).size() + 1);
}

TEST_F(MessagesTest, ThinkingIsHiddenUnlessAskedFor) {
  Setup setup;
  const auto whole = send(setup, "");
  const auto streamed = send(setup, R"("stream":true)");
  setup.answer("why</think>Hello", 0);
  setup.answer("why</think>Hello", 1);
  const Json content = Json::array({{{"type", "text"}, {"text", "Hello"}}});
  EXPECT_EQ(only_reply(*whole)["content"], content);
  EXPECT_EQ(only_reply(*whole)["stop_reason"], "end_turn");
  EXPECT_EQ(read_stream(*streamed).message["content"], content);
}

TEST_F(MessagesTest, StopReasons) {
  Setup setup;
  const auto sequence = send(setup, R"("stop_sequences":["END"])");
  setup.answer("</think>so END", 0);
  EXPECT_EQ(only_reply(*sequence)["stop_reason"], "stop_sequence");
  EXPECT_EQ(only_reply(*sequence)["stop_sequence"], "END");
  EXPECT_EQ(only_reply(*sequence)["content"][0]["text"], "so ");

  const auto cut = send(setup, R"("stream":true,)" + kTools);
  setup.engine.admit(1);
  setup.engine.tokens(model_->ids("</think><tool_call>get_weather<arg_key>city</arg_key><arg_value>Os"), 1);
  setup.engine.finish(FinishReason::length, -1, {}, 1);
  setup.executor.run();
  const Streamed reply = read_stream(*cut);
  EXPECT_EQ(reply.delta["delta"]["stop_reason"], "max_tokens");
  EXPECT_EQ(reply.order.back(), "message_stop");

  const auto empty = send(setup, "");
  setup.answer("</think>", 2);
  EXPECT_EQ(only_reply(*empty)["content"], Json::array());
  EXPECT_EQ(only_reply(*empty)["stop_reason"], "end_turn");
}

TEST_F(MessagesTest, CountTokensAsksNobody) {
  Setup setup;
  send(setup, kTools);
  const auto responder = setup.call("POST", "/v1/messages/count_tokens",
                                    R"({"model":"claude","messages":[{"role":"user","content":"Hi"}],)" + kTools + "}");
  EXPECT_EQ(only_reply(*responder), Json({{"input_tokens", setup.engine.request().prompt_ids.size()}}));
  EXPECT_EQ(setup.engine.count(), 1u);
  EXPECT_EQ(setup.service.active(), 1u);
  only_reply(*setup.call("POST", "/v1/messages/count_tokens", "{}"), 400);
  EXPECT_EQ(setup.service.active(), 1u);
}

TEST_F(MessagesTest, Errors) {
  Setup setup;
  Json body = only_reply(*send(setup, R"("temperature":9)"), 400);
  EXPECT_EQ(body["type"], "error");
  EXPECT_EQ(body["error"]["type"], "invalid_request_error");
  EXPECT_NE(body["error"]["message"].get<std::string>().find("temperature"), std::string::npos);
  EXPECT_EQ(body["request_id"], "test-id");

  const std::string words(6000, 'a');
  body = only_reply(*setup.call("POST", "/v1/messages", R"({"messages":[{"role":"user","content":")" + words + "\"}]}"),
                    400);
  EXPECT_NE(body["error"]["message"].get<std::string>().find("prompt is too long: "), std::string::npos);

  const auto streamed = send(setup, R"("stream":true)");
  setup.engine.admit(0);
  setup.engine.finish(FinishReason::error, -1, "a step failed", 0);
  setup.executor.run();
  EXPECT_EQ(streamed->names.back(), "error");
  EXPECT_EQ(Json::parse(streamed->events.back())["error"]["type"], "api_error");
  EXPECT_TRUE(streamed->closed);

  setup.service.start_draining();
  body = only_reply(*send(setup, ""), 503);
  EXPECT_EQ(body["error"]["type"], "overloaded_error");
}

}  // namespace
}  // namespace tandem::api::messages_test
