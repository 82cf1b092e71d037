// Reply tokens to meaning (spec/frontend.md C.8): reasoning, content and tool calls.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "chat/reply_piece.h"
#include "chat/tool_values.h"
#include "text/tokenizer.h"

namespace tandem::chat {

// Text is the tokens' bytes without those flagged special. Bounds of reasoning and calls are recognised as tokens,
// never as spelled text, and looked up by their content, since checkpoints of the family number them differently.
class StreamParser {
 public:
  // `tokenizer` must outlive the parser. reasoning_open: the prompt ended inside <think>. `tools`: the tools that were
  // offered; null: calls are not looked for and their markup is text. call_is_certain: what follows <tool_call> cannot
  // be anything but a call (tool_choice required). Throws Error(bad_file) if the tokenizer has no <think> or </think>
  // token.
  StreamParser(const text::Tokenizer& tokenizer, bool reasoning_open,
               std::shared_ptr<const ToolSchemas> tools = nullptr, bool call_is_certain = false);
  ~StreamParser();
  StreamParser(StreamParser&&) noexcept;

  // One sampled token that is not the stop token.
  std::vector<ReplyPiece> push(int32_t id);
  // The reply has ended; `stopped` by a stop token or stop string (false: cut by length or cancelled). Rule C.8 b: a
  // reply that stopped without ever closing its reasoning is content; it is sent once more as one content piece. A call
  // that lacks nothing but its end is completed if the reply stopped; one that lacks more is content then, and nothing
  // if the reply was cut. Cut inside its head it may be a mention of <tool_call>, and is text unless a call was
  // certain.
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
