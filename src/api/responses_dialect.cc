// Output items and the order of events.
#include "api/responses_dialect.h"

#include <fmt/format.h>

#include <ctime>
#include <nlohmann/json.hpp>
#include <utility>

#include "api/json_text.h"
#include "api/random.h"
#include "api/reply_text.h"

namespace tandem::api {

namespace {

using chat::ReplyPiece;
using Json = nlohmann::ordered_json;

constexpr int response_id_bytes = 24, item_id_bytes = 12;
constexpr const char* cancelled_code = "response_cancelled";

Json responses_usage_json(const Usage& usage) {
  Json json;
  json["input_tokens"] = usage.prompt_tokens;
  json["input_tokens_details"]["cached_tokens"] = usage.cached_tokens;
  json["output_tokens"] = usage.completion_tokens;
  json["output_tokens_details"]["reasoning_tokens"] = usage.reasoning_tokens;
  json["total_tokens"] = usage.prompt_tokens + usage.completion_tokens;
  return json;
}

// Calls that were not completed are left out: nothing says that they are not to be made.
std::vector<ReplyPiece> without_incomplete_calls(const std::vector<ReplyPiece>& pieces) {
  using Kind = ReplyPiece::Kind;
  std::vector<ReplyPiece> out;
  size_t call = 0;  // where the open one begins in `out`
  bool is_open = false;
  const auto drop_open = [&] {
    if (std::exchange(is_open, false)) out.resize(call);
  };
  for (const ReplyPiece& piece : pieces) {
    if (piece.kind != Kind::arguments && piece.kind != Kind::call_end) drop_open();
    if (piece.kind == Kind::call) {
      call = out.size();
      is_open = true;
    }
    if (piece.kind == Kind::call_end) is_open = false;
    out.push_back(piece);
  }
  drop_open();
  return out;
}

struct Item {
  ReplyPiece::Kind kind = ReplyPiece::Kind::content;  // reasoning, content or call
  std::string id;
  std::string text;  // or the arguments
  std::string shown_name, call_id;
  ToolOrigin tool;
  CustomInput input;
};

class ResponsesDialect : public ReplyDialect {
 public:
  ResponsesDialect(ResponsesRequest request, std::string model, std::shared_ptr<ResponseStore> store, int64_t client)
      : id_("resp_" + random_hex(response_id_bytes)),
        created_(std::time(nullptr)),
        model_(std::move(model)),
        tools_(std::move(request.tools)),
        echo_before_output_(std::move(request.echo_before_output)),
        echo_after_output_(std::move(request.echo_after_output)),
        store_(request.store ? std::move(store) : nullptr),
        client_(client) {
    if (!store_) return;
    auto& messages = request.conversation.messages;
    history_.assign(std::make_move_iterator(messages.begin() + static_cast<std::ptrdiff_t>(request.instructions)),
                    std::make_move_iterator(messages.end()));
  }

  void begin(Responder& responder, const Usage& /*usage*/) override {
    has_begun_ = true;
    responder_ = &responder;
    send_response("response.created", object("in_progress"));
    send_response("response.in_progress", object("in_progress"));
    responder_ = nullptr;
  }

  void piece(Responder& responder, const ReplyPiece& piece, const Usage& /*usage*/) override {
    responder_ = &responder;
    take(piece);
    responder_ = nullptr;
  }

  void end(Responder& responder, const Ending& ending, const Usage& usage, const Metrics& metrics) override {
    responder_ = &responder;
    const std::string body = complete(ending, usage, metrics);
    send_response(ending.finish_reason == "length" ? "response.incomplete" : "response.completed", body);
    responder.close_stream();
    responder_ = nullptr;
  }

  // What has been said stays in the output, but for what was not finished.
  void fail(Responder& responder, const ApiError& error) override {
    responder_ = &responder;
    leave("incomplete");
    const bool cancelled = error.code() == cancelled_code;
    Json failure = nullptr;
    if (!cancelled) failure = {{"code", error.code().empty() ? error.type() : error.code()}, {"message", error.what()}};
    const std::string body = object(cancelled ? "cancelled" : "failed", failure);
    keep(body, cancelled);
    send_response(cancelled ? "response.incomplete" : "response.failed", body);
    responder.close_stream();
    responder_ = nullptr;
  }

  std::string whole(const std::vector<ReplyPiece>& pieces, const Ending& ending, const Usage& usage,
                    const Metrics& metrics) override {
    for (const ReplyPiece& piece : without_incomplete_calls(pieces)) {
      if (piece.kind != ReplyPiece::Kind::reasoning || !ending.reasoning_closed_by_eos) take(piece);
    }
    return complete(ending, usage, metrics);
  }

  Reply refusal(const ApiError& error) const override { return error.reply(); }

  bool answers_to(std::string_view id, int64_t client) const override {
    return has_begun_ && store_ && id == id_ && client == client_;
  }

  std::string as_it_stands() const override { return object("in_progress"); }

