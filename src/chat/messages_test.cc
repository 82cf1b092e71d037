// What the prompt fixtures cannot say: the structs themselves, and bodies that are no text.
#include "chat/messages.h"

#include "base/error.h"

namespace tandem::chat::messages_test {
namespace {

Error refused(const std::string& body) {
  try {
    parse_conversation(body);
  } catch (const Error& error) {
    return error;
  }
  return {ErrorCode::internal, "", "was accepted"};
}

TEST(ParseConversation, FillsTheStructs) {
  const Conversation conversation = parse_conversation(
      R"({"messages":[{"role":"assistant","content":[{"type":"text","text":"a"},"b"],"reasoning":"r",
          "tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{\"z\":1.0,\"a\":18446744073709551616}"}}]},
          {"role":"tool","tool_call_id":"c1","content":"x"}],
          "tools":[{"type":"function","function":{"z":1,"name":"f","strict":true}}],
          "reasoning_effort":"medium","clear_thinking":true,"add_generation_prompt":false})");
  ASSERT_EQ(conversation.messages.size(), 2U);
  const Message& assistant = conversation.messages[0];
  EXPECT_EQ(assistant.role, Role::assistant);
  EXPECT_TRUE(assistant.content_is_list);
  ASSERT_EQ(assistant.content.size(), 2U);
  EXPECT_EQ(assistant.content[1].text, "b");
  EXPECT_EQ(assistant.reasoning_content, "r");
  ASSERT_EQ(assistant.tool_calls.size(), 1U);
  EXPECT_EQ(assistant.tool_calls[0].id, "c1");
  EXPECT_EQ(assistant.tool_calls[0].name, "f");
  EXPECT_EQ(assistant.tool_calls[0].arguments, R"({"z": 1.0, "a": 18446744073709551616})");
  EXPECT_EQ(conversation.messages[1].tool_call_id, "c1");
  EXPECT_FALSE(conversation.messages[1].content_is_list);
  EXPECT_EQ(conversation.tools,
            std::vector<std::string>{R"({"type": "function", "function": {"z": 1, "name": "f", "strict": true}})"});
  EXPECT_EQ(conversation.effort, Effort::high);
  EXPECT_TRUE(conversation.clear_thinking);
  EXPECT_TRUE(conversation.thinking);
  EXPECT_FALSE(conversation.add_generation_prompt);
}

TEST(ParseConversation, DefaultsAreMaxThinkingAndAGenerationPrompt) {
  const Conversation conversation = parse_conversation(R"({"messages":[{"role":"user","content":"Hi"}]})");
  EXPECT_EQ(conversation.effort, Effort::max);
  EXPECT_TRUE(conversation.thinking);
  EXPECT_FALSE(conversation.clear_thinking);
  EXPECT_TRUE(conversation.add_generation_prompt);
  EXPECT_TRUE(conversation.tools.empty());
}

TEST(ParseConversation, NullContentIsKeptOnlyUnNormalised) {
  const std::string body = R"({"messages":[{"role":"user","content":null}]})";
  EXPECT_FALSE(parse_conversation(body, true).messages[0].content_is_null);
  EXPECT_TRUE(parse_conversation(body, false).messages[0].content_is_null);
}

TEST(ParseConversation, LastOfEqualKeysWins) {
  const Conversation conversation = parse_conversation(
      R"({"messages":[],"reasoning_effort":"low","messages":[{"role":"user","role":"system"}],"reasoning_effort":"high"})");
  EXPECT_EQ(conversation.messages.at(0).role, Role::system);
  EXPECT_EQ(conversation.effort, Effort::high);
}

TEST(ParseConversation, InvalidUtf8IsRefused) {
  const Error error = refused("{\"messages\":[{\"role\":\"user\",\"content\":\"\xff\"}]}");
  EXPECT_EQ(error.where(), "body");
  EXPECT_NE(error.found().find("is not valid UTF-8 at byte"), std::string::npos) << error.what();
}

TEST(ParseConversation, DeepNestingIsRefusedEverywhere) {
  const std::string deep = std::string(200, '[') + std::string(200, ']');
  EXPECT_NE(refused(R"({"ignored":)" + deep + "}").found().find("128"), std::string::npos);
  EXPECT_NE(refused(R"({"messages":)" + deep + "}").found().find("128"), std::string::npos);
  // Deep arguments in a string are history that is not usable JSON: shown without arguments, like other broken ones.
  const Conversation conversation = parse_conversation(
      R"({"messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":")" + deep + R"("}}]}]})");
  EXPECT_EQ(conversation.messages[0].tool_calls[0].arguments, "{}");
}

TEST(ParseConversation, ErrorsDescribeButDoNotQuotePrompts) {
  const Error error = refused(R"({"messages":"my secret prompt"})");
  EXPECT_EQ(std::string(error.what()), "messages: found a string; expected a list");
  const Error role = refused(R"({"messages":[{"role":"robot","content":"my secret prompt"}]})");
  EXPECT_EQ(std::string(role.what()),
            "messages[0].role: found \"robot\"; expected one of system, developer, user, assistant, tool, function");
}

TEST(ParseConversation, QuotedWordsAreCutAtTheBorderOfACharacter) {
  std::string role;
  for (int i = 0; i < 100; ++i) role += "\u4f60";
  const std::string found = refused(R"({"messages":[{"role":")" + role + R"("}]})").found();
  EXPECT_EQ(found, "found \"" + role.substr(0, 63) + "\"\u2026");
}

}  // namespace
}  // namespace tandem::chat::messages_test
