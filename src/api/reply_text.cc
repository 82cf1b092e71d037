// Tokens to visible text.
#include "api/reply_text.h"

#include <memory>
#include <utility>

namespace tandem::api {

using chat::ReplyPiece;

ReplyText::ReplyText(const text::Tokenizer& tokenizer, bool reasoning_open, const ChatRequest& request)
    : parser_(tokenizer, reasoning_open),
      stop_strings_(request.stop, request.include_stop_str_in_output),
      has_stop_strings_(!request.stop.empty()),
      include_reasoning_(request.include_reasoning),
      min_tokens_(request.min_tokens),
      stop_texts_(request.stop) {}

bool ReplyText::push(int32_t id, std::vector<ReplyPiece>& out) {
  ++tokens_;
  std::vector<ReplyPiece> pieces = parser_.push(id);
  // Nothing is held back yet while stop strings are not looked for, so going around the matcher keeps the order.
  if (has_stop_strings_ && tokens_ > min_tokens_) pieces = stop_strings_.push(std::move(pieces));
  append(std::move(pieces), out);
  return note_match();
}

void ReplyText::finish(bool stopped, std::vector<ReplyPiece>& out) {
  std::vector<ReplyPiece> pieces = parser_.finish(stopped);
  ended_in_reasoning_ = parser_.in_reasoning();
  if (has_stop_strings_) {
    pieces = stop_strings_.push(std::move(pieces));
    append(std::move(pieces), out);
    if (note_match()) return;
    pieces = stop_strings_.finish();
  }
  append(std::move(pieces), out);
}

void ReplyText::append(std::vector<ReplyPiece> pieces, std::vector<ReplyPiece>& out) const {
  for (ReplyPiece& piece : pieces) {
    if (piece.kind == ReplyPiece::Kind::reasoning && !include_reasoning_) continue;
    if (!out.empty() && out.back().kind == piece.kind) {
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

std::function<bool(int32_t)> stop_rule(const text::Tokenizer& tokenizer, bool reasoning_open,
                                       const ChatRequest& request) {
  if (request.stop.empty()) return nullptr;
  struct Rule {
    ReplyText text;
    std::vector<ReplyPiece> pieces;  // not shown to anybody
    bool is_silent = false;
  };
  auto rule = std::make_shared<Rule>(Rule{ReplyText(tokenizer, reasoning_open, request), {}});
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

}  // namespace tandem::api
