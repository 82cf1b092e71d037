// What the parts of a reply are, once its tokens have been read.
#pragma once

#include <string>

namespace tandem::chat {

// A piece of the reply, in order. A tool call is one `call`, any number of `arguments` and, if it was completed, one
// `call_end`, with nothing between them. A call without its end was cut off or turned out not to be one; a stream has
// shown its beginning by then, and a whole reply leaves it out.
struct ReplyPiece {
  enum class Kind { reasoning, content, call, arguments, call_end };
  Kind kind = Kind::content;
  // Valid UTF-8, never empty except for call_end. reasoning, content: the text. call: the tool's name, whole.
  // arguments: a piece of JSON text; all pieces of a completed call joined are one JSON object. A key that the model
  // wrote twice is there twice (readers of JSON take the last).
  std::string text;
};

}  // namespace tandem::chat
