// The prompt of a conversation, turn by turn, in the order of spec/frontend.md C.2.
#include "chat/render.h"

#include <fmt/core.h>

#include <algorithm>
#include <unordered_map>

#include "base/error.h"
#include "chat/json.h"
#include "chat/tool_results.h"

namespace tandem::chat {
namespace {

constexpr std::string_view kToolsHead =
    "<|system|>\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n";
constexpr std::string_view kToolsTail =
    "</tools>\n\nFor each function call, output the function name and arguments within the following XML format:\n"
    "<tool_call>{function-name}<arg_key>{arg-key-1}</arg_key><arg_value>{arg-value-1}</arg_value>"
    "<arg_key>{arg-key-2}</arg_key><arg_value>{arg-value-2}</arg_value>...</tool_call>";
constexpr std::string_view kImage = "<|begin_of_image|><|image|><|end_of_image|>";
constexpr std::string_view kVideo = "<|begin_of_video|><|video|><|end_of_video|>";
constexpr std::string_view kAudio = "<|begin_of_audio|><|end_of_audio|>";
constexpr std::string_view kThink = "<think>";
constexpr std::string_view kThinkEnd = "</think>";

// One offered tool as its line of the tool block shows it (C.3).
struct ToolLine {
  std::string name;
  std::string line;
  bool deferred = false;
};

ToolLine tool_line(std::string_view tool_json, std::size_t index) {
  const std::string where = fmt::format("tools[{}]", index);
  const JsonValue tool = parse_json(tool_json, where);
  const JsonValue* nested = tool.find("function");
  const JsonValue::Object* function = (nested ? *nested : tool).object();
  if (function == nullptr) throw Error(ErrorCode::usage, where, "not an object", "a function definition");
  ToolLine out;
  out.line = "{";
  for (const auto& [key, value] : *function) {
    if (key == "name" && value.string() != nullptr) out.name = *value.string();
    if (key == "defer_loading") out.deferred = value.truthy();
    if (key == "defer_loading" || key == "strict") continue;
    if (out.line.size() > 1) out.line += ", ";
    out.line += '"';
    out.line += key;  // the template prints the top-level keys raw
    out.line += "\": ";
    print_python_json(value, out.line);
  }
  out.line += '}';
  return out;
}

// Python's str.strip(): White_Space and U+001C..U+001F. Returns the length of the space character at the front or back
// of `text`, 0 if there is none.
std::size_t space_at(std::string_view text, bool front) {
  if (text.empty()) return 0;
  const auto is_ascii_space = [](char c) { return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20); };
  if (is_ascii_space(front ? text.front() : text.back())) return 1;
  for (const std::string_view space :
       {"\u0085", "\u00A0", "\u1680", "\u2000", "\u2001", "\u2002", "\u2003", "\u2004", "\u2005", "\u2006", "\u2007",
        "\u2008", "\u2009", "\u200A", "\u2028", "\u2029", "\u202F", "\u205F", "\u3000"}) {
    if (front ? text.starts_with(space) : text.ends_with(space)) return space.size();
  }
  return 0;
}

std::string_view strip_front(std::string_view text) {
  while (const std::size_t n = space_at(text, true)) text.remove_prefix(n);
  return text;
}

std::string_view strip(std::string_view text) {
  text = strip_front(text);
  while (const std::size_t n = space_at(text, false)) text.remove_suffix(n);
  return text;
}

class Renderer {
 public:
  explicit Renderer(const Conversation& conversation) : conversation_(conversation) {}

