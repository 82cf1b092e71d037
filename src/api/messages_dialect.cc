// Content blocks, in a stream and whole.
#include "api/messages_dialect.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <variant>

#include "api/json_text.h"
#include "api/messages_request.h"
#include "api/random.h"
#include "api/reply_text.h"
#include "chat/json.h"

namespace tandem::api {

namespace {

using chat::ReplyPiece;
using Json = nlohmann::ordered_json;

constexpr int id_bytes = 12;  // 24 hexadecimal digits

std::string error_type(const ApiError& error) {
  if (error.status() == 413) return "request_too_large";
  if (error.status() == 503) return "overloaded_error";
  return error.type() == "server_error" ? "api_error" : error.type();
}

Json error_json(const ApiError& error, const std::string& request_id) {
  Json json;
  json["type"] = "error";
  json["error"]["type"] = error_type(error);
  json["error"]["message"] = error.what();
  json["request_id"] = request_id;
  return json;
}

// input_tokens are those that were computed; the others were read from the cache.
Json messages_usage_json(const Usage& usage) {
  Json json;
  json["input_tokens"] = usage.prompt_tokens - usage.cached_tokens;
  json["cache_creation_input_tokens"] = 0;
  json["cache_read_input_tokens"] = usage.cached_tokens;
  json["output_tokens"] = usage.completion_tokens;
  return json;
}

struct Stop {
  Json reason, sequence;
};
Stop stop_of(const Ending& ending) {
  if (ending.finish_reason == "tool_calls") return {"tool_use", nullptr};
  if (ending.finish_reason == "length") return {"max_tokens", nullptr};
  if (const auto* text = std::get_if<std::string>(&ending.stop_reason)) return {"stop_sequence", *text};
  return {"end_turn", nullptr};
}

// The arguments as they are, but for keys that the model wrote twice: integers keep all their digits.
std::string input_text(const std::string& arguments) {
  std::string out;
  chat::print_python_json(chat::parse_json(arguments, "arguments"), out);
  return out;
}

class MessagesDialect : public ReplyDialect {
 public:
  MessagesDialect(std::string model, std::string request_id)
      : id_("msg_" + random_hex(id_bytes)), model_(std::move(model)), request_id_(std::move(request_id)) {}

  void begin(Responder& responder, const Usage& usage) override {
    Json event;
    event["message"] = head();
    event["message"]["content"] = Json::array();
    event["message"]["stop_reason"] = nullptr;
    event["message"]["stop_sequence"] = nullptr;
    event["message"]["usage"] = messages_usage_json(usage);
    send(responder, "message_start", event);
    send(responder, "ping", Json::object());
  }

  void piece(Responder& responder, const ReplyPiece& piece, const Usage& /*usage*/) override {
    switch (piece.kind) {
      case ReplyPiece::Kind::reasoning:
        enter(responder, "thinking", {{"thinking", ""}, {"signature", ""}});
        return delta(responder, "thinking_delta", "thinking", piece.text);
      case ReplyPiece::Kind::content:
        enter(responder, "text", {{"text", ""}});
        return delta(responder, "text_delta", "text", piece.text);
      case ReplyPiece::Kind::call:
        leave(responder);
        return enter(responder, "tool_use", {{"id", new_call_id()}, {"name", piece.text}, {"input", Json::object()}});
      case ReplyPiece::Kind::arguments: return delta(responder, "input_json_delta", "partial_json", piece.text);
      case ReplyPiece::Kind::call_end: return leave(responder);
    }
  }

  void end(Responder& responder, const Ending& ending, const Usage& usage, const Metrics& /*metrics*/) override {
    leave(responder);
    const Stop stop = stop_of(ending);
    Json event;
    event["delta"]["stop_reason"] = stop.reason;
    event["delta"]["stop_sequence"] = stop.sequence;
    event["usage"] = messages_usage_json(usage);
    send(responder, "message_delta", event);
    send(responder, "message_stop", Json::object());
    responder.close_stream();
  }

