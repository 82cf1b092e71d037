// The body of the Responses dialect against the chat body that means the same, and what is refused.
#include "api/responses_request.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "api/errors.h"
#include "api/fakes.h"
#include "base/error.h"
#include "chat/render.h"

namespace tandem::api::responses_request_test {
namespace {

FakeModel& nano() {
  static FakeModel model(TANDEM_SOURCE_DIR "/models/nano");
  return model;
}

ResponseStore& store() {
  static ResponseStore kept;
  return kept;
}

ResponsesRequest parse(const std::string& body) { return parse_responses_request(body, nano().served, store(), 1); }
std::string prompt(const std::string& body) { return chat::render(parse(body).conversation).text(); }
std::string chat_prompt(const std::string& body) { return chat::render(chat::parse_conversation(body)).text(); }

std::string items(const std::string& list, const std::string& fields = {}) {
  return fmt::format(R"({{"input":[{}]{}{}}})", list, fields.empty() ? "" : ",", fields);
}
std::string hi(const std::string& fields) { return items(R"({"role":"user","content":"Hi"})", fields); }

const std::string kHello = R"({"messages":[{"role":"user","content":"Hi"}]})";

TEST(ResponsesRequest, PromptsAreThoseOfTheSameChat) {
  const std::string hello = chat_prompt(kHello);
  EXPECT_EQ(prompt(R"({"input":"Hi"})"), hello);
  EXPECT_EQ(prompt(hi("")), hello);
  EXPECT_EQ(
      prompt(hi(R"("tools":[],"include":["reasoning.encrypted_content"],"client_metadata":{"a":"b"},"metadata":{},)"
                R"("text":{"verbosity":"low","format":{"type":"text"}},"truncation":"auto","unheard_of":1,)"
                R"("prompt_cache_key":"k","service_tier":"auto","max_tool_calls":3,"background":false)")),
      hello);
  EXPECT_EQ(prompt(items(R"({"type":"message","id":"m","status":"completed","role":"user","content":[
      {"type":"input_text","text":"H"},{"type":"input_text","text":"i"}]})")),
            hello);
  EXPECT_EQ(prompt(items("")), "[gMASK]<sop><|system|>Reasoning Effort: Max<|assistant|><think>");  // Codex asks so
  const std::string system = chat_prompt(
      R"({"messages":[{"role":"system","content":"A"},{"role":"system","content":"B"},{"role":"user","content":"Hi"}]})");
  EXPECT_EQ(
      prompt(items(R"({"role":"developer","content":"B"},{"role":"user","content":"Hi"})", R"("instructions":"A")")),
      system);
  EXPECT_EQ(prompt(hi(R"("instructions":"")")), hello);
}

TEST(ResponsesRequest, ItemsOfOneTurnAreOneMessage) {
  const std::string chat = chat_prompt(R"({"messages":[
      {"role":"user","content":"Hi"},
      {"role":"assistant","content":"So.","reasoning_content":"why not","tool_calls":[
        {"id":"1","function":{"name":"get","arguments":{"b":1.0,"a":[true]}}},
        {"id":"2","function":{"name":"patch","arguments":{"input":"a\n\"b\""}}},
        {"id":"3","function":{"name":"mcp__files__read","arguments":{}}}]},
      {"role":"tool","tool_call_id":"1","content":"one"},{"role":"tool","tool_call_id":"2","content":"two"},
      {"role":"tool","tool_call_id":"3","content":"three"},
      {"role":"assistant","content":"Then","reasoning_content":"r"},
      {"role":"user","content":"Go on"}]})");
  EXPECT_EQ(prompt(items(R"({"role":"user","content":"Hi"},
      {"type":"reasoning","id":"rs","summary":[{"type":"summary_text","text":"no"}],
       "content":[{"type":"reasoning_text","text":"why "},{"type":"reasoning_text","text":"not"}]},
      {"type":"message","role":"assistant","content":[]},
      {"role":"assistant","content":[{"type":"output_text","text":"So.","annotations":[]}]},
      {"type":"function_call","call_id":"1","name":"get","arguments":"{\"b\":1.0,\"a\":[true]}"},
      {"type":"web_search_call","id":"ws"},{"type":"local_shell_call"},
      {"type":"custom_tool_call","call_id":"2","name":"patch","input":"a\n\"b\""},
      {"type":"function_call","call_id":"3","name":"read","namespace":"mcp__files__","arguments":""},
      {"type":"custom_tool_call_output","call_id":"2","output":"two"},
      {"type":"function_call_output","call_id":"3","output":[{"type":"input_text","text":"three"}]},
      {"type":"function_call_output","call_id":"1","output":"one"},
      {"type":"reasoning","summary":[{"type":"summary_text","text":"r"}],"encrypted_content":"x"},
      {"role":"assistant","content":"Then"},
      {"type":"item_reference","id":"gone"},
      {"role":"user","content":"Go on"})")),
            chat);
}

