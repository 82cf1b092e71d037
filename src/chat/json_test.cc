// The printer against what Python prints, and the reader against text that is not JSON.
#include "chat/json.h"

#include <fmt/core.h>

#include <chrono>
#include <cmath>
#include <random>

#include "base/error.h"
#include "chat/render.h"

namespace tandem::chat::json_test {
namespace {

std::string refused(const std::string& json) {
  try {
    return "accepted as " + python_json(json);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::usage);
    return error.found();
  }
}

TEST(PythonJson, SpacingOrderAndLiterals) {
  EXPECT_EQ(python_json(R"( {"b":[1,2 ,{"x":null}],"a":{},"c":[],"d":true,"e":false} )"),
            R"({"b": [1, 2, {"x": null}], "a": {}, "c": [], "d": true, "e": false})");
  EXPECT_EQ(python_json("\"x\""), "\"x\"");
  EXPECT_EQ(python_json("null"), "null");
}

TEST(PythonJson, EscapesOnlyQuotesBackslashesAndControls) {
  EXPECT_EQ(python_json(R"("\u0000\u0008\t\n\u000b\f\r\u001f \"\\\/<>&'\u007f\u00e9\u2028\ud83d\ude00")"),
            "\"\\u0000\\b\\t\\n\\u000b\\f\\r\\u001f \\\"\\\\/<>&'\x7f\u00e9\u2028\U0001F600\"");
  EXPECT_EQ(python_json(R"({"k\"\u00e9\n":1})"), "{\"k\\\"\u00e9\\n\": 1}");
}

TEST(PythonJson, IntegersKeepTheirSize) {
  for (const char* integer : {"0", "-1", "9223372036854775807", "9223372036854775808", "-9223372036854775808",
                              "18446744073709551615", "18446744073709551616", "-9223372036854775809",
                              "123456789012345678901234567890123456789012345678901234567890"}) {
    EXPECT_EQ(python_json(integer), integer);
  }
  EXPECT_EQ(python_json("-0"), "0");
}

// Expected strings: repr() of CPython 3.11.
TEST(PythonJson, FloatsAsPythonPrintsThem) {
  const std::vector<std::pair<const char*, const char*>> cases{{"1.0", "1.0"},
                                                               {"-0.0", "-0.0"},
                                                               {"1e0", "1.0"},
                                                               {"1E2", "100.0"},
                                                               {"2.50", "2.5"},
                                                               {"0.1", "0.1"},
                                                               {"0.30000000000000004", "0.30000000000000004"},
                                                               {"0.0001", "0.0001"},
                                                               {"0.00001", "1e-05"},
                                                               {"1e-7", "1e-07"},
                                                               {"-1.5e-9", "-1.5e-09"},
                                                               {"123456.789", "123456.789"},
                                                               {"1e15", "1000000000000000.0"},
                                                               {"9999999999999998.0", "9999999999999998.0"},
                                                               {"1e16", "1e+16"},
                                                               {"12345678901234567.0", "1.2345678901234568e+16"},
                                                               {"1e20", "1e+20"},
                                                               {"1e22", "1e+22"},
                                                               {"1e23", "1e+23"},
                                                               {"1e100", "1e+100"},
                                                               {"5e-324", "5e-324"},
                                                               {"2.2250738585072014e-308", "2.2250738585072014e-308"},
                                                               {"1.7976931348623157e308", "1.7976931348623157e+308"},
                                                               {"1e-400", "0.0"}};
  for (const auto& [json, expected] : cases) EXPECT_EQ(python_json(json), expected) << json;
}

TEST(PythonJson, FloatsReadBackEqual) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 20000; ++i) {
    const double value =
        std::ldexp(static_cast<double>(static_cast<int64_t>(random())), static_cast<int>(random() % 1400) - 900);
    if (!std::isfinite(value)) continue;
    const std::string printed = python_float(value);
    EXPECT_EQ(std::stod(printed), value) << printed;
    EXPECT_NE(printed.find_first_of(".e"), std::string::npos) << printed;
  }
}