  void fail(Responder& responder, const ApiError& error) override {
    responder.send_named_event("error", text_of(error_json(error, request_id_)));
    responder.close_stream();
  }

  std::string whole(const std::vector<ReplyPiece>& pieces, const Ending& ending, const Usage& usage,
                    const Metrics& /*metrics*/) override {
    const WholeReply reply = whole_reply(pieces);
    std::vector<std::string> blocks;
    if (!reply.reasoning.empty() && !ending.reasoning_closed_by_eos) {
      blocks.push_back(text_of({{"type", "thinking"}, {"thinking", reply.reasoning}, {"signature", ""}}));
    }
    if (!reply.content.empty()) blocks.push_back(text_of({{"type", "text"}, {"text", reply.content}}));
    for (const chat::ToolCall& call : reply.calls) {
      blocks.push_back(fmt::format(R"({{"type":"tool_use","id":{},"name":{},"input":{}}})", text_of(new_call_id()),
                                   text_of(call.name), input_text(call.arguments)));
    }
    const Stop stop = stop_of(ending);
    std::string message = text_of(head());
    message.pop_back();  // the brace
    return fmt::format(R"({},"content":[{}],"stop_reason":{},"stop_sequence":{},"usage":{}}})", message,
                       fmt::join(blocks, ","), text_of(stop.reason), text_of(stop.sequence),
                       text_of(messages_usage_json(usage)));
  }

  Reply refusal(const ApiError& error) const override { return messages_error(error, request_id_); }

 private:
  static std::string new_call_id() { return "toolu_" + random_hex(id_bytes); }

  Json head() const { return {{"id", id_}, {"type", "message"}, {"role", "assistant"}, {"model", model_}}; }

  static void send(Responder& responder, const char* type, const Json& fields) {
    Json event;
    event["type"] = type;
    event.update(fields);
    responder.send_named_event(type, text_of(event));
  }

  // Begins a block unless one of this type is open; tool_use blocks are always ended before.
  void enter(Responder& responder, const char* type, const Json& fields) {
    if (open_ == type) return;
    leave(responder);
    open_ = type;
    Json event;
    event["index"] = index_;
    event["content_block"]["type"] = type;
    event["content_block"].update(fields);
    send(responder, "content_block_start", event);
  }

  void delta(Responder& responder, const char* type, const char* key, const std::string& text) const {
    Json event;
    event["index"] = index_;
    event["delta"]["type"] = type;
    event["delta"][key] = text;
    send(responder, "content_block_delta", event);
  }

  void leave(Responder& responder) {
    if (open_.empty()) return;
    if (open_ == "thinking") delta(responder, "signature_delta", "signature", "");
    open_.clear();
    Json event;
    event["index"] = index_++;
    send(responder, "content_block_stop", event);
  }

  std::string id_, model_, request_id_;
  std::string open_;   // type of the open block; empty: none
  int64_t index_ = 0;  // of the open block, else of the next
};

}  // namespace

Reply messages_error(const ApiError& error, const std::string& request_id) {
  Reply reply = error.reply();
  reply.body = text_of(error_json(error, request_id));
  return reply;
}

PreparedChat prepare_messages(std::string_view body, const ServedModel& model, const ChatRules& rules,
                              const std::string& request_id) {
  MessagesRequest parsed = parse_messages_request(body, model);
  PreparedChat prepared = prepare_reply(std::move(parsed.request), parsed.conversation, model, rules);
  prepared.dialect = std::make_shared<MessagesDialect>(prepared.request.model, request_id);
  return prepared;
}

std::string count_tokens_reply(std::string_view body, const ServedModel& model) {
  const MessagesRequest parsed = parse_messages_request(body, model);
  return fmt::format(R"({{"input_tokens":{}}})", count_prompt_tokens(parsed.conversation, model));
}

}  // namespace tandem::api
