// Grammars of contents and of tools' arguments.
#include "api/output_rules.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "api/errors.h"
#include "base/error.h"
#include "base/log.h"
#include "engine/reasoning_rule.h"
#include "engine/rule_list.h"
#include "grammar/argument_form.h"
#include "grammar/compiler.h"
#include "grammar/pattern.h"
#include "grammar/schema.h"

namespace tandem::api {

namespace {

using chat::JsonValue;
using grammar::Language;

// The field of the request first, then the place inside it.
ApiError in_field(const std::string& field, const Error& error) {
  std::string text = error.where().starts_with('#') ? error.where() + ": " : std::string();
  text += error.found();
  if (!error.expected().empty()) text += fmt::format("; expected {}", error.expected());
  return invalid_field(field, text);
}

const grammar::Compiler& compiler_of(const ServedModel& model, const std::string& field) {
  if (model.grammars != nullptr) return *model.grammars;
  throw ApiError(501, "server_error", fmt::format("{}: this server was built without structured output.", field), field,
                 "structured_output_unavailable");
}

class Builder {
 public:
  Builder(const FormRequest& request, const ServedModel& model) : request_(request), model_(model) {}

  std::shared_ptr<const grammar::Compiled> compile(Language language, const std::string& text,
                                                   const std::string& field) const {
    try {
      if (language == Language::regex) grammar::check_regex(text, "regex");
      return compiler_of(model_, field).compile({language, language == Language::json_schema ? prepared(text) : text});
    } catch (const Error& error) {
      if (error.code() != ErrorCode::usage) throw;
      throw in_field(field, error);
    }
  }

  std::shared_ptr<const grammar::Compiled> value() const {
    const OutputFormat& format = request_.format;
    switch (format.kind) {
      case OutputFormat::Kind::free: return nullptr;
      case OutputFormat::Kind::json_schema: return compile(Language::json_schema, format.text, format.field);
      case OutputFormat::Kind::regex: return compile(Language::regex, format.text, format.field);
      case OutputFormat::Kind::grammar: break;
    }
    return compile(Language::ebnf, format.text, format.field);
  }

  // The tools that calls may name; with free text only strict ones matter.
  std::vector<grammar::CallableTool> tools(bool is_constrained) const {
    std::vector<grammar::CallableTool> out;
    std::vector<Order> orders;
    for (size_t i = 0; i < request_.tools.size(); ++i) {
      const JsonValue tool = chat::parse_json(request_.tools[i], fmt::format("tools[{}]", i));
      const JsonValue* function = tool.find("function");
      const JsonValue& described = function != nullptr && function->object() != nullptr ? *function : tool;
      const JsonValue* name = described.find("name");
      if (name == nullptr || name->string() == nullptr) continue;
      if (!request_.calls.name.empty() && *name->string() != request_.calls.name) continue;
      const JsonValue* strict = described.find("strict");
      if (strict == nullptr) strict = tool.find("strict");
      const bool is_strict = strict != nullptr && strict->truthy();
      if (!is_strict && !is_constrained) continue;
      out.push_back(callable(*name->string(), described, is_strict, fmt::format("tools[{}].function.parameters", i),
                             out.size(), orders));
    }
    fill(orders, out);
    return out;
  }

 private:
  std::string prepared(const std::string& schema) const {
    const grammar::PreparedSchema out =
        grammar::prepare_schema(schema, {.open = false, .ignore_unsupported = request_.ignore_unsupported});
    for (const std::string& one : out.ignored) log(LogLevel::warning, "a schema's {} is not enforced", one);
    return out.text;
  }

  // A grammar that an argument waits for.
  struct Order {
    size_t tool, argument;
    grammar::Source source;
    std::string field;
    bool is_strict;
  };