 private:
  void take(const ReplyPiece& piece) {
    switch (piece.kind) {
      case ReplyPiece::Kind::reasoning:
      case ReplyPiece::Kind::content: return add_text(piece);
      case ReplyPiece::Kind::call:
        leave("completed");
        enter(piece.kind);
        item_->shown_name = piece.text;
        item_->tool = tools_.origin_of(piece.text);
        item_->call_id = "call_" + random_hex(item_id_bytes);
        item_->id = (item_->tool.custom ? "ctc_" : "fc_") + random_hex(item_id_bytes);
        return send_item("response.output_item.added", item_json("in_progress"));
      case ReplyPiece::Kind::arguments: return add_arguments(piece.text);
      case ReplyPiece::Kind::call_end: call_is_complete_ = true; return leave("completed");
    }
  }

  void enter(ReplyPiece::Kind kind) {
    item_.emplace();
    item_->kind = kind;
    call_is_complete_ = false;
  }

  void add_text(const ReplyPiece& piece) {
    const bool is_reasoning = piece.kind == ReplyPiece::Kind::reasoning;
    if (!item_ || item_->kind != piece.kind) {
      leave("completed");
      enter(piece.kind);
      item_->id = (is_reasoning ? "rs_" : "msg_") + random_hex(item_id_bytes);
      Json item = item_json("in_progress");
      item["content"] = Json::array();
      send_item("response.output_item.added", std::move(item));
      send_part("response.content_part.added", part_json({}));
    }
    item_->text += piece.text;
    Json event = place();
    event["content_index"] = 0;
    event["delta"] = piece.text;
    if (!is_reasoning) event["logprobs"] = Json::array();
    send(is_reasoning ? "response.reasoning_text.delta" : "response.output_text.delta", event);
  }

  void add_arguments(const std::string& piece) {
    item_->text += piece;
    const std::string delta = item_->tool.custom ? item_->input.push(piece) : piece;
    if (!delta.empty()) send_arguments(delta);
  }

  void send_arguments(const std::string& delta) {
    Json event = place();
    event["delta"] = delta;
    send(item_->tool.custom ? "response.custom_tool_call_input.delta" : "response.function_call_arguments.delta",
         event);
  }

  // Ends the open item. A call without its end is incomplete in any case.
  void leave(std::string status) {
    if (!item_) return;
    if (item_->kind == ReplyPiece::Kind::call) {
      if (!call_is_complete_) status = "incomplete";
      end_call();
    } else {
      const bool is_reasoning = item_->kind == ReplyPiece::Kind::reasoning;
      Json event = place();
      event["content_index"] = 0;
      event["text"] = item_->text;
      if (!is_reasoning) event["logprobs"] = Json::array();
      send(is_reasoning ? "response.reasoning_text.done" : "response.output_text.done", event);
      send_part("response.content_part.done", part_json(item_->text));
    }
    Json item = item_json(status);
    output_.push_back(text_of(item));
    remember(status == "completed");
    send_item("response.output_item.done", std::move(item), output_.size() - 1);
    item_.reset();
  }

  void end_call() {
    if (item_->tool.custom) {
      if (const std::string rest = item_->input.finish(); !rest.empty()) send_arguments(rest);
    }
    Json event = place();
    event[item_->tool.custom ? "input" : "arguments"] = item_->tool.custom ? item_->input.text() : item_->text;
    if (!item_->tool.custom) event["name"] = item_->tool.name;
    send(item_->tool.custom ? "response.custom_tool_call_input.done" : "response.function_call_arguments.done", event);
  }

  // For the turns to come, which the store will be asked for.
  void remember(bool is_complete) {
    if (!store_ || (item_->kind == ReplyPiece::Kind::call && !is_complete)) return;
    chat::Message said;
    said.role = chat::Role::assistant;
    switch (item_->kind) {
      case ReplyPiece::Kind::reasoning:
        said.reasoning_content = item_->text;
        turn_.reasoning_content = turn_.reasoning_content.value_or("") + item_->text;
        break;
      case ReplyPiece::Kind::content:
        said.content.push_back({chat::Part::Kind::text, item_->text, {}});
        turn_.content.push_back(said.content.back());
        break;
      default:
        said.tool_calls.push_back({item_->call_id, item_->shown_name, item_->text});
        turn_.tool_calls.push_back(said.tool_calls.back());
    }
    items_.emplace_back(item_->id, std::move(said));
  }

  std::string complete(const Ending& ending, const Usage& usage, const Metrics& metrics) {
    const bool is_cut = ending.finish_reason == "length";
    leave(is_cut ? "incomplete" : "completed");
    if (ending.reasoning_closed_by_eos) turn_.reasoning_content.reset();
    std::string body = object(is_cut ? "incomplete" : "completed", nullptr, text_of(responses_usage_json(usage)),
                              fmt::format(R"(,"metrics":{})", text_of(metrics_json(metrics))));
    keep(body);
    return body;
  }

