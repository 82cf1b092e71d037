// A conversation as plain structs. JSON values that must keep their order and spelling (tool definitions, call
// arguments) stay JSON text here.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::chat {

enum class Role { system, user, assistant, tool, other };  // other: renders nothing (the hub template)

// One part of a content list. Media parts carry no data yet (vision is a later issue).
struct Part {
  enum class Kind { text, image, video, audio, tool_reference, output, other };
  Kind kind = Kind::text;
  std::string text;  // text; tool_reference: the tool's name; output: text of the output
  std::string id;    // output: id of the call that it answers; empty: none
};

struct ToolCall {
  std::string id;  // empty: none
  std::string name;
  std::string arguments;  // JSON object text, key order kept
};

struct Message {
  Role role = Role::user;
  bool content_is_null = false;  // only before normalisation (renders "None")
  bool content_is_list = false;
  std::vector<Part> content;  // one text part for a plain string
  std::optional<std::string> reasoning_content;
  std::vector<ToolCall> tool_calls;
  std::string tool_call_id;  // role tool; empty: none
};

enum class Effort { low, high, max };

struct Conversation {
  std::vector<Message> messages;
  std::vector<std::string> tools;  // JSON text of each element of `tools`, as received
  Effort effort = Effort::max;
  bool thinking = true;               // false: extension of C.7, the generation prompt closes the think block
  bool effort_line_when_off = false;  // print the effort line with thinking off too (a server setting, C.7)
  bool clear_thinking = false;
  bool add_generation_prompt = true;
  // The reply goes on where the last message, an assistant's, ends (C.7); add_generation_prompt is then false.
  bool continue_final_message = false;
};

// What stands in place of a picture that the model cannot see (A.7).
inline constexpr std::string_view kPictureReminder =
    "<reminder>You are unable to process this image because you don't have multi-modal input ability. Try different "
    "methods.</reminder>";

// Reads the fields of a chat body that shape the prompt: messages, tools, reasoning_effort, chat_template_kwargs,
// thinking, reasoning, add_generation_prompt, clear_thinking (spec/frontend.md C.4, C.7, D.2, D.3). Other fields are
// ignored, null is absent. `normalise` applies the server-side rules of C.4 and the effort mapping of C.7; without it
// the fields mean what the hub template makes of them (golden template cases), and chat_template_kwargs, thinking and
// reasoning are not read. Pictures, normalised (this server takes text only so far, A.7): in tool results and older
// user messages they become kPictureReminder; in the newest user message, in system and in assistant messages they are
// an error. Throws Error(usage) whose where() is the path of the field ("messages[2].content[0].type"), or "body" if
// the text is not a JSON object in UTF-8 of at most 128 nested levels.
Conversation parse_conversation(std::string_view body_json, bool normalise = true);

class Field;

// The fields of parse_conversation beside messages and tools, normalised, for dialects that have them too.
void read_switches(const Field& body, Conversation& conversation);

}  // namespace tandem::chat
