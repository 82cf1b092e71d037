// What arguments may be written as, by the schemas of tools.
#include "grammar/argument_form.h"

#include "base/error.h"

namespace tandem::grammar::argument_form_test {
namespace {

std::string shown(const ArgumentForm& form) {
  std::string out;
  for (const std::string& one : form.literals) out += "|" + one;
  if (form.source) out += (form.source->language == Language::regex ? "regex " : "json ") + form.source->text;
  return out.empty() ? "any" : out;
}

std::string form_of(const std::string& schema, const std::string& more = {}, bool ignore = false) {
  const auto document = chat::parse_json(R"({"type":"object","properties":{"x":)" + schema + "}" + more + "}", "tool");
  std::vector<std::string> ignored;
  std::string out;
  try {
    out = shown(argument_form(document, "#/properties/x", {.open = false, .ignore_unsupported = ignore}, ignored));
  } catch (const Error& error) {
    return "error " + error.where() + ": " + error.found();
  }
  for (const std::string& one : ignored) out += " ignored " + one;
  return out;
}

TEST(ArgumentForm, StringsAreWrittenAsTheyAre) {
  EXPECT_EQ(form_of(R"({"type":"string"})"), "any");
  EXPECT_EQ(form_of(R"({"enum":["a b","\"c\""]})"), R"(|a b|"c")");
  EXPECT_EQ(form_of(R"({"const":""})"), "|");
  EXPECT_EQ(form_of(R"({"type":"string","maxLength":3})"), "regex (.{0,3})");
  EXPECT_EQ(
      form_of(R"({"anyOf":[{"type":"string","maxLength":3},{"const":"a.é"},{"type":"null"},{"type":"integer"}]})"),
      R"(regex (.{0,3})|(a\u{2e}é)|(null))");
  EXPECT_EQ(form_of(R"({"type":"string","format":"nope"})", "", true),
            "any ignored #/properties/x: keyword 'format' with 'nope'");
}

TEST(ArgumentForm, OtherValuesAreJson) {
  EXPECT_EQ(form_of(R"({"type":["integer","null"]})"), R"(json {"anyOf":[{"type":"integer"},{"type":"null"}]})");
  EXPECT_EQ(form_of(R"({"enum":[1,null]})"), R"(json {"enum":[1,null]})");
  EXPECT_EQ(form_of(R"({"$ref":"#/$defs/n"})", R"(,"$defs":{"n":{"type":"array","items":{"$ref":"#/$defs/n"}}})"),
            R"(json {"anyOf":[{"$ref":"#/$defs/r0"}],"$defs":{"r0":{"type":"array","items":{"$ref":"#/$defs/r0"}}}})");
}

TEST(ArgumentForm, ReferencesLeadIntoTheWholeSchema) {
  EXPECT_EQ(
      form_of(R"({"$ref":"#/definitions/c"})", R"(,"definitions":{"c":{"$ref":"#/definitions/d"},"d":{"enum":["r"]}})"),
      "|r");
  EXPECT_EQ(form_of(R"({"$ref":"#/definitions/c"})"),
            "error #/properties/x: keyword '$ref' to '#/definitions/c', which is not there");
  EXPECT_EQ(form_of("false"), "error #/properties/x: a schema that no value satisfies");
}

TEST(ArgumentForm, PointersToKeysWithSigns) {
  for (const std::string key : {"a/b", "~0", "%41", "", "a~1/%"}) {
    chat::JsonValue document = chat::parse_json(R"({"properties":{}})", "tool");
    auto& properties = std::get<chat::JsonValue::Object>(document.data)[0].value;
    std::get<chat::JsonValue::Object>(properties.data).push_back({key, chat::parse_json(R"({"const":"y"})", "x")});
    std::vector<std::string> ignored;
    EXPECT_EQ(shown(argument_form(document, "#/properties/" + pointer_step(key), {}, ignored)), "|y") << key;
  }
}

}  // namespace
}  // namespace tandem::grammar::argument_form_test
