// Types from schemas and values from text, rule by rule (spec/frontend.md C.8).
#include "chat/tool_values.h"

#include "chat/json.h"

namespace tandem::chat::tool_values_test {
namespace {

using T = JsonTypes;

JsonTypes types(const std::string& schema) {
  const JsonValue value = parse_json(schema, "schema");
  return schema_types(value, value);
}

TEST(SchemaTypes, KeywordsNarrowTheSet) {
  EXPECT_EQ(types("{}"), T());
  EXPECT_EQ(types("true"), T());
  EXPECT_EQ(types(R"({"type":"string"})"), T(T::string));
  EXPECT_EQ(types(R"({"type":"number"})"), T(T::number | T::integer));
  EXPECT_EQ(types(R"({"type":["string","null"]})"), T(T::string | T::null));
  EXPECT_EQ(types(R"({"enum":["a",1,null]})"), T(T::string | T::integer | T::null));
  EXPECT_EQ(types(R"({"const":{"a":1}})"), T(T::object));
  EXPECT_EQ(types(R"({"anyOf":[{"type":"integer"},{"type":"null"}]})"), T(T::integer | T::null));
  EXPECT_EQ(types(R"({"anyOf":[{"type":"integer"},{}]})"), T());
  EXPECT_EQ(types(R"({"allOf":[{"type":["string","null"]},{"type":["string","array"]}]})"), T(T::string));
  EXPECT_EQ(types(R"({"type":"unheard of"})"), T());
}

TEST(SchemaTypes, ReferencesAreFollowedAndEnd) {
  EXPECT_EQ(types(R"({"$ref":"#/$defs/a~1b","$defs":{"a/b":{"type":"boolean"}}})"), T(T::boolean));
  EXPECT_EQ(types(R"({"$ref":"#/$defs/none"})"), T());
  EXPECT_EQ(types(R"({"$ref":"other.json"})"), T());
  EXPECT_EQ(types(R"({"$ref":"#"})"), T());  // itself
  EXPECT_EQ(types(R"({"anyOf":[{"$ref":"#"},{"$ref":"#"}]})"), T());
}

TEST(TypedValue, StringsStayByteForByte) {
  for (const std::string text : {"001", "true", R"({"a":1})", "\"quoted\"", " s ", "null", ""}) {
    std::string expected;
    print_python_json(text, expected);
    EXPECT_EQ(typed_value(text, T(T::string)), expected);
  }
}

TEST(TypedValue, ValuesOfTheWantedTypeElseStrings) {
  EXPECT_EQ(typed_value("5", T(T::integer)), "5");
  EXPECT_EQ(typed_value(" 5\n", T(T::integer)), "5");
  EXPECT_EQ(typed_value("\"5\"", T(T::integer)), "5");
  EXPECT_EQ(typed_value("123456789012345678901234567890", T(T::integer)), "123456789012345678901234567890");
  EXPECT_EQ(typed_value("1.0", T(T::integer)), "\"1.0\"");
  EXPECT_EQ(typed_value("1.5", T(T::integer | T::number)), "1.5");
  for (const auto* text : {"007", "0x10", "NaN", "Infinity", "5 apples", "True", "five", ""}) {
    EXPECT_EQ(typed_value(text, T(T::integer | T::number | T::boolean)), '"' + std::string(text) + '"');
  }
  EXPECT_EQ(typed_value("true", T(T::boolean)), "true");
  EXPECT_EQ(typed_value("1", T(T::boolean)), "\"1\"");
  EXPECT_EQ(typed_value(R"({"b":1,"a":[true,null,"x"]})", T(T::object)), R"({"b": 1, "a": [true, null, "x"]})");
  EXPECT_EQ(typed_value("[1]", T(T::object)), "\"[1]\"");
}

TEST(TypedValue, WithAStringAllowedOnlyWhatCannotBeMeantAsOne) {
  EXPECT_EQ(typed_value("5", T(T::string | T::integer)), "\"5\"");
  EXPECT_EQ(typed_value("null", T(T::string | T::null)), "null");
  EXPECT_EQ(typed_value(" null", T(T::string | T::null)), "\" null\"");
  EXPECT_EQ(typed_value("null", T(T::string | T::array)), "\"null\"");
  EXPECT_EQ(typed_value("[1]", T(T::string | T::array)), "[1]");
  EXPECT_EQ(typed_value("[1", T(T::string | T::array)), "\"[1\"");
  EXPECT_EQ(typed_value("\"5\"", T(T::string | T::integer)), R"("\"5\"")");
}

TEST(TypedValue, WithoutASchemaAnythingButAString) {
  EXPECT_EQ(typed_value("5", T()), "5");
  EXPECT_EQ(typed_value("{}", T()), "{}");
  EXPECT_EQ(typed_value("word", T()), "\"word\"");
  EXPECT_EQ(typed_value("\"x\"", T()), R"("\"x\"")");
}

TEST(ToolSchemas, ToolsAndTheirArguments) {
  const ToolSchemas tools({
      R"({"type":"function","function":{"name":"f","parameters":{"properties":{"n":{"type":"integer"}},
          "additionalProperties":{"type":"boolean"}}}})",
      R"({"name":"G","parameters":{"$ref":"#/$defs/p","$defs":{"p":{"properties":{"s":{"type":"string"}}}}}})",
      R"({"name":"h","parameters":{"anyOf":[{"properties":{"x":{"type":"null"}}},{"properties":{"x":{"type":"array"}}}]}})",
      R"({"name":"bare"})",
  });
  EXPECT_TRUE(tools.offers("f"));
  EXPECT_TRUE(tools.offers("F"));
  EXPECT_FALSE(tools.offers("k"));
  EXPECT_EQ(tools.types_of("f", "n"), T(T::integer));
  EXPECT_EQ(tools.types_of("f", "m"), T(T::boolean));
  EXPECT_EQ(tools.types_of("g", "s"), T(T::string));
  EXPECT_EQ(tools.types_of("h", "x"), T(T::null | T::array));
  EXPECT_EQ(tools.types_of("bare", "x"), T());
  EXPECT_EQ(tools.types_of("k", "x"), T());
}

}  // namespace
}  // namespace tandem::chat::tool_values_test
