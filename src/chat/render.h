// The native prompt renderer: byte for byte the pinned hub template (spec/frontend.md C.2-C.6).
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "chat/messages.h"
#include "text/tokenizer.h"

namespace tandem::chat {

// Places where a later prompt is likely to part from this one. A border lies before segment [index] (or at the end of
// the prompt), and that segment begins with an added token. No token crosses an added token, so the ids up to a border
// are the ids of the text up to it, and segments between two borders can be encoded by themselves.
struct PromptBorders {
  std::size_t effort_begin = 0, effort_end = 0;  // the effort line; equal: there is none
  std::size_t messages = 0;                      // the first message; before it lie effort line and tools
  std::size_t system_end = 0;                    // the first message that is not a system message
  std::size_t history_end = 0;                   // the generation prompt
};

struct Prompt {
  std::vector<text::TextSegment> segments;  // template-owned text recognises added tokens, message text does not (B.6)
  PromptBorders borders;
  // The segments [begin, end) of each assistant message behind its <think>, both ends borders as above (a token does
  // not cross <think> either): what the model wrote, if the message is a reply of its.
  struct Span {
    std::size_t begin = 0, end = 0;
  };
  std::vector<Span> replies;
  bool reasoning_open = false;  // the prompt ends inside <think>

  std::string text() const;  // all segments joined
};

Prompt render(const Conversation& conversation);

// The segments of one assistant message behind its <think>, as Prompt::replies has them.
std::vector<text::TextSegment> render_reply(const Message& message);

// JSON text printed as Python's json.dumps(ensure_ascii=False) would print the same value (C.3): ", " and ": ", key
// order and the spelling of integers kept, floats in Python's repr. Throws Error(usage) if it is not JSON.
std::string python_json(std::string_view json);

}  // namespace tandem::chat
