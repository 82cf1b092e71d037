// The Anthropic dialect's body against the chat body that means the same, and what is refused.
#include "api/messages_request.h"

#include <fmt/core.h>

#include "api/errors.h"
#include "api/fakes.h"
#include "base/error.h"
#include "chat/render.h"

namespace tandem::api::messages_request_test {
namespace {

FakeModel& nano() {
  static FakeModel model(TANDEM_SOURCE_DIR "/models/nano");
  return model;
}

MessagesRequest parse(const std::string& body) { return parse_messages_request(body, nano().served); }
std::string prompt(const std::string& body) { return chat::render(parse(body).conversation).text(); }
std::string chat_prompt(const std::string& body) { return chat::render(chat::parse_conversation(body)).text(); }

// With one user message and further fields.
std::string hi(const std::string& fields) {
  return fmt::format(R"({{"messages":[{{"role":"user","content":"Hi"}}]{}{}}})", fields.empty() ? "" : ",", fields);
}
std::string messages(const std::string& list) { return fmt::format(R"({{"messages":[{}]}})", list); }

TEST(MessagesRequest, PromptsAreThoseOfTheSameChat) {
  const std::string hello = chat_prompt(R"({"messages":[{"role":"user","content":"Hi"}]})");
  EXPECT_EQ(prompt(hi("")), hello);
  EXPECT_EQ(prompt(hi(R"("system":"","tools":[],"metadata":{"user_id":"u"},"unheard_of":1)")), hello);
  EXPECT_EQ(prompt(messages(R"({"role":"user","content":[{"type":"text","text":"H","cache_control":{}},)"
                            R"({"type":"text","text":""},{"type":"text","text":"i"}]})")),
            hello);
  const std::string system =
      chat_prompt(R"({"messages":[{"role":"system","content":"A\nB"},{"role":"user","content":"Hi"}]})");
  EXPECT_EQ(prompt(hi(R"("system":"A\nB")")), system);
  EXPECT_EQ(prompt(hi(R"("system":[{"type":"text","text":"x-anthropic-billing-header: 1"},{"type":"text","text":"A"},)"
                      R"({"type":"text","text":"B"}])")),
            system);
  EXPECT_EQ(prompt(messages(R"({"role":"system","content":"A\nB"},{"role":"user","content":"Hi"})")), system);
}

TEST(MessagesRequest, PresetsAndTemplateArguments) {
  const auto chat = [](const std::string& fields) {
    return chat_prompt(R"({"messages":[{"role":"user","content":"Hi"}],)" + fields + "}");
  };
  const std::string off = chat(R"("reasoning_effort":"none")"), low = chat(R"("reasoning_effort":"low")");
  EXPECT_EQ(prompt(hi(R"("model":"nano-nothink")")), off);
  EXPECT_EQ(prompt(hi(R"("model":"nano-low")")), low);
  EXPECT_EQ(prompt(hi(R"("model":"nano-high")")), chat(R"("reasoning_effort":"high")"));
  // What the request itself says counts.
  EXPECT_EQ(prompt(hi(R"("model":"nano-high","output_config":{"effort":"low"})")), low);
  EXPECT_EQ(prompt(hi(R"("model":"nano-nothink","thinking":{"type":"enabled","budget_tokens":4096})")), low);
  EXPECT_EQ(prompt(hi(R"("chat_template_kwargs":{"enable_thinking":false})")), off);
  EXPECT_EQ(prompt(hi(R"("chat_template_kwargs":{"reasoning_effort":"low"})")), low);
}

TEST(MessagesRequest, ToolsCallsAndResults) {
  const std::string chat = chat_prompt(R"({"tools":[{"type":"function","function":{"name":"get","description":"d",
      "parameters":{"type":"object","properties":{"b":{},"a":{}}}}},{"name":"bare","parameters":{}}],"messages":[
      {"role":"user","content":"Hi"},
      {"role":"assistant","content":"So.","reasoning_content":"why","tool_calls":[
        {"id":"1","function":{"name":"get","arguments":{"b":1.0,"a":[true]}}},
        {"id":"2","function":{"name":"get","arguments":{}}}]},
      {"role":"tool","tool_call_id":"2","content":"two"},{"role":"tool","tool_call_id":"1","content":"Error: one"},
      {"role":"user","content":"Go on"}]})");
  EXPECT_EQ(prompt(R"({"tools":[{"name":"get","description":"d","input_schema":{"type":"object","properties":{"b":{},
      "a":{}}},"cache_control":{"type":"ephemeral"}},{"type":"custom","name":"bare"},
      {"type":"web_search_20250305","name":"web_search"}],"messages":[
      {"role":"user","content":"Hi"},
      {"role":"assistant","content":[{"type":"thinking","thinking":"why","signature":"s"},
        {"type":"redacted_thinking","data":"x"},{"type":"text","text":"So."},
        {"type":"tool_use","id":"1","name":"get","input":{"b":1.0,"a":[true]}},
        {"type":"tool_use","id":"2","name":"get","input":{}}]},
      {"role":"user","content":[{"type":"text","text":"Go on"},
        {"type":"tool_result","tool_use_id":"2","content":[{"type":"text","text":"two"}]},
        {"type":"tool_result","tool_use_id":"1","content":"one","is_error":true}]}]})"),
            chat);
}