TEST(PythonJson, EqualKeysKeepTheFirstPlaceAndTheLastValue) {
  EXPECT_EQ(python_json(R"({"a":1,"b":2,"a":3})"), R"({"a": 3, "b": 2})");
  // Beyond the size that is searched in place.
  std::string json = "{", expected = "{";
  for (int i = 0; i < 50; ++i) json += fmt::format("\"k{0}\":{0},", i);
  json += R"("k3":"x","k40":"y"})";
  for (int i = 0; i < 50; ++i) {
    const std::string value = i == 3 ? R"("x")" : i == 40 ? R"("y")" : std::to_string(i);
    expected += fmt::format("{}\"k{}\": {}", i > 0 ? ", " : "", i, value);
  }
  EXPECT_EQ(python_json(json), expected + "}");
}

TEST(PythonJson, RefusesWhatIsNotJson) {
  for (const char* json :
       {"",   " ",  "{",  "[1,]", R"({"a":})", "{a:1}",     "'x'",   "nul",     "1 2",    "01",
        "+1", ".5", "1.", "NaN",  "Infinity",  "-Infinity", "[NaN]", R"("\x")", "\"\n\"", "// c\n1"}) {
    EXPECT_NE(refused(json).find("is not valid JSON at byte"), std::string::npos) << json << ": " << refused(json);
  }
}

TEST(PythonJson, RefusesInvalidUnicode) {
  for (const char* json :
       {"\"\xff\"", "\"\xc3\"", "\"\xc0\xaf\"", "\"\xed\xa0\x80\"", "\"\xf4\x90\x80\x80\"", "\"\xe4\xbd\""}) {
    EXPECT_NE(refused(json).find("is not valid UTF-8"), std::string::npos) << refused(json);
  }
  for (const char* json : {R"("\ud800")", R"("\ud800x")", R"("\ud800\u0041")", R"("\udc00")"}) {
    EXPECT_NE(refused(json).find("lone surrogate"), std::string::npos) << refused(json);
  }
  EXPECT_NE(refused("1e999").find("out of range"), std::string::npos) << refused("1e999");
}

TEST(PythonJson, ErrorsDoNotQuoteTheText) {
  EXPECT_EQ(refused("{\"messages\": \"my secret\" oops").find("secret"), std::string::npos);
}

TEST(PythonJson, NestingIsBounded) {
  const auto nested = [](std::size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_EQ(python_json(nested(128)), nested(128));
  EXPECT_EQ(refused(nested(129)), "nests deeper than 128 levels");
  std::string objects;
  for (int i = 0; i < 129; ++i) objects += R"({"a":)";
  EXPECT_EQ(refused(objects), "nests deeper than 128 levels");
  EXPECT_EQ(refused(std::string(5'000'000, '[')), "nests deeper than 128 levels");
}

// An object with many keys must not cost quadratic time: 300,000 keys would take minutes.
TEST(PythonJson, ManyKeysAreLinear) {
  std::string json = "{";
  for (int i = 0; i < 300'000; ++i) json += fmt::format("\"{}\":0,", i);
  json += "\"x\":0}";
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(parse_json(json, "test").object()->size(), 300'001U);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
}

TEST(JsonValue, TruthIsPythons) {
  const auto truthy = [](const char* json) { return parse_json(json, "test").truthy(); };
  for (const char* json : {"null", "false", "0", "-0", "0.0", "-0.0", "0e5", "\"\"", "[]", "{}"})
    EXPECT_FALSE(truthy(json)) << json;
  for (const char* json :
       {"true", "1", "-1", "0.5", "1e-7", "10", "\"0\"", "[0]", "{\"a\":0}", "1e300", "100000000000000000000"}) {
    EXPECT_TRUE(truthy(json)) << json;
  }
}

}  // namespace
}  // namespace tandem::chat::json_test