TEST(ResponsesRequest, ReasoningThatNothingFollowsIsLeftOut) {
  EXPECT_EQ(prompt(items(R"({"type":"reasoning","content":[{"type":"reasoning_text","text":"cut"}]},
      {"role":"user","content":"Hi"})")),
            chat_prompt(kHello));
}

TEST(ResponsesRequest, ReasoningBehindContentBeginsAnotherMessage) {
  EXPECT_EQ(prompt(items(R"({"role":"user","content":"Hi"},{"role":"assistant","content":"a"},
      {"type":"reasoning","content":[{"type":"reasoning_text","text":"r"}]},{"role":"assistant","content":"b"})")),
            chat_prompt(R"({"messages":[{"role":"user","content":"Hi"},{"role":"assistant","content":"a"},
      {"role":"assistant","content":"b","reasoning_content":"r"}]})"));
}

TEST(ResponsesRequest, ToolsOfAllKinds) {
  const std::string functions = R"([
      {"name":"get","description":"d","parameters":{"type":"object","properties":{"b":{},"a":{}}}},
      {"name":"bare","parameters":{}},
      {"name":"patch","description":"p","parameters":{"type":"object","properties":{"input":{"type":"string",
       "description":"The whole input, in the language of this lark grammar:\nstart: X"}},"required":["input"]}},
      {"name":"free","parameters":{"type":"object","properties":{"input":{"type":"string",
       "description":"The whole input, as it stands."}},"required":["input"]}},
      {"name":"mcp__files__read","description":"r","parameters":{"type":"object"}},
      {"name":"files__edit","parameters":{"type":"object","properties":{"input":{"type":"string",
       "description":"The whole input, as it stands."}},"required":["input"]}}])";
  const std::string tools = R"("tools":[
      {"type":"function","name":"get","description":"d","strict":true,
       "parameters":{"type":"object","properties":{"b":{},"a":{}}}},
      {"type":"function","name":"bare","description":null,"parameters":null},
      {"type":"custom","name":"patch","description":"p",
       "format":{"type":"grammar","syntax":"lark","definition":"start: X"}},
      {"type":"custom","name":"free","format":{"type":"text"}},
      {"type":"namespace","name":"mcp__files__","description":"n","tools":[
        {"type":"function","name":"read","description":"r","parameters":{"type":"object"}}]},
      {"type":"namespace","name":"files","tools":[{"type":"custom","name":"edit"},{"type":"other"}]},
      {"type":"web_search"},{"type":"image_generation","output_format":"png"},{"type":"local_shell"}])";
  EXPECT_EQ(prompt(hi(tools)),
            chat_prompt(fmt::format(R"({{"tools":{},"messages":[{{"role":"user","content":"Hi"}}]}})", functions)));
  const ResponsesTools read = parse(hi(tools)).tools;
  EXPECT_EQ(read.definitions.size(), 6u);
  EXPECT_TRUE(read.origin_of("patch").custom);
  EXPECT_EQ(read.origin_of("mcp__files__read").name, "read");
  EXPECT_EQ(read.origin_of("mcp__files__read").name_space, "mcp__files__");
  EXPECT_FALSE(read.origin_of("mcp__files__read").custom);
  EXPECT_EQ(read.origin_of("files__edit").name_space, "files");
  EXPECT_TRUE(read.origin_of("files__edit").custom);
  EXPECT_EQ(read.origin_of("unknown").name, "unknown");
  EXPECT_EQ(prompt(hi(R"("tools":[{"type":"web_search"}])")), chat_prompt(kHello));
}

