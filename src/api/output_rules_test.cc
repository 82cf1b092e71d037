// Fields that ask for a form of the reply, and the rules that they become.
#include "api/output_rules.h"

#include <fmt/core.h>

#include <algorithm>

#include "api/completions.h"
#include "api/errors.h"
#include "api/output_format.h"
#include "api/service_fixture.h"

namespace tandem::api::output_rules_test {
namespace {

using Kind = OutputFormat::Kind;

OutputFormat format_of(const std::string& fields) {
  const std::string body = "{" + fields + "}";
  return read_output_format(JsonBody::parse(body), body);
}

TEST(OutputFormat, EverySpelling) {
  EXPECT_TRUE(format_of("").is_free());
  EXPECT_TRUE(
      format_of(R"("response_format":{"type":"text"},"guided_json":null,"grammar":"","json_schema":null)").is_free());
  const auto check = [](const std::string& fields, Kind kind, const std::string& text, const std::string& field) {
    const OutputFormat format = format_of(fields);
    EXPECT_EQ(format.kind, kind) << fields;
    EXPECT_EQ(format.text, text) << fields;
    EXPECT_EQ(format.field, field) << fields;
  };
  check(R"("response_format":{"type":"json_object"})", Kind::json_schema, R"({"type":"object"})", "response_format");
  // The order of keys is the order of the reply.
  check(R"("response_format":{"type":"json_schema","json_schema":{"name":"x","strict":true,"schema":{"z":1,"a":2.0}}})",
        Kind::json_schema, R"({"z": 1, "a": 2.0})", "response_format.json_schema.schema");
  check(R"("response_format":{"type":"json_schema","json_schema":{"name":"x"}})", Kind::json_schema, "{}",
        "response_format");
  check(R"("structured_outputs":{"json":"{\"type\":\"null\"}"})", Kind::json_schema, R"({"type":"null"})",
        "structured_outputs.json");
  check(R"("structured_outputs":{"json":{"type":"null"},"disable_any_whitespace":false})", Kind::json_schema,
        R"({"type": "null"})", "structured_outputs.json");
  check(R"("structured_outputs":{"json_object":true})", Kind::json_schema, R"({"type":"object"})",
        "structured_outputs.json_object");
  check(R"("structured_outputs":{"regex":"a+"})", Kind::regex, "a+", "structured_outputs.regex");
  check(R"("structured_outputs":{"choice":["a","b\"\n"]})", Kind::grammar, "root ::= \"a\" | \"b\\\"\\u000a\"\n",
        "structured_outputs.choice");
  check(R"("guided_json":{"type":"null"})", Kind::json_schema, R"({"type": "null"})", "guided_json");
  check(R"("guided_regex":"a")", Kind::regex, "a", "guided_regex");
  check(R"("guided_choice":["yes","no"])", Kind::grammar, "root ::= \"yes\" | \"no\"\n", "guided_choice");
  for (const auto* name : {"guided_grammar", "grammar", "ebnf"})
    check(std::string("\"") + name + R"(":"root ::= \"a\"")", Kind::grammar, "root ::= \"a\"", name);
  check(R"("json_schema":{"type":"null"})", Kind::json_schema, R"({"type": "null"})", "json_schema");
  check(R"("regex":"a")", Kind::regex, "a", "regex");
}

