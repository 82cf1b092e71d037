// Tokens to visible text.
#include "api/reply_text.h"

#include <memory>
#include <utility>

namespace tandem::api {

using chat::ReplyPiece;

ReplyText::ReplyText(const text::Tokenizer& tokenizer, bool reasoning_open, const ChatRequest& request, Tools tools)
    : tokenizer_(&tokenizer),
      parser_(tokenizer, reasoning_open, std::move(tools), request.tool_required),
      stop_strings_(request.stop, request.include_stop_str_in_output),
      has_stop_strings_(!request.stop.empty()),
      include_reasoning_(request.include_reasoning),
      parallel_calls_(request.parallel_tool_calls),
      min_tokens_(request.min_tokens),
      stop_texts_(request.stop) {}

ReplyText ReplyText::raw(const text::Tokenizer& tokenizer, const ChatRequest& request) {
  ReplyText text(tokenizer, false, request, nullptr);
  text.raw_.emplace();
  return text;
}

std::vector<ReplyPiece> ReplyText::raw_piece(std::string text) const {
  if (text.empty()) return {};
  return {{ReplyPiece::Kind::content, std::move(text)}};
}

bool ReplyText::push(int32_t id, std::vector<ReplyPiece>& out) {
  ++tokens_;
  std::vector<ReplyPiece> pieces;
  if (!raw_) {
    pieces = parser_.push(id);
  } else if (!tokenizer_->is_special(id)) {
    pieces = raw_piece(raw_->push(tokenizer_->token_bytes(id)));
  }
  // Nothing is held back yet while stop strings are not looked for, so going around the matcher keeps the order.
  if (has_stop_strings_ && tokens_ > min_tokens_) pieces = stop_strings_.push(std::move(pieces));
  append(std::move(pieces), out);
  return note_match() || enough_calls_;
}

void ReplyText::finish(bool stopped, std::vector<ReplyPiece>& out) {
  std::vector<ReplyPiece> pieces = raw_ ? raw_piece(raw_->finish()) : parser_.finish(stopped);
  ended_in_reasoning_ = parser_.in_reasoning();
  if (has_stop_strings_) {
    pieces = stop_strings_.push(std::move(pieces));
    append(std::move(pieces), out);
    if (note_match()) return;
    pieces = stop_strings_.finish();
  }
  append(std::move(pieces), out);
}

void ReplyText::append(std::vector<ReplyPiece> pieces, std::vector<ReplyPiece>& out) {
  using Kind = ReplyPiece::Kind;
  for (ReplyPiece& piece : pieces) {
    if (enough_calls_) return;
    if (piece.kind == Kind::reasoning && !include_reasoning_) continue;
    if (piece.kind == Kind::call_end) {
      ++calls_;
      enough_calls_ = !parallel_calls_;
    }
    const bool joins = piece.kind != Kind::call && piece.kind != Kind::call_end;
    if (joins && !out.empty() && out.back().kind == piece.kind) {
      out.back().text += piece.text;
    } else {
      out.push_back(std::move(piece));
    }
  }
}

bool ReplyText::note_match() {
  if (const auto index = stop_strings_.matched()) matched_stop_ = stop_texts_[*index];
  return matched_stop_.has_value();
}

WholeReply whole_reply(const std::vector<ReplyPiece>& pieces) {
  using Kind = ReplyPiece::Kind;
  WholeReply reply;
  chat::ToolCall call;
  for (const ReplyPiece& piece : pieces) {
    switch (piece.kind) {
      case Kind::reasoning: reply.reasoning += piece.text; break;
      case Kind::content: reply.content += piece.text; break;
      case Kind::call: call = {{}, piece.text, {}}; break;
      case Kind::arguments: call.arguments += piece.text; break;
      case Kind::call_end: reply.calls.push_back(std::exchange(call, {})); break;
    }
  }
  return reply;
}

namespace {

std::function<bool(int32_t)> rule_of(ReplyText text) {
  struct Rule {
    ReplyText text;
    std::vector<ReplyPiece> pieces;  // not shown to anybody
    bool is_silent = false;
  };
  auto rule = std::make_shared<Rule>(Rule{std::move(text), {}});
  return [rule](int32_t id) {
    if (rule->is_silent) return false;
    try {
      rule->pieces.clear();
      return rule->text.push(id, rule->pieces);
    } catch (...) {
      rule->is_silent = true;
      return false;
    }
  };
}

}  // namespace

std::function<bool(int32_t)> stop_rule(const text::Tokenizer& tokenizer, bool reasoning_open,
                                       const ChatRequest& request, const Tools& tools) {
  const bool one_call = tools != nullptr && !request.parallel_tool_calls;
  if (request.stop.empty() && !one_call) return nullptr;
  return rule_of(ReplyText(tokenizer, reasoning_open, request, tools));
}

std::function<bool(int32_t)> raw_stop_rule(const text::Tokenizer& tokenizer, const ChatRequest& request) {
  return request.stop.empty() ? nullptr : rule_of(ReplyText::raw(tokenizer, request));
}

}  // namespace tandem::api
