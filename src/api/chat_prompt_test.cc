// What the engine is told about a prompt's parts: positions that later prompts share, for many conversations.
#include "api/chat_prompt.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>

#include "api/errors.h"
#include "api/fakes.h"
#include "chat/messages.h"
#include "chat/render.h"

namespace tandem::api::chat_prompt_test {
namespace {

using Json = nlohmann::ordered_json;
using Kind = engine::PromptPart::Kind;
using Ids = std::vector<int32_t>;

class ChatPromptTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    model_ = new FakeModel(TANDEM_SOURCE_DIR "/models/nano");
    model_->served.max_model_len = 100'000;
  }
  static void TearDownTestSuite() { delete model_; }

  static engine::Request prepare(const Json& body) {
    return prepare_chat(body.dump(), model_->served, {}).engine_request;
  }
  // The reference: all segments encoded as one text.
  static Ids whole(const Json& body) {
    return model_->tokenizer.encode(chat::render(chat::parse_conversation(body.dump())).segments);
  }
  static Ids first(const Ids& ids, int64_t count) { return {ids.begin(), ids.begin() + count}; }
  static bool begins_with(const Ids& ids, const Ids& prefix) {
    return prefix.size() <= ids.size() && std::equal(prefix.begin(), prefix.end(), ids.begin());
  }
  static std::string part(const engine::Request& request, const engine::PromptPart& part) {
    return model_->tokenizer.decode(
        std::span(request.prompt_ids)
            .subspan(static_cast<size_t>(part.begin), static_cast<size_t>(part.end - part.begin)));
  }

  static inline FakeModel* model_ = nullptr;
};

Json message(const char* role, const std::string& content) { return {{"role", role}, {"content", content}}; }

TEST_F(ChatPromptTest, PositionsOfASimpleConversation) {
  const Json body = {{"messages", {message("system", "Be brief."), message("user", "Hi")}}};
  const engine::Request request = prepare(body);
  ASSERT_EQ(request.keep_positions.size(), 2u);
  const auto decode = [&](int64_t count) { return model_->tokenizer.decode(first(request.prompt_ids, count)); };
  EXPECT_EQ(decode(request.keep_positions[0]), "[gMASK]<sop><|system|>Reasoning Effort: Max<|system|>Be brief.");
  EXPECT_EQ(decode(request.keep_positions[1]),
            "[gMASK]<sop><|system|>Reasoning Effort: Max<|system|>Be brief.<|user|>Hi");
  ASSERT_EQ(request.prompt_parts.size(), 2u);
  EXPECT_EQ(part(request, request.prompt_parts[0]), "[gMASK]<sop>");
  EXPECT_EQ(request.prompt_parts[0].kind, Kind::template_text);
  EXPECT_EQ(part(request, request.prompt_parts[1]), "<|system|>Reasoning Effort: Max");
  EXPECT_EQ(request.prompt_parts[1].kind, Kind::effort);
}

TEST_F(ChatPromptTest, ToolsBelongToTheSystemPrompt) {
  const Json tool = {{"type", "function"}, {"function", {{"name", "f"}, {"parameters", Json::object()}}}};
  const Json body = {{"messages", {message("user", "Hi")}}, {"tools", {tool}}};
  const engine::Request request = prepare(body);
  ASSERT_EQ(request.keep_positions.size(), 2u);
  ASSERT_EQ(request.prompt_parts.size(), 3u);
  EXPECT_EQ(request.prompt_parts[2].kind, Kind::template_text);
  EXPECT_EQ(request.prompt_parts[2].end, request.keep_positions[0]);
  const std::string block = part(request, request.prompt_parts[2]);
  EXPECT_EQ(block.rfind("<|system|>\n# Tools", 0), 0u) << block;
  EXPECT_NE(block.find("</tool_call>"), std::string::npos);
  EXPECT_EQ(block.find("<|user|>"), std::string::npos);
}