TEST(OutputFormat, WhatItRefusesIsNamed) {
  const auto refused = [](const std::string& fields) -> std::string {
    try {
      (void)format_of(fields);
    } catch (const ApiError& error) {
      return error.param();
    }
    return "accepted";
  };
  EXPECT_EQ(refused(R"("response_format":"text")"), "response_format");
  EXPECT_EQ(refused(R"("response_format":{})"), "response_format.type");
  EXPECT_EQ(refused(R"("response_format":{"type":"xml"})"), "response_format.type");
  EXPECT_EQ(refused(R"("response_format":{"type":"json_schema"})"), "response_format.json_schema");
  EXPECT_EQ(refused(R"("response_format":{"type":"structural_tag"})"), "response_format");
  EXPECT_EQ(refused(R"("structured_outputs":{})"), "structured_outputs");
  EXPECT_EQ(refused(R"("structured_outputs":{"regexp":"a"})"), "structured_outputs.regexp")
      << "a typo must not lose the constraint";
  EXPECT_EQ(refused(R"("structured_outputs":{"regex":"a","choice":["a"]})"), "structured_outputs");
  EXPECT_EQ(refused(R"("structured_outputs":{"json":{},"whitespace_pattern":" "})"),
            "structured_outputs.whitespace_pattern");
  EXPECT_EQ(refused(R"("guided_choice":[1])"), "guided_choice[0]");
  EXPECT_EQ(refused(R"("guided_choice":"a")"), "guided_choice");
  EXPECT_EQ(refused(R"("guided_choice":[])"), "guided_choice");
  EXPECT_EQ(refused(R"("structured_outputs":{"regex":""})"), "structured_outputs.regex");
  EXPECT_EQ(refused(R"("guided_regex":5)"), "guided_regex");
  for (const std::string name : {"guided_json", "guided_regex", "guided_grammar", "regex", "ebnf"}) {
    for (const auto* value : {"\"\"", "0", "[]"})
      EXPECT_EQ(refused('"' + name + "\":" + value), name) << value << " must not lose the constraint";
  }
  EXPECT_EQ(refused(R"("guided_json":[1])"), "guided_json");
  EXPECT_EQ(refused(R"("guided_regex":"a","response_format":{"type":"json_object"})"), "guided_regex");
}

class OutputRulesTest : public ServiceTest {
 protected:
  void SetUp() override {
    if (!grammar::is_available()) GTEST_SKIP() << "built without xgrammar";
  }

  static engine::Request request_of(const std::string& fields) {
    Setup setup;
    const auto responder = setup.chat(fields);
    EXPECT_EQ(responder->replies.size(), 0u) << (responder->replies.empty() ? "" : responder->replies[0].body);
    return setup.engine.request();
  }
  static std::string error_of(const std::string& fields) {
    Setup setup;
    const auto responder = setup.chat(fields);
    return responder->replies.empty() ? "accepted" : responder->replies[0].body;
  }
  // "complete", "open", or the text before the first token that is refused.
  static std::string run(const engine::Request& request, const std::string& text) {
    std::string taken;
    for (const int32_t id : model_->ids(text)) {
      std::vector<uint32_t> bits(2048 / 32, ~uint32_t{0});
      if (request.rule->masks()) request.rule->mask(bits);
      if ((bits[static_cast<size_t>(id) / 32] >> (id % 32) & 1) == 0) return "refused after " + taken;
      if (id == model_->id("<|user|>") || id == model_->id("<|observation|>") || id == model_->id("<|endoftext|>"))
        return "ended";
      request.rule->accept(id);
      taken += model_->tokenizer.token_bytes(id);
    }
    return request.rule->is_finished() ? "complete" : "open";
  }
};

constexpr const char* schema_fields =
    R"("response_format":{"type":"json_schema","json_schema":{"name":"n","schema":{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]}}})";
constexpr const char* tool_fields =
    R"("tools":[{"type":"function","function":{"name":"add","parameters":{"type":"object","properties":{"n":{"type":"integer"},)"
    R"("unit":{"enum":["C","F"]},"text":{"type":"string"}},"required":["n"]}}}])";

// spec/frontend.md C.8 a: a turn does not end while reasoning is open, except by <|endoftext|>.
TEST_F(OutputRulesTest, TurnsDoNotEndInReasoning) {
  for (const auto* marker : {"<|user|>", "<|observation|>", "<|assistant|>"}) {
    EXPECT_EQ(run(request_of(""), std::string("Hm.") + marker), "refused after Hm.") << marker;
  }
  EXPECT_EQ(run(request_of(""), "Hm.<|endoftext|>"), "ended");
  EXPECT_EQ(run(request_of(""), "Hm.</think>5<|user|>"), "ended");
  EXPECT_EQ(request_of(R"("chat_template_kwargs":{"enable_thinking":false})").rule, nullptr);
}

TEST_F(OutputRulesTest, ThinkingBudget) {
  const auto request = request_of(R"("thinking_token_budget":2)");
  EXPECT_EQ(run(request, "aa"), "refused after a");
  EXPECT_EQ(run(request_of(R"("thinking_token_budget":2)"), "a</think>Hello<|user|>"), "ended");
}