  Prompt run() {
    PromptBorders& borders = prompt_.borders;
    owned("[gMASK]<sop>");
    borders.effort_begin = border();
    effort_line();
    borders.effort_end = border();
    tool_block();
    const std::vector<Message>& messages = conversation_.messages;
    find_last_user();
    borders.messages = border();
    std::size_t i = 0;
    while (i < messages.size() && messages[i].role == Role::system) turn("<|system|>", messages[i++]);
    borders.system_end = border();
    while (i < messages.size()) {
      switch (messages[i].role) {
        case Role::system: turn("<|system|>", messages[i++]); break;
        case Role::user: turn("<|user|>", messages[i++]); break;
        case Role::assistant: assistant(i++); break;
        case Role::tool: i = tool_run(i); break;
        case Role::other: ++i; break;
      }
    }
    borders.history_end = border();
    if (conversation_.add_generation_prompt) {
      owned("<|assistant|><think>");
      if (!conversation_.thinking) owned(kThinkEnd);
      prompt_.reasoning_open = conversation_.thinking;
    }
    return std::move(prompt_);
  }

 private:
  void append(std::string_view text, text::AddedTokens kind) {
    if (text.empty()) return;
    if (prompt_.segments.size() == border_ || prompt_.segments.back().added_tokens != kind)
      prompt_.segments.push_back({{}, kind});
    prompt_.segments.back().text += text;
  }
  // The next text begins a segment of its own; returns that segment's index. It must begin with a role marker or follow
  // <think>.
  std::size_t border() { return border_ = prompt_.segments.size(); }
  // Text of the template, whose markers are tokens; and text of the conversation, whose markers must stay plain (B.6).
  void owned(std::string_view text) { append(text, text::AddedTokens::recognise); }
  void literal(std::string_view text) { append(text, text::AddedTokens::literal); }

  void effort_line() {
    if (!conversation_.thinking && !conversation_.effort_line_when_off) return;
    owned("<|system|>Reasoning Effort: ");
    switch (conversation_.effort) {
      case Effort::low: owned("Low"); break;
      case Effort::high: owned("High"); break;
      case Effort::max: owned("Max"); break;
    }
  }

  void tool_block() {
    if (conversation_.tools.empty()) return;
    for (std::size_t i = 0; i < conversation_.tools.size(); ++i) {
      tools_.push_back(tool_line(conversation_.tools[i], i));
      tools_by_name_[tools_.back().name].push_back(i);
    }
    owned(kToolsHead);
    for (const ToolLine& tool : tools_) {
      if (tool.deferred) continue;
      literal(tool.line);
      owned("\n");
    }
    owned(kToolsTail);
  }

  void find_last_user() {
    const std::vector<Message>& messages = conversation_.messages;
    for (std::size_t i = 0; i < messages.size(); ++i) {
      if (messages[i].role == Role::user) after_last_user_ = i + 1;
    }
  }

  void content(const Message& message) {
    if (message.content_is_null) owned("None");
    for (const Part& part : message.content) {
      switch (part.kind) {
        case Part::Kind::text: literal(part.text); break;
        case Part::Kind::image: owned(kImage); break;
        case Part::Kind::video: owned(kVideo); break;
        case Part::Kind::audio: owned(kAudio); break;
        case Part::Kind::tool_reference:
        case Part::Kind::output:
        case Part::Kind::other: break;
      }
    }
  }

  void turn(std::string_view marker, const Message& message) {
    owned(marker);
    content(message);
  }

  // The text of an assistant message is split and stripped as a whole, so it is joined first; media in it (which a
  // normalised conversation cannot have) is then plain text.
  std::string joined_content(const Message& message) {
    Renderer part(conversation_);
    part.content(message);
    return part.prompt_.text();
  }

  void assistant(std::size_t index) {
    const Message& message = conversation_.messages[index];
    owned("<|assistant|>");
    const std::string joined = joined_content(message);
    std::string_view text = joined;
    std::optional<std::string_view> reasoning = message.reasoning_content;
    if (const std::size_t first_end = text.find(kThinkEnd); !reasoning && first_end != std::string_view::npos) {
      const std::string_view before = text.substr(0, first_end);
      const std::size_t opener = before.rfind(kThink);
      reasoning = opener == std::string_view::npos ? before : before.substr(opener + kThink.size());
      text = text.substr(text.rfind(kThinkEnd) + kThinkEnd.size());
    }
    owned(kThink);
    const std::size_t begin = border();
    reply(message, index, text, reasoning);
    prompt_.replies.push_back({begin, border()});
  }

