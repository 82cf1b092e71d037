// Tools of a responses body (spec/frontend.md D.6) as functions that the model can call, and the way back from the name
// that the model calls to the tool that the client meant.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "chat/field.h"

namespace tandem::api {

// What the client calls a tool.
struct ToolOrigin {
  std::string name;
  std::string name_space;  // empty: none
  bool custom = false;     // its input is one text instead of a JSON object
};

struct ResponsesTools {
  std::vector<std::string> definitions;                    // as in chat::Conversation::tools
  std::map<std::string, ToolOrigin, std::less<>> origins;  // by the name that the model sees

  // Of a name that the model called; one that was not offered stands for a function of that name.
  ToolOrigin origin_of(std::string_view shown_name) const;
};

// The name under which the model sees a tool: inside a namespace both names joined, so that tools of two namespaces can
// have one name. "mcp__files__" and "read" are "mcp__files__read"; "files" and "read" are "files__read".
std::string shown_tool_name(std::string_view name_space, std::string_view name);

// Of `tools` in the body: functions, custom tools (offered as functions of one string `input`) and namespaces of both.
// Tools of other types run on OpenAI's servers: they are left out and logged. Throws Error(usage) naming the field.
ResponsesTools read_responses_tools(const chat::Field& body);

// The input of a custom tool from the arguments of the function that stood for it, as they come.
class CustomInput {
 public:
  // The next piece of the arguments; returns what it adds to the input, valid UTF-8.
  std::string push(std::string_view piece);
  // All pieces have been pushed; returns the rest of the input. Arguments that are not {"input": "text"} are the input
  // as they stand.
  std::string finish();
  // All that was returned.
  const std::string& text() const { return text_; }

 private:
  enum class State { before, inside, after };
  State state_ = State::before;
  std::string arguments_;
  size_t at_ = 0;  // of the arguments, first byte not yet read
  std::string text_;
};

// The arguments that stand for an input: {"input": "text"}.
std::string custom_arguments(std::string_view input);

}  // namespace tandem::api