TEST(MessagesRequest, ResultsAloneMakeNoUserTurn) {
  const std::string text = prompt(messages(
      R"({"role":"user","content":"Hi"},{"role":"assistant","content":[{"type":"tool_use","id":"1","name":"f"}]},)"
      R"({"role":"user","content":[{"type":"tool_result","tool_use_id":"1"}]})"));
  EXPECT_TRUE(text.ends_with("<|observation|><tool_response></tool_response><|assistant|><think>")) << text;
}

TEST(MessagesRequest, PicturesAndDocuments) {
  const std::string picture = R"({"type":"image","source":{"type":"base64","media_type":"image/png","data":"x"}})";
  const std::string old = prompt(messages(
      fmt::format(R"({{"role":"user","content":[{}]}},{{"role":"assistant","content":"A"}},{{"role":"user","content":[)"
                  R"({{"type":"document","source":{{"type":"text","media_type":"text/plain","data":"words"}}}}]}})",
                  picture)));
  EXPECT_NE(old.find(chat::kPictureReminder), std::string::npos);
  EXPECT_NE(old.find("<|user|>words<|assistant|>"), std::string::npos);
  EXPECT_THROW(parse(messages(fmt::format(R"({{"role":"user","content":[{}]}})", picture))), Error);
}

TEST(MessagesRequest, ALastAssistantMessageIsContinued) {
  const std::string text =
      prompt(messages(R"({"role":"user","content":"Hi"},{"role":"assistant","content":"The answer is"})"));
  EXPECT_TRUE(text.ends_with("<|user|>Hi<|assistant|><think></think>The answer is")) << text;
}

TEST(MessagesRequest, Thinking) {
  EXPECT_TRUE(parse(hi("")).conversation.thinking);
  EXPECT_FALSE(parse(hi("")).request.include_reasoning);
  const MessagesRequest adaptive = parse(hi(R"("thinking":{"type":"adaptive"})"));
  EXPECT_TRUE(adaptive.conversation.thinking && adaptive.request.include_reasoning);
  EXPECT_EQ(adaptive.conversation.effort, chat::Effort::max);
  const MessagesRequest off = parse(hi(R"("thinking":{"type":"disabled"})"));
  EXPECT_FALSE(off.conversation.thinking || off.request.include_reasoning);
  const auto effort = [](const std::string& fields) { return parse(hi(fields)).conversation.effort; };
  EXPECT_EQ(effort(R"("thinking":{"type":"enabled","budget_tokens":1024})"), chat::Effort::low);
  EXPECT_EQ(effort(R"("thinking":{"type":"enabled","budget_tokens":10000})"), chat::Effort::high);
  EXPECT_EQ(effort(R"("thinking":{"type":"enabled","budget_tokens":31999})"), chat::Effort::max);
  EXPECT_EQ(effort(R"("thinking":{"type":"enabled","budget_tokens":31999},"output_config":{"effort":"low"})"),
            chat::Effort::low);
  EXPECT_EQ(effort(R"("output_config":{"effort":"medium"})"), chat::Effort::high);
}