  grammar::CallableTool callable(const std::string& name, const JsonValue& described, bool is_strict,
                                 const std::string& field, size_t place, std::vector<Order>& orders) const {
    grammar::CallableTool tool;
    tool.name = name;
    const JsonValue* parameters = described.find("parameters");
    if (parameters == nullptr) parameters = described.find("input_schema");
    const JsonValue* properties = parameters != nullptr ? parameters->find("properties") : nullptr;
    const JsonValue* others = parameters != nullptr ? parameters->find("additionalProperties") : nullptr;
    if (is_strict && parameters != nullptr) check_envelope(*parameters, field);
    const bool forbids_others = others != nullptr && others->boolean() != nullptr && !*others->boolean();
    // Without a schema of its parameters a function has none.
    tool.other_keys = (others != nullptr && !forbids_others) ||
                      (parameters != nullptr && properties == nullptr && !is_strict && !forbids_others);
    if (properties == nullptr || properties->object() == nullptr) return tool;
    for (const chat::JsonMember& member : *properties->object()) {
      if (member.key.empty()) continue;
      grammar::CallArgument argument;
      argument.key = member.key;
      argument.required = is_required(*parameters, member.key);
      auto form = form_of(argument, *parameters, is_strict, tool.other_keys, field);
      if (!form) continue;  // a key that must not come
      argument.literals = std::move(form->literals);
      if (form->source) orders.push_back({place, tool.arguments.size(), std::move(*form->source), field, is_strict});
      tool.arguments.push_back(std::move(argument));
    }
    return tool;
  }

  static bool is_required(const JsonValue& parameters, const std::string& key) {
    const JsonValue* required = parameters.find("required");
    if (required == nullptr || required->array() == nullptr) return false;
    return std::any_of(required->array()->begin(), required->array()->end(),
                       [&](const JsonValue& name) { return name.string() != nullptr && *name.string() == key; });
  }

  // Keywords beside the properties that a call in the model's own form cannot be held to.
  static void check_envelope(const JsonValue& parameters, const std::string& field) {
    constexpr auto known = std::to_array<std::string_view>({"type", "properties", "required", "additionalProperties",
                                                            "$defs", "definitions", "title", "description", "$schema",
                                                            "$id", "$comment", "default", "examples"});
    if (parameters.object() == nullptr) throw invalid_field(field, "expected an object");
    for (const chat::JsonMember& member : *parameters.object()) {
      if (std::find(known.begin(), known.end(), member.key) == known.end() && !member.key.starts_with("x-"))
        throw invalid_field(
            field, fmt::format(
                       "#: keyword '{}'; expected type, properties, required and additionalProperties of a strict tool",
                       member.key.substr(0, 64)));
    }
    const JsonValue* type = parameters.find("type");
    if (type != nullptr && (type->string() == nullptr || *type->string() != "object"))
      throw invalid_field(field, "#: keyword 'type'; expected 'object'");
    const JsonValue* others = parameters.find("additionalProperties");
    const bool is_plain =
        others == nullptr || others->boolean() != nullptr || (others->object() != nullptr && others->object()->empty());
    if (!is_plain)
      throw invalid_field(field, "#: keyword 'additionalProperties' with a schema; expected true or false");
    const JsonValue* required = parameters.find("required");
    const JsonValue* properties = parameters.find("properties");
    if (required == nullptr || required->array() == nullptr) return;
    for (const JsonValue& name : *required->array()) {
      if (name.string() != nullptr && (properties == nullptr || properties->find(*name.string()) == nullptr))
        throw invalid_field(field, fmt::format("#: keyword 'required' with '{}'; expected a name that is in properties",
                                               name.string()->substr(0, 64)));
    }
  }

  // Empty: the tool is not called with this key.
  std::optional<grammar::ArgumentForm> form_of(const grammar::CallArgument& argument, const JsonValue& parameters,
                                               bool is_strict, bool other_keys, const std::string& field) const {
    const std::string place = "#/properties/" + grammar::pointer_step(argument.key);
    try {
      std::vector<std::string> ignored;
      const grammar::SchemaOptions options{.open = false, .ignore_unsupported = request_.ignore_unsupported};
      auto form = grammar::argument_form(parameters, place, options, ignored);
      for (const std::string& one : ignored) log(LogLevel::warning, "a schema's {} is not enforced", one);
      return form;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::usage) throw;
      if (is_strict) {
        const bool is_impossible = error.found() == grammar::satisfied_by_nothing && error.where() == place;
        if (is_impossible && !argument.required && !other_keys) return std::nullopt;
        throw in_field(field, error);
      }
      log(LogLevel::debug, "argument '{}' of a tool that is not strict may be any text: {}", argument.key,
          error.what());
      return grammar::ArgumentForm{};
    }
  }