  void reply(const Message& message, std::size_t index, std::string_view text,
             std::optional<std::string_view> reasoning) {
    if (reasoning && (!conversation_.clear_thinking || index >= after_last_user_)) literal(*reasoning);
    const bool is_open = conversation_.continue_final_message && index + 1 == conversation_.messages.size() &&
                         message.tool_calls.empty();
    if (is_open && reasoning && !reasoning->empty() && strip(text).empty()) {
      prompt_.reasoning_open = true;  // the reply goes on inside the reasoning
      return;
    }
    owned(kThinkEnd);
    literal(is_open ? strip_front(text) : strip(text));  // what is continued keeps the spaces at its end (C.7)
    for (std::size_t i = 0; i < message.tool_calls.size(); ++i) {
      tool_call(message.tool_calls[i], fmt::format("messages[{}].tool_calls[{}].function.arguments", index, i));
    }
  }

  void tool_call(const ToolCall& call, const std::string& where) {
    const JsonValue arguments = parse_json(call.arguments, where);
    if (arguments.object() == nullptr) throw Error(ErrorCode::usage, where, "not an object", "an object");
    owned("<tool_call>");
    literal(call.name);
    for (const auto& [key, value] : *arguments.object()) {
      owned("<arg_key>");
      literal(key);
      owned("</arg_key><arg_value>");
      if (value.string() != nullptr) {
        literal(*value.string());
      } else {
        std::string printed;
        print_python_json(value, printed);
        literal(printed);
      }
      owned("</arg_value>");
    }
    owned("</tool_call>");
  }

  // Renders the run of tool messages that begins at `begin`; returns the index after it.
  std::size_t tool_run(std::size_t begin) {
    const std::vector<Message>& messages = conversation_.messages;
    std::size_t end = begin;
    while (end < messages.size() && messages[end].role == Role::tool) ++end;
    const Message* caller = begin > 0 && messages[begin - 1].role == Role::assistant ? &messages[begin - 1] : nullptr;
    owned("<|observation|>");
    for (const ToolResult& result : ordered_results(std::span(messages).subspan(begin, end - begin), caller)) {
      owned("<tool_response>");
      if (result.output != nullptr) {
        literal(result.output->text);
      } else if (!result.message->content.empty() &&
                 result.message->content.front().kind == Part::Kind::tool_reference) {
        referenced_tools(*result.message);
      } else {
        content(*result.message);
      }
      owned("</tool_response>");
    }
    return end;
  }

  void referenced_tools(const Message& message) {
    owned("<tools>\n");
    for (const Part& part : message.content) {
      const auto found = tools_by_name_.find(part.text);
      if (part.kind != Part::Kind::tool_reference || found == tools_by_name_.end()) continue;
      for (const std::size_t index : found->second) {
        literal(tools_[index].line);
        owned("\n");
      }
    }
    owned("</tools>");
  }

  const Conversation& conversation_;
  Prompt prompt_;
  std::size_t border_ = 0;  // number of segments that are complete
  std::vector<ToolLine> tools_;
  std::unordered_map<std::string, std::vector<std::size_t>> tools_by_name_;
  std::size_t after_last_user_ = 0;  // reasoning from this message on is never cleared
};

}  // namespace

std::string Prompt::text() const {
  std::string out;
  for (const text::TextSegment& segment : segments) out += segment.text;
  return out;
}

Prompt render(const Conversation& conversation) { return Renderer(conversation).run(); }

std::vector<text::TextSegment> render_reply(const Message& message) {
  Conversation conversation;
  conversation.messages.push_back(message);
  const Prompt prompt = render(conversation);
  const Prompt::Span& span = prompt.replies.at(0);
  return {prompt.segments.begin() + static_cast<std::ptrdiff_t>(span.begin),
          prompt.segments.begin() + static_cast<std::ptrdiff_t>(span.end)};
}

}  // namespace tandem::chat