TEST(ResponsesRequest, ThinkingAndEffort) {
  const auto chat = [](const std::string& fields) {
    return chat_prompt(R"({"messages":[{"role":"user","content":"Hi"}],)" + fields + "}");
  };
  EXPECT_EQ(prompt(hi(R"("reasoning":{"effort":"low","summary":"auto"})")), chat(R"("reasoning_effort":"low")"));
  EXPECT_EQ(prompt(hi(R"("reasoning":{"effort":"none"})")), chat(R"("reasoning_effort":"none")"));
  EXPECT_EQ(prompt(hi(R"("reasoning":null)")), chat_prompt(kHello));
  EXPECT_EQ(prompt(hi(R"("model":"nano-nothink","reasoning":{"summary":"auto"})")),
            chat(R"("reasoning_effort":"none")"));
  EXPECT_EQ(prompt(hi(R"("model":"nano-low","reasoning":{"effort":"high"})")), chat(R"("reasoning_effort":"high")"));
}

TEST(ResponsesRequest, ThinkingBudget) {
  EXPECT_EQ(parse(hi("")).request.thinking_budget, -1);
  for (const auto* name : {"thinking_token_budget", "thinking_budget", "reasoning_budget", "thinking_budget_tokens"}) {
    EXPECT_EQ(parse(hi(fmt::format(R"("{}":100)", name))).request.thinking_budget, 100) << name;
    EXPECT_THROW(parse(hi(fmt::format(R"("{}":-2)", name))), ApiError) << name;
  }
  EXPECT_EQ(parse(hi(R"("reasoning":{"effort":"low","max_tokens":5})")).request.thinking_budget, 5);
}

TEST(ResponsesRequest, Pictures) {
  const std::string picture = R"({"type":"input_image","image_url":"data:"})";
  EXPECT_EQ(
      prompt(items(fmt::format(R"({{"role":"user","content":[{0}]}},
      {{"type":"function_call_output","call_id":"1","output":[{0}]}},{{"role":"user","content":"Hi"}})",
                               picture))),
      chat_prompt(fmt::format(R"({{"messages":[{{"role":"user","content":"{0}"}},{{"role":"tool","content":"{0}"}},
      {{"role":"user","content":"Hi"}}]}})",
                              chat::kPictureReminder)));
  try {
    parse(items(fmt::format(R"({{"role":"user","content":[{}]}})", picture)));
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.where(), "input[0].content[0].type");
  }
}

TEST(ResponsesRequest, GenerationFields) {
  const ChatRequest request =
      parse(hi(R"("max_output_tokens":7,"temperature":0.5,"top_p":0.25,"top_k":3,"seed":9,"stream":true,)"
               R"("parallel_tool_calls":false,"tool_choice":"none","stop":["x"])"))
          .request;
  EXPECT_EQ(request.max_tokens, 7);
  EXPECT_EQ(request.sampling.temperature, 0.5);
  EXPECT_EQ(request.sampling.top_p, 0.25);
  EXPECT_EQ(request.sampling.top_k, 3);
  EXPECT_EQ(request.seed, 9u);
  EXPECT_TRUE(request.stream);
  EXPECT_FALSE(request.parallel_tool_calls);
  EXPECT_TRUE(request.tool_choice_none);
  EXPECT_EQ(request.stop, std::vector<std::string>{"x"});
  EXPECT_TRUE(parse(hi("")).store);
  EXPECT_FALSE(parse(hi(R"("store":false)")).store);
}