TEST_F(OutputRulesTest, AFormAfterReasoning) {
  EXPECT_EQ(run(request_of(schema_fields), "Hm.</think>\n{\"a\": 12}"), "complete");
  EXPECT_EQ(run(request_of(schema_fields), "Hm.</think>12"), "refused after Hm.</think>");
  EXPECT_EQ(run(request_of(schema_fields), "Hm.<|endoftext|>"), "refused after Hm.")
      << "the turn must not end unconstrained";
  EXPECT_EQ(run(request_of(R"("guided_choice":["yes","no"],"reasoning_effort":"none")"), "no"), "complete");
  EXPECT_EQ(run(request_of(R"("guided_regex":"[0-9]{2}","reasoning_effort":"none")"), "12"), "complete");
  EXPECT_EQ(run(request_of(R"("response_format":{"type":"json_object"},"reasoning_effort":"none")"), "[1]"),
            "refused after ");
}

TEST_F(OutputRulesTest, EveryChoiceHasItsOwnState) {
  Setup setup;
  setup.chat(std::string(schema_fields) + R"(,"n":2,"reasoning_effort":"none")");
  EXPECT_EQ(run(setup.engine.request(0), "{\"a\": 1}"), "complete");
  EXPECT_EQ(run(setup.engine.request(1), "{\"a\": 22}"), "complete");
}

TEST_F(OutputRulesTest, ForcedCalls) {
  const std::string fields = std::string(tool_fields) + R"(,"reasoning_effort":"none","tool_choice":)";
  const std::string call = "<tool_call>add<arg_key>n</arg_key><arg_value>12</arg_value></tool_call>";
  EXPECT_EQ(run(request_of(fields + "\"required\""), call + "<|observation|>"), "ended");
  EXPECT_EQ(run(request_of(fields + "\"required\""), "Well"), "refused after ");
  EXPECT_EQ(run(request_of(fields + "\"required\""), "<tool_call>add</tool_call>"), "refused after <tool_call>add");
  EXPECT_EQ(run(request_of(fields + "\"required\""), "<tool_call>add<arg_key>n</arg_key><arg_value>x"),
            "refused after <tool_call>add<arg_key>n</arg_key><arg_value>");
  EXPECT_EQ(run(request_of(fields + "\"required\""), "<tool_call>add<arg_key>unit</arg_key><arg_value>K"),
            "refused after <tool_call>add<arg_key>unit</arg_key><arg_value>");
  EXPECT_EQ(run(request_of(fields + R"({"type":"function","function":{"name":"add"}})"), call), "complete")
      << "a named tool is called once";
  EXPECT_EQ(run(request_of(fields + R"("required","parallel_tool_calls":false)"), call), "complete");
}

TEST_F(OutputRulesTest, ACallOrAFormedAnswer) {
  const std::string fields = std::string(tool_fields) + "," + schema_fields + R"(,"reasoning_effort":"none")";
  EXPECT_EQ(run(request_of(fields), "{\"a\": 1}"), "complete");
  EXPECT_EQ(
      run(request_of(fields), "<tool_call>add<arg_key>n</arg_key><arg_value>12</arg_value></tool_call><|observation|>"),
      "ended");
  EXPECT_EQ(run(request_of(fields), "5"), "refused after ");
}

TEST_F(OutputRulesTest, StrictToolsInFreeText) {
  std::string fields = std::string(tool_fields) + R"(,"reasoning_effort":"none")";
  EXPECT_EQ(request_of(fields).rule, nullptr);
  fields.replace(fields.find(R"("name":"add")"), 12, R"("name":"add","strict":true)");
  EXPECT_EQ(run(request_of(fields), "Well, <tool_call> is a marker.<|user|>"), "ended");
  EXPECT_EQ(run(request_of(fields), "<tool_call>add<arg_key>m"), "refused after <tool_call>add<arg_key>");
  std::string unsupported = fields;
  unsupported.replace(unsupported.find(R"("type":"integer")"), 16, R"("type":"integer","not":{})");
  EXPECT_NE(error_of(unsupported).find("keyword 'not'"), std::string::npos) << error_of(unsupported);
}

