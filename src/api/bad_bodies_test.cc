// Bodies that are no requests, in every dialect: each is refused in the dialect's words, names what is wrong, and
// leaves the server as it was.
#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "api/json_body.h"
#include "api/service_fixture.h"

namespace tandem::api::bad_bodies_test {
namespace {

using Json = nlohmann::json;

struct Endpoint {
  const char* path;
  const char* prompt;  // the one field that has to be there
  bool runs = true;    // else the model is not asked
};
const Endpoint endpoints[] = {
    {"/v1/chat/completions", R"("messages":[{"role":"user","content":"Hi"}])"},
    {"/v1/completions", R"("prompt":"Hi")"},
    {"/v1/messages", R"("messages":[{"role":"user","content":"Hi"}])"},
    {"/v1/responses", R"("input":"Hi")"},
    {"/v1/messages/count_tokens", R"("messages":[{"role":"user","content":"Hi"}])", false},
};

class BadBodiesTest : public ServiceTest {
 protected:
  // The message and the field of the refusal; the dialect of messages has no field.
  static std::pair<std::string, std::string> refusal(Setup& setup, const Endpoint& endpoint, const std::string& body) {
    const size_t before = setup.engine.count();
    const auto responder = setup.call("POST", endpoint.path, body);
    EXPECT_EQ(setup.engine.count(), before) << body.substr(0, 200);
    EXPECT_EQ(responder->replies.size(), 1u);
    if (responder->replies.empty()) return {};
    EXPECT_EQ(responder->replies[0].status, 400) << endpoint.path << " " << body.substr(0, 200);
    const Json error = Json::parse(responder->replies[0].body)["error"];
    EXPECT_EQ(error["type"], "invalid_request_error");
    const Json param = error.value("param", Json(nullptr));
    return {error["message"], param.is_null() ? "" : param.get<std::string>()};
  }
  static bool is_taken(Setup& setup, const Endpoint& endpoint, const std::string& body) {
    const size_t before = setup.engine.count();
    const auto responder = setup.call("POST", endpoint.path, body);
    if (!endpoint.runs) return responder->replies.at(0).status == 200;
    EXPECT_TRUE(responder->replies.empty()) << endpoint.path << " " << responder->replies[0].body;
    return setup.engine.count() == before + 1;
  }
  static std::string with(const Endpoint& endpoint, const std::string& fields) {
    return fmt::format("{{{},{}}}", endpoint.prompt, fields);
  }
};

TEST_F(BadBodiesTest, NotJson) {
  using namespace std::string_literals;
  const std::pair<std::string, std::string> cases[] = {
      // Body, and what the message says.
      {"", "not valid JSON"},
      {"{", "not valid JSON"},
      {"{}x", "not valid JSON"},
      {"{'a':1}", "not valid JSON"},
      {"{\"a\":1,}", "not valid JSON"},
      {"{\"a\":.5}", "not valid JSON"},
      {"{\"a\":01}", "not valid JSON"},
      {"{\"a\":NaN}", "not valid JSON"},
      {"{\"a\":Infinity}", "not valid JSON"},
      {"{\"a\":\"\n\"}", "not valid JSON"},  // a control character
      {"{\"a\":\"\\x\"}", "not valid JSON"},
      {"{/**/}", "not valid JSON"},
      {"[]", "a list; expected a JSON object"},
      {"7", "an integer; expected a JSON object"},
      {"null", "null; expected a JSON object"},
      {"\"text\"", "a string; expected a JSON object"},
      {"{\"a\":\"\xFF\"}", "not valid UTF-8 (byte 6)"},
      {"{\"a\":\"\xC0\x80\"}", "not valid UTF-8"},          // an overlong NUL
      {"{\"a\":\"\xED\xA0\x80\"}", "not valid UTF-8"},      // a surrogate in UTF-8
      {"{\"a\":\"\xF4\x90\x80\x80\"}", "not valid UTF-8"},  // beyond the last code point
      {"{\"a\":\"\\ud800\"}", "not valid JSON"},            // lone surrogates
      {"{\"a\":\"\\udc00x\"}", "not valid JSON"},
      {"{\"a\":\"\\ud800\\ud800\"}", "not valid JSON"},
      {"{\"a\":\"\0\"}"s, "not valid JSON (byte 7)"},
      {"{}\0"s, "not valid JSON (byte 3)"},
      {"{\"a\":1e999}", "a number is out of range"},
      {"{\"a\":-1e999}", "a number is out of range"},
      {"\xEF\xBB\xBF", "not valid JSON"},  // nothing but a byte order mark
  };
  Setup setup;
  for (const Endpoint& endpoint : endpoints) {
    for (const auto& [body, says] : cases) {
      const std::string message = refusal(setup, endpoint, body).first;
      EXPECT_NE(message.find(says), std::string::npos) << endpoint.path << " " << body << ": " << message;
    }
  }
}

TEST_F(BadBodiesTest, NestingAndNumberOfValues) {
  const auto lists = [](int depth) {
    return std::string(static_cast<size_t>(depth), '[') + std::string(static_cast<size_t>(depth), ']');
  };
  Setup setup;
  for (const Endpoint& endpoint : endpoints) {
    // The body is the first level.
    EXPECT_TRUE(is_taken(setup, endpoint, with(endpoint, R"("unheard_of":)" + lists(max_json_depth - 1))));
    EXPECT_TRUE(is_taken(setup, endpoint, with(endpoint, R"("unheard_of":)" + lists(64))));
    EXPECT_NE(refusal(setup, endpoint, with(endpoint, R"("unheard_of":)" + lists(max_json_depth))).first.find("128"),
              std::string::npos);
    EXPECT_NE(refusal(setup, endpoint, std::string(2'000'000, '[')).first.find("128"), std::string::npos);
    std::string many = "[";
    for (int64_t i = 0; i < max_json_values; ++i) many += "0,";
    many += "0]";
    EXPECT_NE(refusal(setup, endpoint, with(endpoint, R"("unheard_of":)" + many)).first.find("values"),
              std::string::npos);
  }
}

// Of two equal keys the last one counts, as in Python; the first is not even looked at.
TEST_F(BadBodiesTest, DuplicateKeys) {
  for (const Endpoint& endpoint : endpoints) {
    Setup setup;
    EXPECT_TRUE(is_taken(setup, endpoint, with(endpoint, R"("temperature":"hot","temperature":0.5)")));
    if (endpoint.runs) {
      EXPECT_EQ(setup.engine.request(0).sampling.temperature, 0.5);
    }
    refusal(setup, endpoint, with(endpoint, R"("temperature":0.5,"temperature":"hot")"));
  }
}

// Fields that every dialect has, and a value of each that is none.
TEST_F(BadBodiesTest, FieldsOfAllDialects) {
  const std::pair<const char*, std::vector<const char*>> cases[] = {
      {"model", {"7", "[]", "{}", "true"}},
      {"stream", {"1", "0", R"("true")", "[]"}},
      {"temperature", {"-0.1", "2.1", "1e308", R"("1")", "true", "[]", "{}"}},
      {"top_p", {"0", "-1", "1.0001", R"("1")", "false", "[]"}},
      {"top_k", {"-2", "1.5", "2147483648", "1e300", "99999999999999999999", R"("4")", "true"}},
      {"seed", {"9223372036854775808", "-9223372036854775809", "1e19", "0.5", R"("1")", "true", "[]"}},
      {"cache_salt", {R"("")", "7", "[]"}},
      {"drafter", {R"("unheard-of")", "7", "true"}},
      {"draft", {R"("no")", "0"}},
      {"priority", {"0.5", R"("high")", "true", "[]", "1e19"}},
      {"logit_bias", {"[]", R"({"x":1})", R"({"-1":1})", R"({"01":1})", R"({"5":"1"})", R"({"999999":1})"}},
      {"allowed_token_ids", {"[]", "[-1]", "[999999]", R"(["1"])", "7", "[[1]]"}},
      {"bad_words", {R"([""])", "[7]", "7", R"("word")"}},
      {"stop_token_ids", {"[-1]", "[999999]", "[1.5]", "7", "{}"}},
      {"min_tokens", {"-1", "0.5", "true", R"("1")"}},
      {"min_p", {"-0.1", "1.1", "true"}},
      {"presence_penalty", {"-2.1", "2.1", "true"}},
      {"frequency_penalty", {"-2.1", "2.1", R"("1")"}},
      {"repetition_penalty", {"0", "-1", "1e7", "true"}},
      {"n", {"0", "-1", "129", "1.5", "true", R"("2")"}},
      {"stream_options", {"7", "[]", R"("x")", R"({"include_usage":1})"}},
      {"use_beam_search", {"true", "1"}},
      {"ignore_eos", {"1", R"("x")"}},
  };
  Setup setup;
  for (const Endpoint& endpoint : endpoints) {
    for (const auto& [field, values] : cases) {
      EXPECT_TRUE(is_taken(setup, endpoint, with(endpoint, fmt::format("\"{}\":null", field)))) << field;
      for (const auto* value : values) {
        const auto [message, param] = refusal(setup, endpoint, with(endpoint, fmt::format("\"{}\":{}", field, value)));
        EXPECT_NE(message.find(field), std::string::npos) << endpoint.path << " " << field << " " << value;
        if (!std::string_view(endpoint.path).starts_with("/v1/messages")) {
          EXPECT_EQ(param.substr(0, std::string_view(field).size()), field);
        }
      }
    }
  }
}

// What the prompt itself may not be.
TEST_F(BadBodiesTest, PromptsOfEachDialect) {
  const std::pair<size_t, std::vector<std::pair<std::string, std::string>>> cases[] = {
      // Of an endpoint: body, and the field that the message names.
      {0,
       {{"{}", "messages"},
        {R"({"messages":null})", "messages"},
        {R"({"messages":"Hi"})", "messages"},
        {R"({"messages":[]})", "messages"},
        {R"({"messages":[7]})", "messages[0]"},
        {R"({"messages":[{"content":"Hi"}]})", "messages[0].role"},
        {R"({"messages":[{"role":"robot"}]})", "messages[0].role"},
        {R"({"messages":[{"role":"user","content":7}]})", "messages[0].content"},
        {R"({"messages":[{"role":"user","content":[{"type":"video"}]}]})", "messages[0].content[0].type"},
        {R"({"messages":[{"role":"user","content":[{"type":"input_audio"}]}]})", "messages[0].content[0].type"},
        {R"({"messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":7}}]}]})",
         "messages[0].tool_calls[0].function.arguments"}}},
      {1,
       {{"{}", "prompt"},
        {R"({"prompt":7})", "prompt"},
        {R"({"prompt":[]})", "prompt"},
        {R"({"prompt":[-1]})", "prompt[0]"},
        {R"({"prompt":[1,"a"]})", "prompt[1]"},
        {R"({"prompt":["a",1]})", "prompt[1]"},
        {R"({"prompt":[[]]})", "prompt"},
        {R"({"prompt":[[99999999]]})", "prompt[0][0]"},
        {R"({"prompt":{}})", "prompt"},
        {R"({"prompt":"a","suffix":"b"})", "suffix"},
        {R"({"prompt":"a","max_tokens":0})", "max_tokens"},
        {R"({"prompt":"a","best_of":2})", "best_of"}}},
      {2,
       {{"{}", "messages"},
        {R"({"messages":[]})", "messages"},
        {R"({"messages":[{"role":"tool","content":"x"}]})", "messages[0].role"},
        {R"({"messages":[{"role":"user"}]})", "messages[0].content"},
        {R"({"messages":[{"role":"user","content":[{"type":"image"}]}]})", "messages[0].content[0].type"},
        {R"({"messages":[{"role":"user","content":"a"}],"stop_sequences":[""]})", "stop_sequences"},
        {R"({"messages":[{"role":"user","content":"a"}],"thinking":{"type":"maybe"}})", "thinking.type"},
        {R"({"messages":[{"role":"user","content":"a"}],"tool_choice":{"type":"sometimes"}})", "tool_choice.type"},
        {R"({"messages":[{"role":"user","content":"a"}],"mcp_servers":[{}]})", "mcp_servers"},
        {R"({"messages":[{"role":"user","content":"a"}],"max_tokens":0})", "max_tokens"}}},
  };
  Setup setup;
  for (const auto& [endpoint, bodies] : cases) {
    for (const auto& [body, field] : bodies) {
      const auto message = refusal(setup, endpoints[endpoint], body).first;
      EXPECT_NE(message.find(field), std::string::npos) << body << ": " << message;
    }
  }
}

}  // namespace
}  // namespace tandem::api::bad_bodies_test
