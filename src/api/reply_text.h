// From sampled tokens to what a client sees: the stream parser splits reasoning, content and tool calls, client stop
// strings cut the content.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "api/chat_request.h"
#include "chat/messages.h"
#include "chat/reply_piece.h"
#include "chat/stop_strings.h"
#include "chat/stream_parser.h"
#include "text/tokenizer.h"

namespace tandem::api {

using Tools = std::shared_ptr<const chat::ToolSchemas>;

class ReplyText {
 public:
  // `tokenizer` must outlive this. `tools`: the offered tools; null: calls are not looked for.
  ReplyText(const text::Tokenizer& tokenizer, bool reasoning_open, const ChatRequest& request, Tools tools);
  // Of a completion: all text is content, no markup is read, special tokens are left out (D.5).
  static ReplyText raw(const text::Tokenizer& tokenizer, const ChatRequest& request);

  // Appends what a sampled token (not a stop token) adds to the reply; neighbours of one kind are joined, so that
  // several tokens can share a chunk. Returns true when the reply ends here: a stop string has matched, or it has the
  // one call that it may have.
  bool push(int32_t id, std::vector<chat::ReplyPiece>& out);
  // The reply has ended by itself; `stopped`: by a stop token, else cut off.
  void finish(bool stopped, std::vector<chat::ReplyPiece>& out);

  bool complete() const { return matched_stop_ || enough_calls_; }  // what push() returned
  const std::optional<std::string>& matched_stop() const { return matched_stop_; }
  int64_t calls() const { return calls_; }                                     // complete ones
  bool ended_in_reasoning() const { return ended_in_reasoning_; }              // cut off before the reasoning closed
  bool reasoning_closed_by_eos() const { return parser_.thinking_skipped(); }  // rule C.8 b was applied
  int64_t tokens() const { return tokens_; }
  int64_t reasoning_tokens() const { return parser_.reasoning_tokens(); }

 private:
  void append(std::vector<chat::ReplyPiece> pieces, std::vector<chat::ReplyPiece>& out);
  bool note_match();
  std::vector<chat::ReplyPiece> raw_piece(std::string text) const;

  const text::Tokenizer* tokenizer_;
  std::optional<text::Utf8Stream> raw_;  // set: the parser is not used
  chat::StreamParser parser_;
  chat::StopStrings stop_strings_;
  bool has_stop_strings_ = false;
  bool include_reasoning_ = true, parallel_calls_ = true;
  int64_t min_tokens_ = 0;  // stop strings are looked for from then on (D.2)
  std::vector<std::string> stop_texts_;
  int64_t tokens_ = 0;
  std::optional<std::string> matched_stop_;
  bool ended_in_reasoning_ = false;
  int64_t calls_ = 0;
  bool enough_calls_ = false;
};

// A reply in one piece. Calls that were not completed are left out; ids are left empty.
struct WholeReply {
  std::string reasoning, content;
  std::vector<chat::ToolCall> calls;
};
WholeReply whole_reply(const std::vector<chat::ReplyPiece>& pieces);

// For engine::Request::ends_after: true with the token at which ReplyText::push ends the reply, so that the engine ends
// it there by itself and keeps no rows behind it. Empty if nothing in the request can end it. It has a state of its
// own, shared by its copies, and never throws: should its memory run out it falls silent, and the reply's own ReplyText
// ends it. `tokenizer` must outlive it.
std::function<bool(int32_t)> stop_rule(const text::Tokenizer& tokenizer, bool reasoning_open,
                                       const ChatRequest& request, const Tools& tools);
// The same for ReplyText::raw().
std::function<bool(int32_t)> raw_stop_rule(const text::Tokenizer& tokenizer, const ChatRequest& request);

}  // namespace tandem::api
