// One tool call of a reply, from the token after its <tool_call> to its end (spec/frontend.md C.8, TOOL):
//
//   name (<arg_key>key</arg_key><arg_value>value</arg_value>)* </tool_call>
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "chat/reply_piece.h"
#include "chat/tool_values.h"
#include "text/tokenizer.h"

namespace tandem::chat {

// Ids of the markup tokens; -1 where the tokenizer has none.
struct CallMarkup {
  int32_t call, call_end, key, key_end, value, value_end;

  explicit CallMarkup(const text::Tokenizer& tokenizer);
};

// Structure is recognised as tokens; the same words spelled by ordinary tokens are text. Names and keys are held until
// they are whole; values that can only be strings are passed on as they come, others when they are closed.
class CallParser {
 public:
  // Both must outlive the parser.
  CallParser(const CallMarkup& markup, const ToolSchemas& schemas) : markup_(&markup), schemas_(&schemas) {}

  enum class Step {
    more,             // the token was taken
    complete,         // the token was taken and ended the call
    complete_before,  // the call had ended before this token, which was not taken
    rejected,         // this is no call; the token was not taken, and raw() is text
  };
  // `bytes`: what the token adds to a text.
  Step push(int32_t id, std::string_view bytes, std::vector<ReplyPiece>& out);
  // The model has stopped: completes a call that lacks nothing but its end. False: it lacks more; raw() is text.
  bool finish(std::vector<ReplyPiece>& out);

  // The next token is text unless it closes the value.
  bool in_value() const { return state_ == State::value; }
  // A piece has been given out, or a name that may be called was followed by a call's markup: this is more than a
  // mention of the marker.
  bool begun() const { return begun_ || state_ != State::head; }
  // Bytes of the tokens taken.
  const std::string& raw() const { return raw_; }

 private:
  enum class State {
    head,      // the name, or what looks like another model's format
    key,       // between <arg_key> and </arg_key>
    key_done,  // white space before <arg_value>
    value,     // between <arg_value> and </arg_value>
    between,   // after a value
  };

  Step advance(int32_t id, std::string_view bytes, std::vector<ReplyPiece>& out);
  Step head(int32_t id, std::string_view bytes, std::vector<ReplyPiece>& out);
  Step key(int32_t id, std::string_view bytes, std::vector<ReplyPiece>& out);
  Step key_done(int32_t id, std::string_view bytes, std::vector<ReplyPiece>& out);
  Step value(int32_t id, std::string_view bytes, std::vector<ReplyPiece>& out);
  Step between(int32_t id, std::string_view bytes, std::vector<ReplyPiece>& out);
  Step foreign_call(std::vector<ReplyPiece>& out);

  bool acceptable(std::string_view name) const;
  bool split_head();
  void begin(std::vector<ReplyPiece>& out);
  void begin_value(std::vector<ReplyPiece>& out);
  void add_to_value(const std::string& text, std::vector<ReplyPiece>& out);
  void end_value(std::optional<std::size_t> spelled_end, std::vector<ReplyPiece>& out);
  void end(std::vector<ReplyPiece>& out);

  const CallMarkup* markup_;
  const ToolSchemas* schemas_;
  State state_ = State::head;
  bool begun_ = false;
  int arguments_ = 0;  // complete ones
  std::string raw_;
  std::string name_, key_;
  std::string part_;  // text of the state so far: bytes; in a value: valid UTF-8 not yet given out
  JsonTypes types_;   // of the value
  text::Utf8Stream utf8_;
};

}  // namespace tandem::chat