  void keep(const std::string& body, bool is_cancelled = false) {
    if (!store_) return;
    // Reasoning alone was cut off: the next turn begins without it.
    if (!turn_.content.empty() || !turn_.tool_calls.empty()) {
      turn_.role = chat::Role::assistant;
      history_.push_back(std::move(turn_));
    }
    store_->put({id_, client_, body, is_cancelled, std::move(history_), std::move(items_)});
  }

  Json part_json(std::string_view text) const {
    if (item_->kind == ReplyPiece::Kind::reasoning) return {{"type", "reasoning_text"}, {"text", text}};
    return {{"type", "output_text"}, {"text", text}, {"annotations", Json::array()}, {"logprobs", Json::array()}};
  }

  // The open item as it stands.
  Json item_json(std::string_view status) const {
    Json json;
    switch (item_->kind) {
      case ReplyPiece::Kind::reasoning:
        json = {{"type", "reasoning"}, {"id", item_->id}, {"summary", Json::array()}};
        json["content"] = Json::array({part_json(item_->text)});
        break;
      case ReplyPiece::Kind::content:
        json = {{"type", "message"}, {"id", item_->id}, {"role", "assistant"}};
        json["content"] = Json::array({part_json(item_->text)});
        break;
      default:
        const ToolOrigin& tool = item_->tool;
        json = {{"type", tool.custom ? "custom_tool_call" : "function_call"}, {"id", item_->id}};
        json["call_id"] = item_->call_id;
        json["name"] = tool.name;
        if (!tool.name_space.empty()) json["namespace"] = tool.name_space;
        json[tool.custom ? "input" : "arguments"] = tool.custom ? item_->input.text() : item_->text;
    }
    json["status"] = status;
    return json;
  }

  // The response object. Its output is what has ended so far and, while it is being written, the open item.
  std::string object(std::string_view status, const Json& error = nullptr, std::string_view usage = "null",
                     std::string_view more = {}) const {
    std::vector<std::string> items = output_;
    if (item_ && status == "in_progress") items.push_back(text_of(item_json(status)));
    const Json reason = status == "incomplete" ? Json{{"reason", "max_output_tokens"}} : Json(nullptr);
    return fmt::format(R"({{"id":"{}","object":"response","created_at":{},"status":"{}","error":{},)"
                       R"("incomplete_details":{},{}"model":{},"output":[{}],{}"usage":{}{}}})",
                       id_, created_, status, text_of(error), text_of(reason), echo_before_output_, text_of(model_),
                       fmt::join(items, ","), echo_after_output_, usage, more);
  }

  Json place() const { return {{"item_id", item_->id}, {"output_index", output_.size()}}; }

  void send(const char* type, const Json& fields) {
    if (responder_ == nullptr) return;
    Json event;
    event["type"] = type;
    event.update(fields);
    event["sequence_number"] = sequence_number_++;
    responder_->send_named_event(type, text_of(event));
  }

  void send_item(const char* type, Json item) { send_item(type, std::move(item), output_.size()); }
  void send_item(const char* type, Json item, size_t index) {
    Json event;
    event["output_index"] = index;
    event["item"] = std::move(item);
    send(type, event);
  }

  void send_part(const char* type, Json part) {
    Json event = place();
    event["content_index"] = 0;
    event["part"] = std::move(part);
    send(type, event);
  }

  void send_response(const char* type, const std::string& response) {
    responder_->send_named_event(
        type, fmt::format(R"({{"type":"{}","response":{},"sequence_number":{}}})", type, response, sequence_number_++));
  }

  std::string id_;
  int64_t created_;
  std::string model_;
  ResponsesTools tools_;
  std::string echo_before_output_, echo_after_output_;
  std::shared_ptr<ResponseStore> store_;  // null: nothing is kept
  int64_t client_;
  std::vector<chat::Message> history_;  // what the reply answers, if it is kept

  Responder* responder_ = nullptr;  // during a call that streams
  bool has_begun_ = false;
  int64_t sequence_number_ = 0;
  std::optional<Item> item_;  // open
  bool call_is_complete_ = false;
  std::vector<std::string> output_;  // items that have ended
  chat::Message turn_;               // all of them
  std::vector<std::pair<std::string, chat::Message>> items_;
};

}  // namespace

std::shared_ptr<ReplyDialect> make_responses_dialect(ResponsesRequest request, std::string model,
                                                     std::shared_ptr<ResponseStore> store, int64_t client) {
  return std::make_shared<ResponsesDialect>(std::move(request), std::move(model), std::move(store), client);
}

PreparedChat prepare_responses(std::string_view body, const ServedModel& model, const ChatRules& rules,
                               int64_t client) {
  ResponsesRequest parsed = parse_responses_request(body, model, *rules.responses, client);
  PreparedChat prepared = prepare_reply(std::move(parsed.request), parsed.conversation, model, rules, "input");
  prepared.dialect = make_responses_dialect(std::move(parsed), prepared.request.model, rules.responses, client);
  return prepared;
}

ApiError response_cancelled() {
  return {409, "invalid_request_error", "The response was cancelled.", {}, cancelled_code};
}

}  // namespace tandem::api
