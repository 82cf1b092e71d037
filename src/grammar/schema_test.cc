// Every keyword is enforced or refused by name; what is left is written in the form that the matcher gets right.
#include "grammar/schema.h"

#include "base/error.h"

namespace tandem::grammar::schema_test {
namespace {

std::string prepared(std::string_view schema, bool open = false) {
  return prepare_schema(schema, {.open = open, .ignore_unsupported = false}).text;
}

std::string refusal(std::string_view schema) {
  try {
    (void)prepare_schema(schema, {});
  } catch (const Error& error) {
    return error.where() + " " + error.found();
  }
  return "accepted";
}

TEST(Schema, DeclaredKeysCloseAnObjectUnlessItSaysOtherwise) {
  EXPECT_EQ(
      prepared(R"({"type":"object","properties":{"b":{"type":"integer"},"a":{}},"required":["a"]})"),
      R"({"type":"object","required":["a"],"properties":{"b":{"type":"integer"},"a":{}},"additionalProperties":false})");
  EXPECT_EQ(prepared(R"({"properties":{"a":{}}})"),
            R"({"type":"object","properties":{"a":{}},"additionalProperties":false})");
  EXPECT_EQ(prepared(R"({"type":"object"})"), R"({"type":"object","additionalProperties":{}})");
  EXPECT_EQ(prepared(R"({"type":"object","properties":{"a":{}}})", true),
            R"({"type":"object","properties":{"a":{}},"additionalProperties":{}})");
}

TEST(Schema, AnUntypedSchemaMeansTheTypeOfItsKeywords) {
  EXPECT_EQ(prepared(R"({"minLength":2})"), R"({"type":"string","pattern":".{2,}"})");
  EXPECT_EQ(prepared(R"({"items":{"type":"null"}})"), R"({"type":"array","items":{"type":"null"}})");
  EXPECT_EQ(prepared("{}"), "{}");
  EXPECT_EQ(prepared("true"), "{}");
  const std::string open = prepared(R"({"minLength":2})", true);
  for (const auto* type : {"object", "array", "string", "number", "boolean", "null"})
    EXPECT_NE(open.find(std::string("\"type\":\"") + type), std::string::npos) << open;
}

TEST(Schema, WhatIsNotEnforcedIsRefusedByNameAndPlace) {
  for (const auto* keyword :
       {"not", "if", "then", "else", "dependentRequired", "dependentSchemas", "dependencies", "contains", "minContains",
        "maxContains", "$dynamicRef", "$anchor", "contentEncoding", "nullable", "requried"}) {
    const std::string schema = std::string(R"({"type":"object","properties":{"a":{")") + keyword + R"(":{}}}})";
    EXPECT_EQ(refusal(schema), std::string("#/properties/a keyword '") + keyword + "'");
  }
  EXPECT_EQ(refusal(R"({"items":{"uniqueItems":true}})"), "#/items keyword 'uniqueItems'");
  EXPECT_EQ(refusal(R"({"items":{"uniqueItems":false}})"), "accepted");
  EXPECT_EQ(refusal(R"({"title":"t","description":"d","default":1,"x-order":2,"$schema":"s","$id":"i"})"), "accepted");
  EXPECT_EQ(refusal(R"({"type":"string","format":"iri"})"), "# keyword 'format' with 'iri'");
  EXPECT_EQ(refusal(R"({"type":"string","format":"date","maxLength":4})"),
            "# keyword 'format' together with pattern, minLength or maxLength");
  EXPECT_EQ(refusal(R"({"type":"number","multipleOf":0.1})"), "# keyword 'multipleOf' with a fraction");
  EXPECT_EQ(refusal(R"({"type":"integer","multipleOf":3,"minimum":0})"),
            "# keyword 'multipleOf' together with a bound");
  EXPECT_EQ(refusal(R"({"properties":{"a":{"oneOf":[{"type":"string"},{"type":"string","minLength":2}]}}})"),
            "#/properties/a/oneOf keyword 'oneOf' whose branches 0 and 1 may both hold");
  EXPECT_EQ(refusal(R"({"$ref":"http://example.com/x"})"), "# keyword '$ref' with 'http://example.com/x'");
  EXPECT_EQ(refusal(R"({"$ref":"#/$defs/a"})"), "# keyword '$ref' to '#/$defs/a', which is not there");
}

TEST(Schema, ALaxServerLeavesOutAndReports) {
  const PreparedSchema out = prepare_schema(R"({"type":"array","items":{"not":{}},"uniqueItems":true})",
                                            {.open = false, .ignore_unsupported = true});
  EXPECT_EQ(out.text, R"({"type":"array","items":{}})");
  EXPECT_EQ(out.ignored, (std::vector<std::string>{"#: keyword 'uniqueItems'", "#/items: keyword 'not'"}));
}

TEST(Schema, WrongSchemasAreRefusedWithTheirPlace) {
  EXPECT_EQ(refusal(R"({"type":"text"})"), "#/type \"text\"");
  EXPECT_EQ(refusal(R"({"minLength":-1})"), "#/minLength -1");
  EXPECT_EQ(refusal(R"({"minLength":1.5})"), "#/minLength 1.5");
  EXPECT_EQ(refusal(R"({"enum":[]})"), "#/enum []");
  EXPECT_EQ(refusal(R"({"items":3})"), "#/items 3");
  EXPECT_EQ(refusal(R"({"const":18446744073709551617})"), "#/const 18446744073709551617");
  EXPECT_EQ(refusal(R"({"enum":[1,{"a":[12345678901234567890]}]})"), R"(#/enum [1,{"a":[12345678901234567890]}])");
  EXPECT_EQ(prepared(R"({"const":9223372036854775807})"), R"({"enum":[9223372036854775807]})");
  EXPECT_EQ(refusal("false"), "# a schema that no value satisfies");
  EXPECT_EQ(refusal(R"({"type":"integer","minimum":3,"maximum":2})"), "# a schema that no value satisfies");
  EXPECT_EQ(refusal(R"({"maxLength":10001})"), "# keyword 'maxLength' of 10001");
  std::string deep = "{}";
  for (int i = 0; i < 70; ++i) deep = R"({"items":)" + deep + "}";
  EXPECT_NE(refusal(deep).find("a schema nested too deeply"), std::string::npos);
}

TEST(Schema, CombinationsBecomeAlternatives) {
  EXPECT_EQ(
      prepared(
          R"({"type":"object","required":["a"],"properties":{"a":{}},"anyOf":[{"properties":{"b":{"const":1}}},{"required":["c"]}]})"),
      R"({"anyOf":[{"type":"object","required":["a"],"properties":{"a":{},"b":{"enum":[1]}},"additionalProperties":false},)"
      R"({"type":"object","required":["a","c"],"properties":{"a":{},"c":{}},"additionalProperties":false}]})");
  EXPECT_EQ(prepared(R"({"allOf":[{"type":["string","integer"]},{"type":["integer","null"]},{"minimum":3}]})"),
            R"({"type":"integer","minimum":3})");
  EXPECT_EQ(prepared(R"({"allOf":[{"properties":{"a":{"type":"integer"}}},{"properties":{"a":{"minimum":2}}}]})"),
            R"({"type":"object","properties":{"a":{"type":"integer","minimum":2}},"additionalProperties":false})");
  EXPECT_EQ(refusal(R"({"allOf":[{"pattern":"a"},{"pattern":"b"}]})"),
            "# keyword 'pattern' in two schemas that both have to hold");
  EXPECT_EQ(prepared(R"({"oneOf":[{"type":"string"},{"type":"integer"}]})"),
            R"({"anyOf":[{"type":"string"},{"type":"integer"}]})");
  EXPECT_EQ(prepared(R"({"enum":[1,"a",null,2.5],"type":["integer","null"]})"), R"({"enum":[1,null]})");
}

TEST(Schema, ReferencesAreDefinedOnceAndMustComeToAValue) {
  EXPECT_EQ(
      prepared(
          R"({"properties":{"a":{"$ref":"#/$defs/x~1y"},"b":{"$ref":"#/$defs/x~1y"}},"$defs":{"x/y":{"type":"null"}}})"),
      R"({"type":"object","properties":{"a":{"$ref":"#/$defs/r0"},"b":{"$ref":"#/$defs/r0"}},"additionalProperties":false,)"
      R"("$defs":{"r0":{"type":"null"}}})");
  EXPECT_EQ(
      prepared(R"({"properties":{"next":{"$ref":"#"}}})"),
      R"({"type":"object","properties":{"next":{"$ref":"#/$defs/r0"}},"additionalProperties":false,)"
      R"("$defs":{"r0":{"type":"object","properties":{"next":{"$ref":"#/$defs/r0"}},"additionalProperties":false}}})");
  EXPECT_EQ(
      prepared(
          R"({"properties":{"a":{"$ref":"#/$defs/s","maxLength":3}},"$defs":{"s":{"type":"string","minLength":1}}})"),
      R"({"type":"object","properties":{"a":{"type":"string","pattern":".{1,3}"}},"additionalProperties":false})");
  EXPECT_NE(refusal(R"({"$ref":"#"})").find("leads back to itself"), std::string::npos);
  EXPECT_NE(refusal(R"({"anyOf":[{"$ref":"#"},{"type":"null"}]})").find("leads back to itself"), std::string::npos);
  EXPECT_NE(refusal(R"({"allOf":[{"$ref":"#"},{"type":"null"}]})").find("leads back to itself"), std::string::npos);
}

}  // namespace
}  // namespace tandem::grammar::schema_test