TEST_F(ChatPromptTest, PromptsWithLittleToKeep) {
  EXPECT_EQ(prepare({{"messages", {message("user", "Hi")}}}).keep_positions.size(), 1u);
  // Nothing but a system prompt: its end is the history's end.
  EXPECT_EQ(prepare({{"messages", {message("system", "Hi")}}}).keep_positions.size(), 1u);
  // Without a generation prompt the history ends with the prompt, which the engine keeps anyway.
  const engine::Request open =
      prepare({{"messages", {message("system", "a"), message("user", "Hi")}}, {"add_generation_prompt", false}});
  EXPECT_EQ(open.keep_positions.size(), 1u);
  const engine::Request off = prepare({{"messages", {message("user", "Hi")}}, {"reasoning_effort", "none"}});
  ASSERT_EQ(off.prompt_parts.size(), 1u);  // no effort line
  EXPECT_EQ(off.prompt_parts[0].kind, Kind::template_text);
  ASSERT_EQ(off.keep_positions.size(), 1u);
  EXPECT_EQ(model_->tokenizer.decode(first(off.prompt_ids, off.keep_positions[0])), "[gMASK]<sop><|user|>Hi");
}

// Texts that would merge with what stands beside them if a border did not hold.
std::string random_text(std::mt19937& random) {
  static const std::vector<std::string> pieces = {" ",
                                                  "\n",
                                                  "\n\n",
                                                  "a",
                                                  "the fox",
                                                  "12",
                                                  "3456",
                                                  "é",
                                                  "😀",
                                                  "<|user|>",
                                                  "<",
                                                  "think>",
                                                  "</think>",
                                                  "\t",
                                                  "'s",
                                                  ".",
                                                  "[gMASK]",
                                                  "Max",
                                                  "Reasoning Effort: Low",
                                                  "|>",
                                                  "ſ",
                                                  "\r\n"};
  std::string text;
  for (size_t i = random() % 6; i > 0; --i) text += pieces[random() % pieces.size()];
  return text;
}

Json random_messages(std::mt19937& random) {
  Json messages = Json::array();
  for (size_t i = random() % 3; i > 0; --i) messages.push_back(message("system", random_text(random)));
  messages.push_back(message("user", random_text(random)));
  for (size_t i = random() % 4; i > 0; --i) {
    Json assistant = message("assistant", random_text(random));
    if (random() % 2) assistant["reasoning_content"] = random_text(random);
    if (random() % 2) {
      assistant["tool_calls"] = {
          {{"id", "c"}, {"type", "function"}, {"function", {{"name", "f"}, {"arguments", R"({"x":" 1"})"}}}}};
      messages.push_back(assistant);
      messages.push_back({{"role", "tool"}, {"tool_call_id", "c"}, {"content", random_text(random)}});
    } else {
      messages.push_back(assistant);
      messages.push_back(message(random() % 5 ? "user" : "system", random_text(random)));
    }
  }
  return messages;
}

Json random_body(std::mt19937& random) {
  Json body = {{"messages", random_messages(random)}};
  if (random() % 2) {
    body["tools"] = {{{"type", "function"}, {"function", {{"name", "f"}, {"description", random_text(random)}}}}};
  }
  constexpr const char* efforts[] = {"low", "high", "max", "none"};
  body["reasoning_effort"] = efforts[random() % 4];
  return body;
}

TEST_F(ChatPromptTest, PositionsAreSharedByLaterPrompts) {
  std::mt19937 random(3);
  int system_prompts = 0;
  for (int round = 0; round < 500; ++round) {
    const Json body = random_body(random);
    SCOPED_TRACE(body.dump());
    const engine::Request request = prepare(body);
    ASSERT_EQ(request.prompt_ids, whole(body));
    ASSERT_FALSE(request.keep_positions.empty());
    ASSERT_TRUE(std::is_sorted(request.keep_positions.begin(), request.keep_positions.end()));
    ASSERT_GT(request.keep_positions.front(), 0);
    ASSERT_LT(request.keep_positions.back(), static_cast<int64_t>(request.prompt_ids.size()));

    // The history's end: the prompt without a generation prompt, and a prefix of the next turn's.
    const Ids history = first(request.prompt_ids, request.keep_positions.back());
    Json shorter = body;
    shorter["add_generation_prompt"] = false;
    ASSERT_EQ(history, whole(shorter));
    Json next = body;
    Json answer = message("assistant", random_text(random));
    answer["reasoning_content"] = random_text(random);
    next["messages"].push_back(answer);
    next["messages"].push_back(message("user", random_text(random)));
    ASSERT_TRUE(begins_with(prepare(next).prompt_ids, history));

    // The system prompt's end: a prefix of every other conversation with that system prompt.
    if (request.keep_positions.size() < 2) continue;
    ++system_prompts;
    Json other = body;
    const auto is_system = [](const Json& m) { return m["role"] == "system"; };
    const auto leading = std::find_if_not(body["messages"].begin(), body["messages"].end(), is_system);
    other["messages"] = Json(body["messages"].begin(), leading);
    other["messages"].push_back(message("user", random_text(random)));
    ASSERT_TRUE(begins_with(prepare(other).prompt_ids, first(request.prompt_ids, request.keep_positions.front())));
  }
  EXPECT_GT(system_prompts, 100);
}