TEST(ResponsesRequest, ContinuesFromWhatIsKept) {
  StoredResponse kept;
  kept.id = "resp_kept";
  kept.client = 1;
  kept.messages = chat::parse_conversation(R"({"messages":[{"role":"user","content":"Hi"},
      {"role":"assistant","content":"Hello","reasoning_content":"r"}]})")
                      .messages;
  chat::Message item;
  item.role = chat::Role::assistant;
  item.tool_calls.push_back({"c", "get", "{}"});
  kept.items.emplace_back("fc_kept", item);
  store().put(kept);
  const ResponsesRequest next = parse(R"({"previous_response_id":"resp_kept","instructions":"New.","input":"And?"})");
  EXPECT_EQ(next.instructions, 1u);
  EXPECT_EQ(chat::render(next.conversation).text(), chat_prompt(R"({"messages":[{"role":"system","content":"New."},
      {"role":"user","content":"Hi"},{"role":"assistant","content":"Hello","reasoning_content":"r"},
      {"role":"user","content":"And?"}]})"));
  EXPECT_EQ(prompt(items(R"({"role":"user","content":"Hi"},{"type":"item_reference","id":"fc_kept"},
      {"type":"function_call_output","call_id":"c","output":"out"})")),
            chat_prompt(R"({"messages":[{"role":"user","content":"Hi"},
      {"role":"assistant","tool_calls":[{"id":"c","function":{"name":"get","arguments":{}}}]},
      {"role":"tool","tool_call_id":"c","content":"out"}]})"));
  for (const int64_t client : {0, 2}) {
    try {
      parse_responses_request(R"({"previous_response_id":"resp_kept","input":"x"})", nano().served, store(), client);
      FAIL() << "another client's";
    } catch (const ApiError& error) {
      EXPECT_EQ(error.status(), 404);
      EXPECT_EQ(error.code(), "previous_response_not_found");
      EXPECT_EQ(error.param(), "previous_response_id");
    }
  }
}

TEST(ResponsesRequest, RepeatsWhatTheClientSent) {
  const ResponsesRequest out = parse(hi(
      R"("instructions":"I","max_output_tokens":5,"tools":[{"type":"function","name":"f","parameters":{"n":12345678901234567890}}],)"
      R"("metadata":{"k":"v"},"reasoning":{"effort":"low"},"text":{"verbosity":"low"},"temperature":1)"));
  const auto echo =
      nlohmann::json::parse(fmt::format(R"({{{}{}"end":0}})", out.echo_before_output, out.echo_after_output));
  EXPECT_EQ(echo["instructions"], "I");
  EXPECT_EQ(echo["max_output_tokens"], 5);
  EXPECT_EQ(echo["tools"][0]["name"], "f");
  EXPECT_NE(out.echo_after_output.find("12345678901234567890"), std::string::npos);
  EXPECT_EQ(echo["metadata"]["k"], "v");
  EXPECT_EQ(echo["reasoning"]["effort"], "low");
  EXPECT_EQ(echo["text"]["verbosity"], "low");
  EXPECT_EQ(echo["temperature"], 1);
  EXPECT_EQ(echo["tool_choice"], "auto");
  EXPECT_EQ(echo["parallel_tool_calls"], true);
  EXPECT_EQ(echo["truncation"], "disabled");
  EXPECT_EQ(echo["previous_response_id"], nullptr);
}

