// Replies of the Responses dialect over a scripted engine: items, the order of events, the store, cancelling, errors.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "api/openapi.h"
#include "api/responses_store.h"
#include "api/service_fixture.h"
#include "chat/render.h"

namespace tandem::api::responses_test {
namespace {

using Json = nlohmann::json;
using engine::FinishReason;

const std::string kTools =
    R"("tools":[{"type":"function","name":"get","parameters":{"properties":{"city":{"type":"string"}}}},)"
    R"({"type":"custom","name":"patch"},{"type":"namespace","name":"mcp__f__","tools":[{"type":"function","name":"read"}]}])";
const std::string kCalls =
    "<tool_call>get<arg_key>city</arg_key><arg_value>Oslo</arg_value></tool_call>"
    "<tool_call>patch<arg_key>input</arg_key><arg_value>a \"b\"\nc</arg_value></tool_call>"
    "<tool_call>mcp__f__read</tool_call>";

class ResponsesTest : public ServiceTest {
 protected:
  static std::shared_ptr<RecordingResponder> send(Setup& setup, const std::string& fields,
                                                  const std::string& input = "\"Hi\"") {
    return setup.call("POST", "/v1/responses",
                      R"({"model":"codex","input":)" + input + (fields.empty() ? "" : ",") + fields + "}");
  }
  static Json only_reply(const RecordingResponder& responder, int status = 200) {
    EXPECT_EQ(responder.replies.size(), 1u);
    if (responder.replies.empty()) return {};
    EXPECT_EQ(responder.replies[0].status, status) << responder.replies[0].body;
    return Json::parse(responder.replies[0].body);
  }
  static std::vector<int32_t> prompt_of(Setup& setup, size_t i) { return setup.engine.request(i).prompt_ids; }
  // Of the chat that a client without the store would send.
  std::vector<int32_t> chat_prompt(const std::string& body) {
    return model_->tokenizer.encode(chat::render(chat::parse_conversation(body)).segments);
  }
};

void erase_ids(Json& items) {
  for (Json& item : items) {
    item.erase("id");
    if (item.contains("call_id")) item["call_id"] = "";
  }
}

// A stream read as clients do: every event checked against the state that the ones before it left.
struct Streamed {
  Json response;                   // of the last event
  std::vector<std::string> order;  // event types without "response.", repetitions once
  Json items = Json::array();      // as put together from the events
};
class StreamReader {
 public:
  explicit StreamReader(const RecordingResponder& responder) {
    for (size_t i = 0; i < responder.events.size(); ++i) {
      const Json event = Json::parse(responder.events[i]);
      EXPECT_EQ(event["sequence_number"], i);
      EXPECT_EQ(event["type"], responder.names[i]);
      const std::string type = event["type"].get<std::string>().substr(9);
      if (out.order.empty() || out.order.back() != type) out.order.push_back(type);
      read(type, event);
    }
    EXPECT_FALSE(is_open_);
    EXPECT_EQ(out.response["output"], out.items);
  }
  Streamed out;