// A change of effort falls into the part of that name, a change of tools into the other.
TEST_F(ChatPromptTest, PartsNameWhatChanged) {
  const auto kind_at_difference = [](const engine::Request& a, const engine::Request& b) {
    const auto at =
        std::mismatch(a.prompt_ids.begin(), a.prompt_ids.end(), b.prompt_ids.begin()).first - a.prompt_ids.begin();
    for (const engine::PromptPart& part : a.prompt_parts) {
      if (part.begin <= at && at < part.end) return std::optional<Kind>(part.kind);
    }
    return std::optional<Kind>();
  };
  const Json tool = {{"type", "function"}, {"function", {{"name", "f"}}}};
  const Json other_tool = {{"type", "function"}, {"function", {{"name", "g"}}}};
  const Json messages = {message("user", "Hi there, how are you?")};
  const engine::Request max = prepare({{"messages", messages}, {"tools", {tool}}});
  const engine::Request low = prepare({{"messages", messages}, {"tools", {tool}}, {"reasoning_effort", "low"}});
  const engine::Request tools = prepare({{"messages", messages}, {"tools", {other_tool}}});
  const engine::Request text = prepare({{"messages", {message("user", "Ho there")}}, {"tools", {tool}}});
  EXPECT_EQ(kind_at_difference(max, low), Kind::effort);
  EXPECT_EQ(kind_at_difference(max, tools), Kind::template_text);
  EXPECT_EQ(kind_at_difference(max, text), std::nullopt);
}

std::string prompt_text(const text::Tokenizer& tokenizer, const engine::Request& request) {
  return tokenizer.decode(request.prompt_ids);
}

TEST_F(ChatPromptTest, TheModelsNameMayCarryAPreset) {
  const auto text = [](const Json& body) { return prompt_text(model_->tokenizer, prepare(body)); };
  const auto named = [&](const char* name, Json body) {
    body["messages"] = {message("user", "Hi")};
    const std::string plain = text(body);
    body["model"] = name;
    return std::pair(text(body), plain);
  };
  const auto messages = Json{{"messages", {message("user", "Hi")}}};
  const auto with = [&](const Json& fields) {
    Json body = messages;
    body.update(fields);
    return text(body);
  };
  EXPECT_EQ(named("nano-nothink", {}).first, with({{"thinking", {{"type", "disabled"}}}}));
  EXPECT_EQ(named("nano-low", {}).first, with({{"reasoning_effort", "low"}}));
  EXPECT_EQ(named("nano-high", {}).first, with({{"reasoning_effort", "high"}}));
  for (const auto* name : {"nano", "other", "other-low", "nano-nothink-low", "-low", "nano-LOW"}) {
    const auto [preset, plain] = named(name, {});
    EXPECT_EQ(preset, plain) << name;
  }
  // What the request says itself counts.
  const std::vector<Json> says = {{{"reasoning_effort", "high"}},
                                  {{"thinking", {{"type", "enabled"}}}},
                                  {{"reasoning", {{"effort", "high"}}}},
                                  {{"chat_template_kwargs", {{"enable_thinking", true}}}},
                                  {{"chat_template_kwargs", {{"reasoning_effort", "high"}}}}};
  for (const Json& fields : says) {
    for (const auto* name : {"nano-nothink", "nano-low"}) {
      const auto [preset, plain] = named(name, fields);
      EXPECT_EQ(preset, plain) << name << fields;
    }
  }
  const auto [preset, plain] = named("nano-nothink", {{"chat_template_kwargs", {{"clear_thinking", true}}}});
  EXPECT_NE(preset, plain);
}

