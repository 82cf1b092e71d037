// From sampled tokens to the text that a client sees: the stream parser splits reasoning from content, client stop
// strings cut the content.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "api/chat_request.h"
#include "chat/stop_strings.h"
#include "chat/stream_parser.h"
#include "text/tokenizer.h"

namespace tandem::api {

class ReplyText {
 public:
  // `tokenizer` must outlive this.
  ReplyText(const text::Tokenizer& tokenizer, bool reasoning_open, const ChatRequest& request);

  // Appends what a sampled token (not a stop token) adds to the reply; neighbours of one kind are joined, so that
  // several tokens can share a chunk. Returns true when a stop string has matched: the reply ends here.
  bool push(int32_t id, std::vector<chat::ReplyPiece>& out);
  // The reply has ended without a stop string; `stopped`: by a stop token, else cut off.
  void finish(bool stopped, std::vector<chat::ReplyPiece>& out);

  const std::optional<std::string>& matched_stop() const { return matched_stop_; }
  bool ended_in_reasoning() const { return ended_in_reasoning_; }              // cut off before the reasoning closed
  bool reasoning_closed_by_eos() const { return parser_.thinking_skipped(); }  // rule C.8 b was applied
  int64_t tokens() const { return tokens_; }
  int64_t reasoning_tokens() const { return parser_.reasoning_tokens(); }

 private:
  void append(std::vector<chat::ReplyPiece> pieces, std::vector<chat::ReplyPiece>& out) const;
  bool note_match();

  chat::StreamParser parser_;
  chat::StopStrings stop_strings_;
  bool has_stop_strings_ = false;
  bool include_reasoning_ = true;
  int64_t min_tokens_ = 0;  // stop strings are looked for from then on (D.2)
  std::vector<std::string> stop_texts_;
  int64_t tokens_ = 0;
  std::optional<std::string> matched_stop_;
  bool ended_in_reasoning_ = false;
};

// For engine::Request::ends_after: true with the token at which ReplyText::push matches a stop string, so that the
// engine ends the reply there by itself and keeps no rows behind it. Empty without stop strings. It has a state of its
// own, shared by its copies, and never throws: should its memory run out it falls silent, and the reply's own ReplyText
// ends it. `tokenizer` must outlive it.
std::function<bool(int32_t)> stop_rule(const text::Tokenizer& tokenizer, bool reasoning_open,
                                       const ChatRequest& request);

}  // namespace tandem::api