// A tool's schema with `strict`: the texts of the argument x that a call may have and others that it may not.
struct StrictCase {
  std::string schema, more;  // of x; members beside it in the tool's schema
  std::vector<std::string> allowed, refused;
};
std::string strict_tool(const std::string& properties, const std::string& more) {
  return R"("reasoning_effort":"none","tools":[{"type":"function","function":{"name":"f","strict":true,"parameters":)"
         R"({"type":"object","properties":{)" +
         properties + "},\"additionalProperties\":false" + more + "}}}]";
}

TEST_F(OutputRulesTest, StrictArgumentsAreHeldToTheirWholeSchema) {
  const std::string defs = R"(,"$defs":{"color":{"enum":["red","blue"]},"node":{"type":"object","properties":{"v":)"
                           R"({"type":"integer"},"next":{"anyOf":[{"$ref":"#/$defs/node"},{"type":"null"}]}},)"
                           R"("required":["v","next"],"additionalProperties":false}})";
  const std::vector<StrictCase> cases = {
      // Recursion: into a definition, into the tool's own schema, into one of its properties.
      {R"({"$ref":"#/$defs/node"})", defs, {R"({"v": 1, "next": {"v": 2, "next": null}})"}, {"null", "{}"}},
      {R"({"anyOf":[{"$ref":"#/$defs/node"},{"type":"null"}]})", defs, {R"({"v": 1, "next": null})", "null"}, {"1"}},
      {R"({"type":["object","null"],"anyOf":[{"$ref":"#/$defs/node"},{"type":"null"}]})", defs, {"null"}, {"1"}},
      {R"({"anyOf":[{"$ref":"#"},{"type":"null"}]})", "", {R"({"x": {"x": null}})", "null", "{}"}, {R"({"y":1})", "1"}},
      {R"({"type":"array","items":{"$ref":"#/properties/x"}})", "", {"[]", "[[], [[]]]"}, {"[1]"}},
      // Strings of some form, however they are spelled.
      {R"({"$ref":"#/$defs/color"})", defs, {"red", "blue"}, {"green", "\"red\""}},
      {R"({"anyOf":[{"const":"a"},{"enum":["b","c"]}]})", "", {"a", "c"}, {"d"}},
      {R"({"enum":["a",null,7]})", "", {"a", "null"}, {"7", "b"}},
      {R"({"type":"string","enum":["","a"]})", "", {"", "a"}, {"b"}},
      {R"({"anyOf":[{"type":"string","maxLength":2},{"type":"null"}]})", "", {"ab", "null"}, {"abc"}},
      {R"({"anyOf":[{"type":"string","pattern":"^[0-9]+$"},{"const":"a.b"}]})", "", {"12", "a.b"}, {"a+b", "x"}},
      {R"({"type":["string","integer"]})", "", {"anything", "12"}, {}},
      // Types that follow from other keywords.
      {R"({"minimum":3})", "", {"3", "4.5"}, {"2", "x"}},
      {R"({"minLength":2})", "", {"ab"}, {"a"}},
      {R"({"properties":{"a":{"type":"null"}}})", "", {R"({"a": null})"}, {"1"}},
      {"true", "", {"anything"}, {}},
      {"{}", "", {"anything"}, {}}};
  for (const StrictCase& one : cases) {
    const auto result = [&](const std::string& text) {
      return run(request_of(strict_tool(R"("x":)" + one.schema, one.more)),
                 "<tool_call>f<arg_key>x</arg_key><arg_value>" + text + "</arg_value></tool_call><|user|>");
    };
    for (const std::string& text : one.allowed) EXPECT_EQ(result(text), "ended") << one.schema << " " << text;
    for (const std::string& text : one.refused) EXPECT_NE(result(text), "ended") << one.schema << " " << text;
  }
}

TEST_F(OutputRulesTest, StrictToolsThatCannotBeKeptToAreRefused) {
  const auto error = [](const std::string& properties, const std::string& more) {
    return error_of(strict_tool(properties, more));
  };
  for (const auto* impossible :
       {"false", R"({"type":"integer","minimum":2,"maximum":1})", R"({"allOf":[{"type":"null"},{"type":"array"}]})"}) {
    const std::string x = std::string(R"("x":)") + impossible;
    const std::string refusal = error(x, R"(,"required":["x"])");
    EXPECT_NE(refusal.find("#/properties/x: a schema that no value satisfies"), std::string::npos) << refusal;
    // A key that may be left out does not come.
    const auto request = request_of(strict_tool(x + R"(,"y":{"type":"null"})", ""));
    EXPECT_EQ(run(request, "<tool_call>f<arg_key>x"), "refused after <tool_call>f<arg_key>");
    EXPECT_EQ(run(request_of(strict_tool(x, "")), "<tool_call>f</tool_call><|user|>"), "ended");
  }
  EXPECT_NE(error(R"("x":{"anyOf":[{"$ref":"#/properties/x"}]})", "").find("leads back to itself"), std::string::npos);
  EXPECT_NE(error(R"("x":{"$ref":"#/$defs/none"})", "").find("which is not there"), std::string::npos);
  EXPECT_NE(error(R"("x":{"anyOf":[{"enum":["a"]},{"type":"array"}]})", "").find("beside objects or arrays"),
            std::string::npos);
  std::string open = strict_tool(R"("x":{})", "");
  open.replace(open.find(R"("additionalProperties":false)"), 28, R"("additionalProperties":{"type":"null"})");
  EXPECT_NE(error_of(open).find("'additionalProperties' with a schema"), std::string::npos) << error_of(open);
}

// A key that a JSON pointer has to escape is found.
TEST_F(OutputRulesTest, KeysWithSigns) {
  for (const std::string key : {"a/b", "a~1", "100%25", "a b"}) {
    const auto fields = strict_tool('"' + key + R"(":{"type":"integer"})", "");
    EXPECT_EQ(run(request_of(fields), "<tool_call>f<arg_key>" + key + "</arg_key><arg_value>1</arg_value>"), "open");
    EXPECT_NE(run(request_of(fields), "<tool_call>f<arg_key>" + key + "</arg_key><arg_value>x</arg_value>"), "open");
  }
}

// Fields that leave nothing to begin with are told apart before the reply.
TEST_F(OutputRulesTest, NothingToBeginWithIsRefused) {
  const std::string choice = R"("reasoning_effort":"none","guided_choice":["yes"])";
  const auto status = [](const std::string& path, const std::string& body) {
    Setup setup;
    const auto responder = setup.call("POST", path, body);
    return responder->replies.empty() ? std::string("taken") : responder->replies[0].body;
  };
  const auto beginnings = [](const std::string& text) {
    std::string ids;
    for (size_t size = 1; size <= text.size(); ++size) {
      if (const auto id = model_->ids(text.substr(0, size)); id.size() == 1)
        ids += fmt::format("{}{}", ids.empty() ? "" : ",", id[0]);
    }
    return ids;
  };
  const std::string messages = R"({"messages":[{"role":"user","content":"Hi"}],)", prompt = R"({"prompt":"Hi",)";
  const std::string never = R"(,"allowed_token_ids":[)" + beginnings("no") + "]",
                    also = R"(,"allowed_token_ids":[)" + beginnings("yes") + "]";
  for (const auto& [path, body] : {std::pair("/v1/chat/completions", messages), std::pair("/v1/completions", prompt)}) {
    const std::string refused = status(path, body + choice + never + "}");
    EXPECT_NE(refused.find(R"("param":"allowed_token_ids")"), std::string::npos) << refused;
    EXPECT_EQ(status(path, body + choice + also + "}"), "taken");
    const std::string words = R"(,"bad_words":["y","ye","yes"])";
    const std::string banned = status(path, body + choice + words + "}");
    EXPECT_NE(banned.find(R"("param":"bad_words")"), std::string::npos) << banned;
    const std::string empty = R"x("reasoning_effort":"none","guided_regex":"(a{0})","max_tokens":5)x";
    EXPECT_EQ(status(path, body + empty + "}"), "taken");
    const std::string at_least = status(path, body + empty + R"(,"min_tokens":2})");
    EXPECT_NE(at_least.find(R"("param":"min_tokens")"), std::string::npos) << at_least;
  }
}

// Whatever stands behind a character that a grammar has to escape.
TEST_F(OutputRulesTest, ChoicesWithControlCharacters) {
  const auto result = [](const std::string& json, const std::string& text) {
    return run(request_of(R"("reasoning_effort":"none","guided_choice":[")" + json + "\"]"), text);
  };
  EXPECT_EQ(result("a\\u0001b",
                   "a\x01"
                   "b"),
            "complete");
  EXPECT_EQ(result("\\nface", "\nface"), "complete");
  EXPECT_EQ(result("\\u007f7",
                   "\x7f"
                   "7"),
            "complete");
  EXPECT_NE(result("a\\u0001b", "a\x1b"), "complete");
  EXPECT_EQ(result("\\\\x41", "\\x41"), "complete");
}

TEST_F(OutputRulesTest, ErrorsNameTheFieldAndTheKeyword) {
  const std::string error = error_of(
      R"("response_format":{"type":"json_schema","json_schema":{"schema":{"properties":{"a":{"uniqueItems":true}}}}})");
  EXPECT_NE(error.find(R"("param":"response_format.json_schema.schema")"), std::string::npos) << error;
  EXPECT_NE(error.find("#/properties/a: keyword 'uniqueItems'"), std::string::npos) << error;
  EXPECT_NE(error_of(R"x("guided_regex":"(?=a)")x").find(R"("param":"guided_regex")"), std::string::npos);
  EXPECT_NE(error_of(R"("ebnf":"root ::= missing")").find(R"("param":"ebnf")"), std::string::npos);
  EXPECT_NE(error_of(R"("guided_json":"{")").find(R"("param":"guided_json")"), std::string::npos);
}

TEST_F(OutputRulesTest, ALaxServerLogsKeywords) {
  ServiceOptions options;
  options.chat.ignore_unsupported_schema = true;
  Setup setup(options);
  EXPECT_EQ(
      setup
          .chat(
              R"("guided_json":{"type":"array","items":{"type":"null"},"uniqueItems":true},"reasoning_effort":"none")")
          ->replies.size(),
      0u);
  EXPECT_EQ(run(setup.engine.request(), "[null]"), "complete");
}

TEST_F(OutputRulesTest, AContinuedMessageBeginsTheForm) {
  Setup setup;
  const auto body = [](const std::string& text) {
    return R"({"messages":[{"role":"user","content":"Hi"},{"role":"assistant","content":")" + text +
           R"("}],"continue_final_message":true,)" + schema_fields + "}";
  };
  EXPECT_EQ(setup.call("POST", "/v1/chat/completions", body(R"({\"a\": 1)"))->replies.size(), 0u);
  EXPECT_EQ(run(setup.engine.request(), "2}"), "complete");
  const auto responder = setup.call("POST", "/v1/chat/completions", body("Well"));
  ASSERT_EQ(responder->replies.size(), 1u);
  EXPECT_EQ(responder->replies[0].status, 400);
}

TEST_F(OutputRulesTest, Completions) {
  Setup setup;
  setup.call("POST", "/v1/completions", R"({"prompt":"x","max_tokens":9,"guided_choice":["yes","no"]})");
  EXPECT_EQ(run(setup.engine.request(), "yes"), "complete");
  EXPECT_EQ(run(setup.engine.request(), "maybe"), "refused after ");
}

TEST_F(OutputRulesTest, ARepetitionHasItsOwnReason) {
  Setup setup;
  const auto responder = setup.chat(R"("repetition_detection":{"max_pattern_size":4})");
  EXPECT_EQ(setup.engine.request().repetition.max_size, 4);
  setup.engine.admit();
  setup.engine.tokens(model_->ids("</think>a a a"));
  setup.engine.finish(engine::FinishReason::repetition);
  setup.executor.run();
  ASSERT_EQ(responder->replies.size(), 1u);
  EXPECT_NE(responder->replies[0].body.find(R"("finish_reason":"repetition")"), std::string::npos);
}

}  // namespace
}  // namespace tandem::api::output_rules_test
