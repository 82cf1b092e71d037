// From a rendered prompt to its ids, with the ids of earlier replies where the prompt repeats them.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "api/reply_ids.h"
#include "api/reply_text.h"
#include "chat/render.h"
#include "text/tokenizer.h"

namespace tandem::api {

class PromptEncoder {
 public:
  // All must outlive the encoder. `replies` may be null. `tools`: as the reply's calls are read.
  PromptEncoder(const text::Tokenizer& tokenizer, const chat::Prompt& prompt, ReplyIds* replies,
                std::string_view cache_salt, Tools tools);

  // Encodes the segments before `border` that are not encoded yet; returns the number of ids so far. Borders must not
  // lie inside a reply and must not descend.
  int64_t encode_until(size_t border);
  const std::vector<int32_t>& ids() const { return ids_; }
  PromptKey key() const { return hash_.key(); }  // of all ids so far
  int64_t repeated_replies() const { return repeated_; }

 private:
  void append(const std::vector<int32_t>& ids);
  void encode(size_t end);
  bool repeat(const chat::Prompt::Span& reply);
  bool repeat_after(const std::vector<int32_t>& closer, const chat::Prompt::Span& reply);
  bool says(const std::vector<int32_t>& ids, bool reasoning_open, const chat::Prompt::Span& reply) const;

  const text::Tokenizer* tokenizer_;
  const chat::Prompt* prompt_;
  ReplyIds* replies_;
  Tools tools_;
  PromptHash hash_;
  std::vector<int32_t> ids_;
  size_t encoded_ = 0;     // segments
  size_t next_reply_ = 0;  // of prompt.replies
  int64_t repeated_ = 0;
};

}  // namespace tandem::api
