// The native prompt renderer: byte for byte the pinned hub template (spec/frontend.md C.2-C.6).
#pragma once

#include <string>
#include <vector>

#include "chat/messages.h"
#include "text/tokenizer.h"

namespace tandem::chat {

struct Prompt {
  std::vector<text::TextSegment> segments;  // template-owned text recognises added tokens, message text does not (B.6)
  bool reasoning_open = false;              // the prompt ends inside <think>

  std::string text() const;  // all segments joined
};

Prompt render(const Conversation& conversation);

// JSON text printed as Python's json.dumps(ensure_ascii=False) would print the same value (C.3): ", " and ": ", key
// order and the spelling of integers kept, floats in Python's repr. Throws Error(usage) if it is not JSON.
std::string python_json(std::string_view json);

}  // namespace tandem::chat