 private:
  void read(const std::string& type, const Json& event) {
    if (event.contains("response")) {
      out.response = event["response"];
      return;
    }
    if (type == "output_item.added") {
      EXPECT_FALSE(is_open_);
      is_open_ = true;
      EXPECT_EQ(event["output_index"], out.items.size());
      EXPECT_EQ(event["item"]["status"], "in_progress");
      out.items.push_back(event["item"]);
      return;
    }
    ASSERT_TRUE(is_open_);
    Json& item = out.items.back();
    EXPECT_EQ(event["output_index"], out.items.size() - 1);
    if (type == "output_item.done") {
      is_open_ = false;
      EXPECT_EQ(event["item"]["id"], item["id"]);
      item["status"] = event["item"]["status"];
      EXPECT_EQ(event["item"], item);
      return;
    }
    EXPECT_EQ(event["item_id"], item["id"]);
    read_part(type, event, item);
  }
  static void read_part(const std::string& type, const Json& event, Json& item) {
    if (type == "content_part.added") {
      EXPECT_EQ(event["content_index"], item["content"].size());
      item["content"].push_back(event["part"]);
    } else if (type == "content_part.done") {
      EXPECT_EQ(event["part"], item["content"][0]);
    } else {
      const bool is_call = !item.contains("content");
      const char* key = !is_call ? "text" : item["type"] == "custom_tool_call" ? "input" : "arguments";
      Json& target = is_call ? item[key] : item["content"][event["content_index"].get<size_t>()][key];
      if (type.ends_with(".done")) {
        EXPECT_EQ(event[key], target) << type;
      } else {
        ASSERT_TRUE(type.ends_with(".delta")) << type;
        EXPECT_FALSE(event["delta"].get<std::string>().empty());
        target = target.get<std::string>() + event["delta"].get<std::string>();
      }
    }
  }
  bool is_open_ = false;
};
Streamed read_stream(const RecordingResponder& responder) { return StreamReader(responder).out; }

TEST_F(ResponsesTest, WholeReply) {
  Setup setup;
  const auto responder = send(setup, kTools + R"(,"metadata":{"k":"v"},"instructions":"Be brief.","seed":11)");
  const std::string text = "why</think>Let me see." + kCalls;
  setup.answer(text, 0, 4);
  const Json body = only_reply(*responder);
  EXPECT_EQ(body["id"].get<std::string>().substr(0, 5), "resp_");
  EXPECT_EQ(body["object"], "response");
  EXPECT_EQ(body["status"], "completed");
  EXPECT_EQ(body["error"], nullptr);
  EXPECT_EQ(body["incomplete_details"], nullptr);
  EXPECT_EQ(body["model"], "codex");
  EXPECT_EQ(body["instructions"], "Be brief.");
  EXPECT_EQ(body["metadata"], Json({{"k", "v"}}));
  EXPECT_EQ(body["store"], true);
  EXPECT_EQ(body["tools"].size(), 3u);
  EXPECT_EQ(body["metrics"]["seed"], 11);
  Json output = body["output"];
  const std::vector<std::string> prefixes{"rs_", "msg_", "fc_", "ctc_", "fc_"};
  ASSERT_EQ(output.size(), prefixes.size());
  for (size_t i = 0; i < prefixes.size(); ++i) EXPECT_TRUE(output[i]["id"].get<std::string>().starts_with(prefixes[i]));
  EXPECT_TRUE(output[2]["call_id"].get<std::string>().starts_with("call_"));
  EXPECT_NE(output[2]["call_id"], output[3]["call_id"]);
  erase_ids(output);
  EXPECT_EQ(output, Json::parse(R"([
      {"type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"why"}],"status":"completed"},
      {"type":"message","role":"assistant","status":"completed",
       "content":[{"type":"output_text","text":"Let me see.","annotations":[],"logprobs":[]}]},
      {"type":"function_call","call_id":"","name":"get","arguments":"{\"city\": \"Oslo\"}","status":"completed"},
      {"type":"custom_tool_call","call_id":"","name":"patch","input":"a \"b\"\nc","status":"completed"},
      {"type":"function_call","call_id":"","name":"read","namespace":"mcp__f__","arguments":"{}","status":"completed"}
      ])"));
  const auto prompt = static_cast<int64_t>(prompt_of(setup, 0).size());
  const auto reply = static_cast<int64_t>(model_->ids(text).size()) + 1;
  EXPECT_EQ(body["usage"], Json({{"input_tokens", prompt},
                                 {"input_tokens_details", {{"cached_tokens", 4}}},
                                 {"output_tokens", reply},
                                 {"output_tokens_details", {{"reasoning_tokens", model_->ids("why</think>").size()}}},
                                 {"total_tokens", prompt + reply}}));
}

TEST_F(ResponsesTest, StreamedEvents) {
  Setup setup;
  const auto whole = send(setup, kTools);
  const auto responder = send(setup, R"("stream":true,)" + kTools);
  const std::string text = "why</think>Let me see." + kCalls;
  setup.answer(text, 0);
  setup.answer(text, 1);
  EXPECT_TRUE(responder->closed);
  const Streamed stream = read_stream(*responder);
  EXPECT_EQ(stream.order,
            (std::vector<std::string>{"created", "in_progress",
                                      // reasoning
                                      "output_item.added", "content_part.added", "reasoning_text.delta",
                                      "reasoning_text.done", "content_part.done", "output_item.done",
                                      // message
                                      "output_item.added", "content_part.added", "output_text.delta",
                                      "output_text.done", "content_part.done", "output_item.done",
                                      // calls
                                      "output_item.added", "function_call_arguments.delta",
                                      "function_call_arguments.done", "output_item.done", "output_item.added",
                                      "custom_tool_call_input.delta", "custom_tool_call_input.done", "output_item.done",
                                      "output_item.added", "function_call_arguments.delta",
                                      "function_call_arguments.done", "output_item.done", "completed"}));
  Json streamed = stream.response, expected = only_reply(*whole);
  EXPECT_EQ(streamed["status"], "completed");
  EXPECT_EQ(Json::parse(responder->events[0])["response"]["status"], "in_progress");
  EXPECT_EQ(Json::parse(responder->events[0])["response"]["id"], streamed["id"]);
  EXPECT_EQ(Json::parse(responder->events[0])["response"]["usage"], nullptr);
  for (Json* response : {&streamed, &expected}) {
    erase_ids((*response)["output"]);
    for (const auto* key : {"id", "created_at", "metrics"}) response->erase(key);
  }
  EXPECT_EQ(streamed, expected);
}

TEST_F(ResponsesTest, CutByLength) {
  Setup setup;
  const auto cut = [&](size_t i, const std::string& text) {
    setup.engine.admit(i);
    setup.engine.tokens(model_->ids(text), i);
    setup.engine.finish(FinishReason::length, -1, {}, i);
    setup.executor.run();
  };
  const auto streamed = send(setup, R"("stream":true)");
  cut(0, "why</think>So");
  const Streamed stream = read_stream(*streamed);
  EXPECT_EQ(stream.order.back(), "incomplete");
  EXPECT_EQ(stream.response["status"], "incomplete");
  EXPECT_EQ(stream.response["incomplete_details"], Json({{"reason", "max_output_tokens"}}));
  EXPECT_EQ(stream.items[0]["status"], "completed");
  EXPECT_EQ(stream.items[1]["status"], "incomplete");

  const std::string call = "</think>x<tool_call>get<arg_key>city</arg_key><arg_value>Os";
  const auto whole = send(setup, kTools), with_call = send(setup, R"("stream":true,)" + kTools);
  cut(1, call);
  cut(2, call);
  EXPECT_EQ(only_reply(*whole)["status"], "incomplete");
  EXPECT_EQ(only_reply(*whole)["output"].size(), 1u);  // a call that is not to be made is left out
  const Streamed with = read_stream(*with_call);
  EXPECT_EQ(with.items[1]["type"], "function_call");  // a stream has begun to show it
  EXPECT_EQ(with.items[1]["status"], "incomplete");
  EXPECT_EQ(with.items[0]["status"], "completed");
}

// C.8 b: a stream cannot take back what it sent as reasoning.
TEST_F(ResponsesTest, ReasoningThatWasTheAnswer) {
  Setup setup;
  const auto whole = send(setup, ""), streamed = send(setup, R"("stream":true)");
  setup.answer("Hello", 0);
  setup.answer("Hello", 1);
  const Json output = only_reply(*whole)["output"];
  ASSERT_EQ(output.size(), 1u);
  EXPECT_EQ(output[0]["content"][0]["text"], "Hello");
  const Streamed stream = read_stream(*streamed);
  ASSERT_EQ(stream.items.size(), 2u);
  EXPECT_EQ(stream.items[0]["type"], "reasoning");
  EXPECT_EQ(stream.items[1]["content"][0]["text"], "Hello");
}

TEST_F(ResponsesTest, AnEmptyReply) {
  Setup setup;
  const auto whole = send(setup, R"("max_output_tokens":1)", "[]"), streamed = send(setup, R"("stream":true)", "\"\"");
  setup.answer("</think>", 0);
  setup.answer("</think>", 1);
  EXPECT_EQ(only_reply(*whole)["output"], Json::array());
  EXPECT_EQ(only_reply(*whole)["status"], "completed");
  EXPECT_EQ(read_stream(*streamed).order, (std::vector<std::string>{"created", "in_progress", "completed"}));
}

// The next turn is that of a client that sends everything again.
TEST_F(ResponsesTest, PreviousResponse) {
  Setup setup;
  for (const std::string stream : {"", R"("stream":true,)"}) {
    const size_t first = setup.engine.count();
    const auto responder = send(setup, stream + kTools + R"(,"instructions":"Old.")");
    setup.answer("why</think>See." + kCalls, first);
    const Json response = stream.empty() ? only_reply(*responder) : Json::parse(responder->events.back())["response"];
    const Json& output = response["output"];
    Json input = Json::array();
    for (const size_t call : {2, 3, 4}) {
      input.push_back({{"type", call == 3 ? "custom_tool_call_output" : "function_call_output"},
                       {"call_id", output[call]["call_id"]},
                       {"output", "out"}});
    }
    send(setup, kTools + R"(,"previous_response_id":)" + response["id"].dump(), input.dump());
    const std::string everything = R"({"type":"message","role":"user","content":"Hi"},)" +
                                   output.dump().substr(1, output.dump().size() - 2) + "," +
                                   input.dump().substr(1, input.dump().size() - 2);
    send(setup, kTools, "[" + everything + "]");
    std::string references = R"({"role":"user","content":"Hi"})";
    for (const Json& item : output) references += R"(,{"type":"item_reference","id":)" + item["id"].dump() + "}";
    send(setup, kTools, "[" + references + "," + input.dump().substr(1));
    ASSERT_EQ(setup.engine.count(), first + 4);
    EXPECT_EQ(prompt_of(setup, first + 1), prompt_of(setup, first + 2));
    EXPECT_EQ(prompt_of(setup, first + 1), prompt_of(setup, first + 3));
    for (const size_t i : {1, 2, 3}) setup.answer("</think>Done", first + i);
  }
}

TEST_F(ResponsesTest, GetAndDelete) {
  Setup setup;
  const auto responder = send(setup, "");
  setup.answer("</think>Hello", 0);
  const Json body = only_reply(*responder);
  const std::string path = "/v1/responses/" + body["id"].get<std::string>();
  EXPECT_EQ(only_reply(*setup.call("GET", path)), body);
  EXPECT_EQ(only_reply(*setup.call("POST", path + "/cancel"), 400)["error"]["type"], "invalid_request_error");
  EXPECT_EQ(only_reply(*setup.call("DELETE", path)),
            Json({{"id", body["id"]}, {"object", "response.deleted"}, {"deleted", true}}));
  EXPECT_EQ(only_reply(*setup.call("GET", path), 404)["error"]["code"], "response_not_found");
  only_reply(*setup.call("DELETE", path), 404);
  only_reply(*setup.call("POST", path + "/cancel"), 404);
  only_reply(*setup.call("POST", "/v1/responses/compact"), 404);  // Codex tries it
  EXPECT_EQ(only_reply(*send(setup, R"("previous_response_id":)" + body["id"].dump()), 404)["error"]["code"],
            "previous_response_not_found");

  const auto unkept = send(setup, R"("store":false)");
  setup.answer("</think>Hello", 1);
  EXPECT_EQ(only_reply(*unkept)["store"], false);
  only_reply(*setup.call("GET", "/v1/responses/" + only_reply(*unkept)["id"].get<std::string>()), 404);
}

// Clients may look at a response that another connection streams.
TEST_F(ResponsesTest, GetWhileItIsBeingWritten) {
  Setup setup;
  const auto responder = send(setup, kTools + R"(,"stream":true)");
  setup.engine.admit(0);
  setup.executor.run();
  const std::string path = "/v1/responses/" + Json::parse(responder->events[0])["response"]["id"].get<std::string>();
  EXPECT_EQ(only_reply(*setup.call("GET", path)), Json::parse(responder->events[1])["response"]);
  setup.engine.tokens(model_->ids("why</think>Hel"), 0);
  setup.executor.run();
  const Json body = only_reply(*setup.call("GET", path));
  EXPECT_EQ(body["status"], "in_progress");
  EXPECT_EQ(body["usage"], nullptr);
  const Json described = Json::parse(openapi_document())["components"]["schemas"]["ResponsesReply"];
  const Json& statuses = described["properties"]["status"]["enum"];
  EXPECT_NE(std::find(statuses.begin(), statuses.end(), body["status"]), statuses.end());
  for (const Json& name : described["required"]) EXPECT_TRUE(body.contains(name.get<std::string>())) << name;
  ASSERT_EQ(body["output"].size(), 2u);
  EXPECT_EQ(body["output"][0]["status"], "completed");
  EXPECT_EQ(body["output"][1]["status"], "in_progress");
  EXPECT_EQ(body["output"][1]["content"][0]["text"], "Hel");
  only_reply(*setup.call("DELETE", path), 409);
  EXPECT_FALSE(setup.engine.cancelled(0));
  setup.engine.tokens(model_->ids("lo"), 0);
  setup.engine.finish(FinishReason::stop, model_->id("<|user|>"), {}, 0);
  setup.executor.run();
  EXPECT_EQ(only_reply(*setup.call("GET", path)), read_stream(*responder).response);
  EXPECT_EQ(only_reply(*setup.call("GET", path + "?stream=false&include=x"))["status"], "completed");
  for (const auto* query : {"?stream=true", "?include=x&stream=true&starting_after=2", "?stream=True", "?stream=1"}) {
    EXPECT_EQ(only_reply(*setup.call("GET", path + query), 400)["error"]["param"], "stream") << query;
  }
}

// A client without a notion of null: the first turn of a conversation.
TEST_F(ResponsesTest, AnEmptyPreviousResponseIsNone) {
  Setup setup;
  const auto responder = send(setup, R"("previous_response_id":"")");
  send(setup, "");
  setup.answer("</think>Hello", 0);
  EXPECT_EQ(only_reply(*responder)["previous_response_id"], nullptr);
  EXPECT_EQ(prompt_of(setup, 0), prompt_of(setup, 1));
}

TEST_F(ResponsesTest, CancelEndsAStream) {
  Setup setup;
  const auto responder = send(setup, R"("stream":true)");
  const auto other = send(setup, R"("stream":true)");
  setup.engine.admit(0);
  setup.engine.admit(1);
  setup.engine.tokens(model_->ids("</think>Hel"), 0);
  setup.executor.run();
  const std::string id = Json::parse(responder->events[0])["response"]["id"];
  const Json body = only_reply(*setup.call("POST", "/v1/responses/" + id + "/cancel"));
  EXPECT_EQ(body["status"], "cancelled");
  EXPECT_EQ(body["output"][0]["content"][0]["text"], "Hel");
  EXPECT_TRUE(setup.engine.cancelled(0));
  EXPECT_FALSE(setup.engine.cancelled(1));
  EXPECT_TRUE(responder->closed);
  EXPECT_FALSE(other->closed);
  EXPECT_EQ(read_stream(*responder).response, body);
  EXPECT_EQ(only_reply(*setup.call("GET", "/v1/responses/" + id)), body);
  EXPECT_EQ(only_reply(*setup.call("POST", "/v1/responses/" + id + "/cancel")), body);  // once more is no error
}

TEST_F(ResponsesTest, Errors) {
  Setup setup;
  Json error = only_reply(*send(setup, R"("temperature":9)"), 400)["error"];
  EXPECT_EQ(error["type"], "invalid_request_error");
  EXPECT_EQ(error["param"], "temperature");
  error = only_reply(*send(setup, "", '"' + std::string(6000, 'a') + '"'), 400)["error"];
  EXPECT_EQ(error["code"], "context_length_exceeded");
  EXPECT_EQ(error["param"], "input");

  const auto streamed = send(setup, R"("stream":true)");
  setup.engine.admit(0);
  setup.engine.tokens(model_->ids("</think>Hel"), 0);
  setup.engine.finish(FinishReason::error, -1, "a step failed", 0);
  setup.executor.run();
  const Streamed stream = read_stream(*streamed);
  EXPECT_EQ(stream.order.back(), "failed");
  EXPECT_EQ(stream.response["status"], "failed");
  EXPECT_EQ(stream.response["error"], Json({{"code", "server_error"}, {"message", "The generation failed."}}));
  EXPECT_TRUE(streamed->closed);

  const auto whole = send(setup, "");
  setup.engine.admit(1);
  setup.engine.finish(FinishReason::error, -1, "a step failed", 1);
  setup.executor.run();
  EXPECT_EQ(only_reply(*whole, 500)["error"]["type"], "server_error");
}

// Whatever a reply is made of, the stream adds up to the whole reply.
TEST_F(ResponsesTest, StreamsAddUp) {
  Setup setup;
  const std::vector<std::string> bits{"why",
                                      "</think>",
                                      "So. ",
                                      "<tool_call>get",
                                      "<arg_key>city</arg_key>",
                                      "<arg_value>Os\"lo\n</arg_value>",
                                      "</tool_call>",
                                      "<tool_call>patch<arg_key>input</arg_key><arg_value>x\\y</arg_value></tool_call>",
                                      "{}",
                                      "<tool_call>"};
  uint32_t state = 1;
  for (size_t round = 0; round < 300; ++round) {
    std::string text;
    for (int i = 0; i < 8; ++i) text += bits[(state = state * 1664525 + 1013904223) >> 16 & 7];
    if (round % 3 == 0) text += bits[8 + round % 2];
    const auto whole = send(setup, kTools), streamed = send(setup, R"("stream":true,)" + kTools);
    for (const size_t i : {2 * round, 2 * round + 1}) setup.answer(text, i);
    Json expected = only_reply(*whole)["output"], items = read_stream(*streamed).items, complete = Json::array();
    const auto is_reasoning = [](const Json& item) { return item["type"] == "reasoning"; };
    const bool has_reasoning = std::any_of(expected.begin(), expected.end(), is_reasoning);  // else it was the answer
    for (const Json& item : items) {
      if (item["status"] == "completed" && (has_reasoning || !is_reasoning(item))) complete.push_back(item);
    }
    erase_ids(expected);
    erase_ids(complete);
    // A message that a broken call cut in two is one in the whole reply.
    const auto texts = [](const Json& list) {
      std::string all;
      for (const Json& item : list)
        all += item.contains("content") ? item["content"][0]["text"].get<std::string>() : "";
      return all;
    };
    const auto calls = [](const Json& list) {
      Json all = Json::array();
      for (const Json& item : list) {
        if (!item.contains("content")) all.push_back(item);
      }
      return all;
    };
    EXPECT_EQ(calls(complete), calls(expected)) << text;
    EXPECT_EQ(texts(complete), texts(expected)) << text;
  }
}

}  // namespace
}  // namespace tandem::api::responses_test
