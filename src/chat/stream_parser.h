// Reply tokens to meaning (spec/frontend.md C.8): reasoning, content and, with the front-door issue, tool calls.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace tandem::chat {

// What a piece of the reply is.
struct ReplyPiece {
  enum class Kind { reasoning, content };
  Kind kind = Kind::content;
  std::string text;  // valid UTF-8, never empty
};

// Text is the tokens' bytes without those flagged special. The bounds of reasoning are recognised as tokens, never as
// spelled text, and looked up by their content, since checkpoints of the family number them differently.
class StreamParser {
 public:
  // `tokenizer` must outlive the parser. reasoning_open: the prompt ended inside <think>. Throws Error(bad_file) if the
  // tokenizer has no <think> or </think> token.
  StreamParser(const text::Tokenizer& tokenizer, bool reasoning_open);
  ~StreamParser();
  StreamParser(StreamParser&&) noexcept;

  // One sampled token that is not the stop token.
  std::vector<ReplyPiece> push(int32_t id);
  // The reply has ended; `stopped` by a stop token or stop string (false: cut by length or cancelled). Rule C.8 b: a
  // reply that stopped without ever closing its reasoning is content; it is sent once more as one content piece.
  std::vector<ReplyPiece> finish(bool stopped);

  bool in_reasoning() const;
  // Tokens counted as reasoning so far, the closer included; 0 once rule C.8 b has made the reply content.
  int64_t reasoning_tokens() const;
  // finish() applied rule C.8 b: the content is what was sent as reasoning before, and the reply has no reasoning.
  bool thinking_skipped() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tandem::chat