// Body, and the field that the error names.
TEST(ResponsesRequest, RefusalsNameTheField) {
  const std::pair<std::string, std::string> cases[] = {
      {"{}", "input"},
      {R"({"input":7})", "input"},
      {R"({"input":[7]})", "input[0]"},
      {R"({"input":[{"content":"x"}]})", "input[0].type"},
      {R"({"input":[{"role":"robot","content":"x"}]})", "input[0].role"},
      {R"({"input":[{"role":"user","content":[{"text":"x"}]}]})", "input[0].content[0].type"},
      {R"({"input":[{"role":"user","content":[{"type":"input_file"}]}]})", "input[0].content[0].type"},
      {R"({"input":[{"role":"user","content":[{"type":"input_text"}]}]})", "input[0].content[0].text"},
      {R"({"input":[{"type":"function_call","call_id":"1","arguments":"{}"}]})", "input[0].name"},
      {R"({"input":[{"type":"function_call","name":"f","arguments":"{}"}]})", "input[0].call_id"},
      {R"({"input":[{"type":"function_call","call_id":"1","name":"f","arguments":"[]"}]})", "input[0].arguments"},
      {R"({"input":[{"type":"function_call_output","call_id":"1"}]})", "input[0].output"},
      {R"({"input":[{"type":"custom_tool_call","call_id":"1","name":"f"}]})", "input[0].input"},
      {R"({"input":[{"type":"reasoning","content":["x"]}]})", "input[0].content[0]"},
      {R"({"input":[{"type":"item_reference"}]})", "input[0].id"},
      {hi(R"("tools":{})"), "tools"},
      {hi(R"("tools":[{"name":"f"}])"), "tools[0].type"},
      {hi(R"("tools":[{"type":"function"}])"), "tools[0].name"},
      {hi(R"("tools":[{"type":"function","name":""}])"), "tools[0].name"},
      {hi(R"("tools":[{"type":"function","name":"a b"}])"), "tools[0].name"},
      {hi(R"("tools":[{"type":"function","name":"f"},{"type":"custom","name":"f"}])"), "tools[1].name"},
      {hi(R"("tools":[{"type":"function","name":"f","parameters":[]}])"), "tools[0].parameters"},
      {hi(R"("tools":[{"type":"namespace","name":"n"}])"), "tools[0].tools"},
      {hi(R"("tool_choice":"sometimes")"), "tool_choice"},
      {hi(R"("tool_choice":{"type":"allowed_tools"})"), "tool_choice"},
      {hi(R"("tool_choice":{"type":"function"})"), "tool_choice.name"},
      {hi(R"("tool_choice":1)"), "tool_choice"},
      {hi(R"("text":{"format":{"type":"yaml"}})"), "text.format"},
      {hi(R"("text":{"format":{"type":"json_schema"}})"), "text.format.schema"},
      {hi(R"("text":{"format":{}})"), "text.format.type"},
      {hi(R"("text":"x")"), "text"},
      {hi(R"("background":true)"), "background"},
      {hi(R"("prompt":{"id":"p"})"), "prompt"},
      {hi(R"("conversation":"c")"), "conversation"},
      {hi(R"("truncation":"always")"), "truncation"},
      {hi(R"("top_logprobs":2)"), "top_logprobs"},
      {hi(R"("max_output_tokens":0)"), "max_output_tokens"},
      {hi(R"("max_output_tokens":"7")"), "max_output_tokens"},
      {hi(R"("temperature":3)"), "temperature"},
      {hi(R"("store":"yes")"), "store"},
      {hi(R"("n":2)"), "n"},
      {hi(R"("metadata":[])"), "metadata"},
      {hi(R"("instructions":["x"])"), "instructions"},
      {hi(R"("previous_response_id":7)"), "previous_response_id"},
      {hi(R"("reasoning":{"effort":"huge"})"), "reasoning.effort"},
      {hi(R"("reasoning":"low")"), "reasoning"},
  };
  for (const auto& [body, field] : cases) {
    try {
      parse(body);
      ADD_FAILURE() << "accepted: " << body;
    } catch (const ApiError& error) {
      EXPECT_EQ(error.status(), 400) << body;
      EXPECT_EQ(error.param(), field) << body;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::usage) << body;
      EXPECT_EQ(error.where(), field) << body;
    }
  }
}

// Cut at every place, the arguments give the same input.
TEST(CustomInput, OfArgumentsInPieces) {
  const std::string input = "a\n\"b\" \\ \t\x01 \xC3\xA9 \xF0\x9F\x98\x80 end";
  const std::string arguments = custom_arguments(input);
  for (size_t first = 0; first <= arguments.size(); ++first) {
    for (size_t second = first; second <= arguments.size(); second += 3) {
      CustomInput reader;
      std::string all = reader.push(arguments.substr(0, first));
      all += reader.push(arguments.substr(first, second - first));
      all += reader.push(arguments.substr(second));
      all += reader.finish();
      ASSERT_EQ(all, input) << first << " " << second;
      ASSERT_EQ(reader.text(), input);
    }
  }
  CustomInput surrogates;
  std::string all = surrogates.push(R"({"input": "\ud83d\u)");
  all += surrogates.push(R"(de00\u00e9"})");
  EXPECT_EQ(all, "\xF0\x9F\x98\x80\xC3\xA9");
  for (const auto* other : {R"({"patch": "x"})", "{}", R"({"input": 7})"}) {
    CustomInput reader;
    EXPECT_EQ(reader.push(other), "");
    EXPECT_EQ(reader.finish(), other);
    EXPECT_EQ(reader.text(), other);
  }
}

}  // namespace
}  // namespace tandem::api::responses_request_test
