// Bodies that are not what they should be, and the rules of D.2 on types.
#include "api/json_body.h"

#include <fmt/core.h>

#include <algorithm>

#include "api/errors.h"

namespace tandem::api::json_body_test {
namespace {

// Message of the ApiError 400 that `action` throws.
template <typename Action>
std::string refusal(Action action) {
  try {
    action();
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status(), 400);
    return error.body();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

std::string parse_refusal(const std::string& text) {
  return refusal([&] { JsonBody::parse(text); });
}

TEST(JsonBody, RefusesWhatIsNoObject) {
  EXPECT_NE(parse_refusal("[1]").find("a list; expected a JSON object"), std::string::npos);
  EXPECT_NE(parse_refusal("\"x\"").find("a string; expected"), std::string::npos);
  EXPECT_NE(parse_refusal("").find("not valid JSON"), std::string::npos);
  EXPECT_NE(parse_refusal("{\"a\":1").find("not valid JSON (byte"), std::string::npos);
  EXPECT_NE(parse_refusal("{\"a\":NaN}").find("not valid JSON"), std::string::npos);
  EXPECT_NE(parse_refusal("{\"a\":1e999}").find("number is out of range"), std::string::npos);
  EXPECT_NE(parse_refusal("{\"a\":\"\\ud800\"}").find("not valid JSON"), std::string::npos);
}

TEST(JsonBody, RefusesInvalidUtf8WithItsPlace) {
  EXPECT_NE(parse_refusal("{\"a\":\"\xff\"}").find("not valid UTF-8 (byte 6)"), std::string::npos);
  EXPECT_NE(parse_refusal("{\"a\":\"\xc0\xaf\"}").find("not valid UTF-8"), std::string::npos);      // overlong
  EXPECT_NE(parse_refusal("{\"a\":\"\xed\xa0\x80\"}").find("not valid UTF-8"), std::string::npos);  // surrogate
  EXPECT_EQ(JsonBody::parse("{\"a\":\"\xf0\x9f\x98\x80\"}").string("a"), "\xf0\x9f\x98\x80");
}

std::string nested(int depth) {
  const auto lists = static_cast<size_t>(depth - 1);
  return fmt::format(R"({{"a":{}{}}})", std::string(lists, '['), std::string(lists, ']'));
}

TEST(JsonBody, BoundsTheNestingAt128) {
  EXPECT_TRUE(JsonBody::parse(nested(128)).has("a"));
  std::string many = R"({"x":[)";
  for (int i = 0; i < 600'000; ++i) many += "{},";
  EXPECT_NE(parse_refusal(many + "0]}").find("more than 500000 values"), std::string::npos);
  EXPECT_NE(parse_refusal(std::string("{}\0[[[", 6)).find("byte 3"), std::string::npos);
  EXPECT_NE(parse_refusal(nested(129)).find("nested deeper than 128"), std::string::npos);
  EXPECT_NE(parse_refusal(nested(1000000)).find("nested deeper than 128"), std::string::npos);
  // Brackets inside strings do not count, whatever is escaped around them.
  EXPECT_TRUE(JsonBody::parse(fmt::format(R"({{"a":"\"{}"}})", std::string(500, '['))).has("a"));
}

TEST(JsonBody, NullIsAbsent) {
  const JsonBody body = JsonBody::parse(R"({"a":null})");
  EXPECT_FALSE(body.has("a"));
  EXPECT_FALSE(body.boolean("a"));
  EXPECT_FALSE(body.integer("a", 0, 1));
  EXPECT_FALSE(body.number("a", 0, 1));
  EXPECT_FALSE(body.string("a"));
  EXPECT_FALSE(body.object("a"));
  EXPECT_FALSE(body.strings("a", true));
  EXPECT_FALSE(body.integers("a", 0, 1));
  EXPECT_EQ(body.names(), std::vector<std::string>{"a"});
}

TEST(JsonBody, IntegersMayComeAsFloats) {
  const JsonBody body = JsonBody::parse(R"({"a":3.0,"b":3.5,"c":true,"d":"3","e":1e300,"f":18446744073709551615})");
  EXPECT_EQ(body.integer("a", 0, 5), 3);
  for (const auto* name : {"b", "c", "d", "e", "f"}) {
    const std::string message = refusal([&] { (void)body.integer(name, 0, 5); });
    EXPECT_NE(message.find(std::string("\"param\":\"") + name + "\""), std::string::npos) << message;
  }
  EXPECT_NE(refusal([&] { (void)body.integer("a", 4, 5); }).find("3.0 is out of range; expected 4 to 5"),
            std::string::npos);
}

TEST(JsonBody, NumbersAreNeitherBooleansNorStrings) {
  const JsonBody body = JsonBody::parse(R"({"a":1,"b":true,"c":"0.5","d":2.5})");
  EXPECT_EQ(body.number("a", 0, 2), 1.0);
  EXPECT_NE(refusal([&] { (void)body.number("b", 0, 2); }).find("found a boolean; expected a number"),
            std::string::npos);
  EXPECT_NE(refusal([&] { (void)body.number("c", 0, 2); }).find("found a string; expected a number"),
            std::string::npos);
  EXPECT_NE(refusal([&] { (void)body.number("d", 0, 2); }).find("2.5 is out of range"), std::string::npos);
}

TEST(JsonBody, NestedFieldsAreNamedByPath) {
  const JsonBody body = JsonBody::parse(R"({"o":{"flag":1},"l":["x",2],"i":[1,"2"]})");
  EXPECT_NE(refusal([&] { (void)body.object("o")->boolean("flag"); }).find("\"param\":\"o.flag\""), std::string::npos);
  EXPECT_NE(refusal([&] { (void)body.strings("l", true); }).find("\"param\":\"l[1]\""), std::string::npos);
  EXPECT_NE(refusal([&] { (void)body.integers("i", 0, 9); }).find("\"param\":\"i[1]\""), std::string::npos);
  EXPECT_NE(refusal([&] { (void)body.object("l"); }).find("found a list; expected an object"), std::string::npos);
}

TEST(JsonBody, ListsOfLists) {
  const JsonBody body = JsonBody::parse(R"({"a":[[1,2.0],[]],"b":[[1],2],"c":[[1,9]],"d":3,"e":[]})");
  EXPECT_EQ(body.integer_lists("a", 0, 5), (std::vector<std::vector<int64_t>>{{1, 2}, {}}));
  EXPECT_EQ(body.integer_lists("e", 0, 5), std::vector<std::vector<int64_t>>{});
  EXPECT_FALSE(body.integer_lists("absent", 0, 5));
  EXPECT_NE(refusal([&] { (void)body.integer_lists("b", 0, 5); }).find("\"param\":\"b[1]\""), std::string::npos);
  EXPECT_NE(refusal([&] { (void)body.integer_lists("c", 0, 5); }).find("\"param\":\"c[0][1]\""), std::string::npos);
  EXPECT_NE(refusal([&] { (void)body.integer_lists("d", 0, 5); }).find("found an integer"), std::string::npos);
}

TEST(JsonBody, NumbersNamedByIntegers) {
  using Numbers = std::vector<std::pair<int64_t, double>>;
  const auto read = [](const std::string& map) {
    return JsonBody::parse(fmt::format(R"({{"m":{}}})", map)).numbers_by_integer("m", 0, 50);
  };
  EXPECT_EQ(read("{}"), Numbers{});
  EXPECT_EQ(read("null"), std::nullopt);
  auto numbers = *read(R"({"7":1.5,"50":-3})");
  std::sort(numbers.begin(), numbers.end());
  EXPECT_EQ(numbers, (Numbers{{7, 1.5}, {50, -3}}));
  for (const auto* key : {"51", "-1", "07", "+7", "7 ", " 7", "7.0", "x", "", "99999999999999999999"})
    EXPECT_NE(refusal([&] { read(fmt::format(R"({{"{}":1}})", key)); }).find("expected integers from 0 to 50"),
              std::string::npos)
        << key;
  EXPECT_NE(refusal([&] { read(R"({"7":"1"})"); }).find("\"param\":\"m.7\""), std::string::npos);
  EXPECT_NE(refusal([&] { read("[1]"); }).find("expected an object"), std::string::npos);
}

TEST(JsonBody, WhatAListHolds) {
  using ListOf = JsonBody::ListOf;
  const JsonBody body = JsonBody::parse(R"({"a":[],"b":["x",1],"c":[1,"x"],"d":[[1]],"e":[{}],"f":"x"})");
  EXPECT_EQ(body.list_of("a"), ListOf::nothing);
  EXPECT_EQ(body.list_of("b"), ListOf::strings);
  EXPECT_EQ(body.list_of("c"), ListOf::integers);
  EXPECT_EQ(body.list_of("d"), ListOf::lists);
  EXPECT_EQ(body.list_of("e"), ListOf::others);
  EXPECT_FALSE(body.list_of("f") || body.list_of("absent"));
}

TEST(JsonBody, IsSetMeansNotEmpty) {
  const JsonBody body = JsonBody::parse(R"({"a":{},"b":[],"c":"","d":0,"e":false,"f":null,"g":{"x":1},"h":1,"i":"x"})");
  for (const auto* name : {"a", "b", "c", "d", "e", "f", "absent"}) EXPECT_FALSE(body.is_set(name)) << name;
  for (const auto* name : {"g", "h", "i"}) EXPECT_TRUE(body.is_set(name)) << name;
}

}  // namespace
}  // namespace tandem::api::json_body_test