TEST_F(ChatPromptTest, AFinalMessageIsContinued) {
  const auto body = [](const Json& last) {
    return Json{{"messages", {message("user", "Hi"), last}}, {"continue_final_message", true}};
  };
  const auto open = [](const Json& json) { return prepare_chat(json.dump(), model_->served, {}).reasoning_open; };
  const std::string before = "[gMASK]<sop><|system|>Reasoning Effort: Max<|user|>Hi<|assistant|><think>";
  const auto text = [](const Json& json) { return prompt_text(model_->tokenizer, prepare(json)); };

  const Json content = body(message("assistant", " The answer is "));
  EXPECT_EQ(text(content), before + "</think>The answer is ");  // the space at its end stays
  EXPECT_FALSE(open(content));
  Json both = message("assistant", "5 ");
  both["reasoning_content"] = "2 + 3";
  EXPECT_EQ(text(body(both)), before + "2 + 3</think>5 ");
  Json reasoning = message("assistant", "");
  reasoning["reasoning_content"] = "2 + 3 ";
  EXPECT_EQ(text(body(reasoning)), before + "2 + 3 ");
  EXPECT_TRUE(open(body(reasoning)));
  EXPECT_EQ(text(body(message("assistant", ""))), before + "</think>");

  // Earlier messages are rendered as ever.
  Json longer = body(message("assistant", "b "));
  longer["messages"] = {message("user", "Hi"), message("assistant", "a "), message("user", "Ho"),
                        message("assistant", "b ")};
  EXPECT_EQ(text(longer), before + "</think>a<|user|>Ho<|assistant|><think></think>b ");

  const auto refused = [](const Json& json) {
    try {
      prepare(json);
    } catch (const ApiError& error) {
      return error.param();
    }
    return std::string("nothing");
  };
  EXPECT_EQ(refused(body(message("user", "x"))), "continue_final_message");
  Json contradicting = content;
  contradicting["add_generation_prompt"] = true;
  EXPECT_EQ(refused(contradicting), "continue_final_message");
  contradicting["add_generation_prompt"] = false;
  EXPECT_EQ(refused(contradicting), "nothing");
  contradicting["continue_final_message"] = "yes";
  EXPECT_EQ(refused(contradicting), "continue_final_message");
}

TEST_F(ChatPromptTest, ListsOfTokensBecomeARule) {
  const auto body = [](const Json& fields) {
    // Open reasoning has a rule of its own.
    Json json = {{"messages", {message("user", "Hi")}}, {"max_tokens", 5}, {"reasoning_effort", "none"}};
    json.update(fields);
    return json;
  };
  EXPECT_EQ(prepare(body(Json::object())).rule, nullptr);
  EXPECT_NE(prepare(body({{"bad_words", {"fox"}}})).rule, nullptr);
  EXPECT_NE(prepare(body({{"allowed_token_ids", {5}}})).rule, nullptr);
  const int32_t stop = model_->id("<|user|>");
  EXPECT_NE(prepare(body({{"allowed_token_ids", {stop}}})).rule, nullptr);
  const std::vector<Json> dead_ends = {{{"allowed_token_ids", {stop}}, {"min_tokens", 1}},
                                       {{"allowed_token_ids", {2047}}}};  // a padding row of the head
  for (const Json& fields : dead_ends) {
    try {
      prepare(body(fields));
      ADD_FAILURE() << fields;
    } catch (const ApiError& error) {
      EXPECT_EQ(error.param(), "allowed_token_ids");
    }
  }
}

TEST_F(ChatPromptTest, CacheSalt) {
  const auto body = [](const Json& salt) { return Json{{"messages", {message("user", "Hi")}}, {"cache_salt", salt}}; };
  EXPECT_EQ(prepare(body("team-7")).cache_salt, "team-7");
  EXPECT_EQ(prepare(body(nullptr)).cache_salt, "");
  EXPECT_EQ(prepare(body(std::string(1024, 'x'))).cache_salt.size(), 1024u);
  for (const Json& bad : {Json(7), Json(true), Json::array(), Json(""), Json(std::string(1025, 'x'))}) {
    try {
      prepare(body(bad));
      FAIL() << bad;
    } catch (const ApiError& error) {
      EXPECT_EQ(error.status(), 400);
      EXPECT_EQ(error.param(), "cache_salt");
    }
  }
}

}  // namespace
}  // namespace tandem::api::chat_prompt_test