  // All are begun with before the first is waited for.
  void fill(const std::vector<Order>& orders, std::vector<grammar::CallableTool>& tools) const {
    if (orders.empty()) return;
    const grammar::Compiler& compiler = compiler_of(model_, "tools");
    const auto until = compiler.wait_until();
    for (const Order& order : orders) compiler.prepare(order.source);
    for (const Order& order : orders) {
      try {
        tools[order.tool].arguments[order.argument].grammar = compiler.compile(order.source, until);
      } catch (const Error& error) {
        if (error.code() != ErrorCode::usage) throw;
        if (order.is_strict) throw in_field(order.field, error);
        log(LogLevel::debug, "an argument of a tool that is not strict may be any text: {}", error.what());
      }
    }
  }

  const FormRequest& request_;
  const ServedModel& model_;
};

}  // namespace

std::shared_ptr<const grammar::OutputForm> make_output_form(const FormRequest& request, const ServedModel& model) {
  const CallDemand& calls = request.calls;
  const bool has_format = !request.format.is_free();
  if (has_format && calls.is_required)
    throw invalid_field("tool_choice", fmt::format("a required call together with {}", request.format.field));
  const Builder builder(request, model);
  const bool is_constrained = has_format || calls.is_required;
  grammar::OutputForm form;
  form.reasoning_open = request.reasoning_open;
  form.value = builder.value();
  form.blanks_before_value = request.format.kind == OutputFormat::Kind::json_schema;
  form.one_call = calls.one_call || !calls.name.empty();
  form.ends = request.ends;
  if (calls.is_offered) {
    form.calls = calls.is_required ? grammar::OutputForm::Calls::required : grammar::OutputForm::Calls::allowed;
    form.tools = builder.tools(is_constrained);
  }
  if (!is_constrained && form.tools.empty()) return nullptr;
  (void)compiler_of(model, has_format ? request.format.field : calls.is_required ? "tool_choice" : "tools");
  if (!form.tools.empty() && !grammar::MarkerTokens::of(*model.tokenizer).can_call())
    throw invalid_field("tools", "this model's tokenizer has no tokens for calls");
  return std::make_shared<const grammar::OutputForm>(std::move(form));
}

std::shared_ptr<engine::TokenRule> make_reply_rule(const ReplyRules& rules, const ServedModel& model) {
  std::vector<std::shared_ptr<engine::TokenRule>> all;
  const auto markers = grammar::MarkerTokens::of(*model.tokenizer);
  if (rules.reasoning_open && markers.think_end >= 0 &&
      (!rules.masked_in_reasoning.empty() || rules.thinking_budget >= 0)) {
    all.push_back(
        std::make_shared<engine::ReasoningRule>(markers.think_end, rules.masked_in_reasoning, rules.thinking_budget));
  }
  if (rules.form != nullptr) {
    auto rule = std::make_shared<grammar::OutputRule>(model.grammars->vocabulary(), markers, rules.form);
    if (!rules.beginning.empty() && !rules.reasoning_open && !rule->begin_with(rules.beginning))
      throw invalid_field("messages", "the last message is no beginning of a reply in the form that is asked for");
    all.push_back(std::move(rule));
  }
  return engine::RuleList::of(std::move(all));
}

std::vector<int32_t> turn_markers(const ServedModel& model) {
  std::vector<int32_t> ids;
  for (const auto* marker : {"<|observation|>", "<|user|>", "<|assistant|>"}) {
    if (const auto id = model.tokenizer->added_token(marker)) ids.push_back(*id);
  }
  return ids;
}

}  // namespace tandem::api
