// Flat functions, custom tools, namespaces.
#include "api/responses_tools.h"

#include <fmt/core.h>

#include <optional>
#include <unordered_set>
#include <utility>

#include "api/tool_definitions.h"
#include "base/log.h"
#include "chat/json.h"

namespace tandem::api {

namespace {

using chat::Field;

constexpr std::string_view arguments_head = R"({"input": ")";
constexpr std::string_view name_marks = ".:";  // allowed beside letters, digits, "_" and "-" (D.2)

// What the model is told of the text: the grammar that the client will check it by, if there is one.
std::string input_schema(const Field& tool) {
  std::string about = "The whole input, as it stands.";
  if (const auto format = tool.get("format"); format && format->object().has("definition")) {
    const auto syntax = format->get("syntax");
    about = fmt::format("The whole input, in the language of this {} grammar:\n{}",
                        syntax ? syntax->string() : std::string("formal"),
                        format->require("definition", "the text of the grammar").string());
  }
  std::string schema = R"({"type": "object", "properties": {"input": {"type": "string", "description": )";
  chat::print_python_json(std::string_view(about), schema);
  return schema += R"(}}, "required": ["input"]})";
}

class ToolReader {
 public:
  void read(const Field& tool, std::string_view name_space) {
    const Field type = tool.object().require("type", "function, custom or namespace");
    if (type.string() == "function" || type.string() == "custom") {
      add(tool, name_space, type.string() == "custom");
    } else if (type.string() == "namespace" && name_space.empty()) {
      const Field name = tool.require("name", "the name of the namespace");
      if (name.string().empty()) name.unexpected("a name");
      const Field inner = tool.require("tools", "a list of tools");
      const size_t count = inner.list_size();
      for (size_t i = 0; i < count; ++i) read(inner.at(i), name.string());
    } else {
      log(LogLevel::info, "responses request: a tool of type {} is not offered to the model",
          chat::quoted(type.string()));
    }
  }

  ResponsesTools tools;

 private:
  void add(const Field& tool, std::string_view name_space, bool custom) {
    const Field name = tool.require("name", "the name of the tool");
    const std::string shown = shown_tool_name(name_space, name.string());
    add_tool_name(name, name.string().empty() ? name.string() : shown, name_marks, names_);
    std::string definition;
    if (custom) {
      const chat::JsonValue schema = chat::parse_json(input_schema(tool), name.path());
      definition = tool_definition(shown, tool.get("description"), Field(schema, name.path()));
    } else {
      definition = tool_definition(shown, tool.get("description"), tool.get("parameters"));
    }
    if (const auto deferred = tool.get("defer_loading"); deferred && deferred->boolean()) {
      definition.pop_back();
      definition += R"(, "defer_loading": true})";
    }
    tools.definitions.push_back(std::move(definition));
    tools.origins.emplace(shown, ToolOrigin{name.string(), std::string(name_space), custom});
  }

  std::unordered_set<std::string> names_;
};

// The character of a JSON escape at text[at] == '\\' and the bytes that it takes; none: it is not complete.
std::optional<std::pair<std::string, size_t>> read_escape(std::string_view text, size_t at) {
  if (at + 1 >= text.size()) return std::nullopt;
  if (text[at + 1] != 'u') {
    const std::string quoted = fmt::format("\"{}\"", text.substr(at, 2));
    return std::pair(*chat::parse_json(quoted, "input").string(), size_t{2});
  }
  if (at + 6 > text.size()) return std::nullopt;
  size_t length = 6;
  const bool high_surrogate = at + 3 < text.size() && (text[at + 2] == 'd' || text[at + 2] == 'D') &&
                              std::string_view("89abAB").find(text[at + 3]) != std::string_view::npos;
  if (high_surrogate) {
    if (at + 12 > text.size()) return std::nullopt;
    length = 12;
  }
  const std::string quoted = fmt::format("\"{}\"", text.substr(at, length));
  return std::pair(*chat::parse_json(quoted, "input").string(), length);
}

}  // namespace

ToolOrigin ResponsesTools::origin_of(std::string_view shown_name) const {
  const auto found = origins.find(shown_name);
  return found != origins.end() ? found->second : ToolOrigin{std::string(shown_name), {}, false};
}

std::string shown_tool_name(std::string_view name_space, std::string_view name) {
  if (name_space.empty()) return std::string(name);
  const bool has_end = name_space.find_first_of("_.:-", name_space.size() - 1) != std::string_view::npos;
  return fmt::format("{}{}{}", name_space, has_end ? "" : "__", name);
}

ResponsesTools read_responses_tools(const Field& body) {
  ToolReader reader;
  if (const auto list = body.get("tools")) {
    const size_t count = list->list_size();
    for (size_t i = 0; i < count; ++i) reader.read(list->at(i), {});
  }
  return std::move(reader.tools);
}

std::string CustomInput::push(std::string_view piece) {
  arguments_ += piece;
  std::string added;
  if (state_ == State::before && arguments_.size() >= arguments_head.size() && arguments_.starts_with(arguments_head)) {
    state_ = State::inside;
    at_ = arguments_head.size();
  }
  while (state_ == State::inside && at_ < arguments_.size()) {
    const char c = arguments_[at_];
    if (c == '"') {
      state_ = State::after;
    } else if (c == '\\') {
      const auto escape = read_escape(arguments_, at_);
      if (!escape) break;
      added += escape->first;
      at_ += escape->second;
    } else {
      added += c;
      ++at_;
    }
  }
  text_ += added;
  return added;
}

std::string CustomInput::finish() {
  if (state_ != State::before) return {};
  text_ = arguments_;
  return text_;
}

std::string custom_arguments(std::string_view input) {
  std::string out = R"({"input": )";
  chat::print_python_json(input, out);
  return out += '}';
}

}  // namespace tandem::api