TEST(MessagesRequest, SamplingAndStops) {
  const ChatRequest request =
      parse(hi(R"("max_tokens":7,"temperature":0.5,"top_p":0.25,"top_k":3,"stop_sequences":["a","b"],"stream":true,)"
               R"("model":"claude","seed":5,"cache_salt":"s",)"
               R"("tool_choice":{"type":"auto","disable_parallel_tool_use":true})"))
          .request;
  EXPECT_EQ(request.max_tokens, 7);
  EXPECT_EQ(request.sampling.temperature, 0.5);
  EXPECT_EQ(request.sampling.top_p, 0.25);
  EXPECT_EQ(request.sampling.top_k, 3);
  EXPECT_EQ(request.stop, (std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(request.stream);
  EXPECT_EQ(request.model, "claude");
  EXPECT_EQ(request.seed, 5u);
  EXPECT_EQ(request.cache_salt, "s");
  EXPECT_FALSE(request.parallel_tool_calls);
  EXPECT_FALSE(request.tool_choice_none);
  EXPECT_TRUE(parse(hi(R"("tool_choice":{"type":"none"})")).request.tool_choice_none);
  EXPECT_TRUE(parse(hi(R"("tool_choice":{"type":"any"})")).request.tool_required);
  EXPECT_EQ(parse(hi(R"("tool_choice":{"type":"tool","name":"f"})")).request.tool_named, "f");
  EXPECT_EQ(
      parse(hi(R"("output_config":{"format":{"type":"json_schema","schema":{"type":"null"}}})")).request.format.text,
      R"({"type": "null"})");
  EXPECT_EQ(parse(hi(R"("thinking":{"type":"enabled","budget_tokens":1024})")).request.thinking_budget, 1024);
  EXPECT_EQ(parse(hi("")).request.sampling.top_p, 0.95);  // the model's default
}

TEST(MessagesRequest, RefusalsNameTheField) {
  struct Case {
    std::string body, where;
  };
  const std::vector<Case> cases{
      {"{}", "messages"},
      {messages(""), "messages"},
      {hi(R"("max_tokens":0)"), "max_tokens"},
      {hi(R"("temperature":"hot")"), "temperature"},
      {hi(R"("stop_sequences":[""])"), "stop_sequences"},
      {hi(R"("stop_sequences":"x")"), "stop_sequences"},
      {hi(R"("system":5)"), "system"},
      {hi(R"("system":[{"type":"image"}])"), "system[0].type"},
      {hi(R"("thinking":{"type":"perhaps"})"), "thinking.type"},
      {hi(R"("output_config":{"effort":"huge"})"), "output_config.effort"},
      {hi(R"("output_config":{"format":{"type":"json_schema"}})"), "output_config.format.schema"},
      {hi(R"("output_config":{"format":{"type":"json"}})"), "output_config.format.type"},
      {hi(R"("tool_choice":{"type":"tool"})"), "tool_choice.name"},
      {hi(R"("tool_choice":{"type":"some"})"), "tool_choice.type"},
      {hi(R"("tool_choice":"auto")"), "tool_choice"},
      {hi(R"("mcp_servers":[{"url":"x"}])"), "mcp_servers"},
      {hi(R"("tools":[{"name":"two words"}])"), "tools[0].name"},
      {hi(R"("tools":[{"name":"f"},{"name":"f"}])"), "tools[1].name"},
      {hi(R"("tools":[{"name":"f","input_schema":"x"}])"), "tools[0].input_schema"},
      {messages(R"({"role":"tool","content":"x"})"), "messages[0].role"},
      {messages(R"({"role":"user"})"), "messages[0].content"},
      {messages(R"({"role":"user","content":[{"type":"video"}]})"), "messages[0].content[0].type"},
      {messages(R"({"role":"user","content":[{"type":"tool_result"}]})"), "messages[0].content[0].tool_use_id"},
      {messages(R"({"role":"assistant","content":[{"type":"tool_use","id":"1","name":"f","input":[]}]})"),
       "messages[0].content[0].input"},
      {messages(R"({"role":"assistant","content":[{"type":"tool_use","id":"1","name":"f","input":{}}]})"), "messages"},
      {messages(R"({"role":"assistant","content":"ends "})"), "messages"},
  };
  for (const Case& wrong : cases) {
    std::string where = "accepted";
    try {
      parse(wrong.body);
    } catch (const ApiError& error) {
      where = error.param();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::usage);
      where = error.where();
    }
    EXPECT_EQ(where, wrong.where) << wrong.body;
  }
}

}  // namespace
}  // namespace tandem::api::messages_request_test
