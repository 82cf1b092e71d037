// Bounds and order of use; and over all dialects: a reply that comes back is the ids that were sampled.
#include "api/reply_ids.h"

#include <nlohmann/json.hpp>
#include <random>

#include "api/service_fixture.h"

namespace tandem::api::reply_ids_test {
namespace {

using Json = nlohmann::ordered_json;
using Ids = std::vector<int32_t>;

TEST(ReplyIds, TheLeastUsedMakeRoom) {
  ReplyIds replies(3, 100);
  const auto key = [](uint64_t n) { return PromptKey{n, n}; };
  for (uint64_t n = 0; n < 3; ++n) replies.put(key(n), Ids(10, static_cast<int32_t>(n)));
  EXPECT_EQ(replies.find(key(0)).size(), 1u);  // used: it stays
  replies.put(key(3), Ids(10, 3));
  EXPECT_EQ(replies.size(), 3u);
  EXPECT_TRUE(replies.find(key(1)).empty());
  EXPECT_EQ(*replies.find(key(0))[0], Ids(10, 0));
  replies.put(key(0), Ids(5, 7));  // another reply to the same prompt
  replies.put(key(0), Ids(5, 7));  // the same once more
  EXPECT_EQ(replies.find(key(0)).size(), 2u);
  replies.put(key(4), Ids(90, 1));
  EXPECT_LE(replies.tokens(), 100u);
  EXPECT_FALSE(replies.find(key(4)).empty());
  replies.put(key(5), Ids(101, 1));  // larger than everything
  replies.put(key(6), Ids());
  EXPECT_TRUE(replies.find(key(5)).empty());
  EXPECT_TRUE(replies.find(key(6)).empty());
  EXPECT_FALSE(replies.find(key(4)).empty());
}

TEST(PromptHash, OfIdsAndSalt) {
  const Ids ids{1, 2, 3, 4};
  PromptHash whole("a"), parts("a"), salted("b");
  whole.push(ids);
  parts.push(std::span(ids).first(3));
  EXPECT_EQ(parts.key(std::span(ids).last(1)), whole.key());
  EXPECT_FALSE(parts.key() == whole.key());
  parts.push(std::span(ids).last(1));
  salted.push(ids);
  EXPECT_EQ(parts.key(), whole.key());
  EXPECT_FALSE(salted.key() == whole.key());
}

// Turns of one conversation in one dialect.
struct Dialect {
  std::string path, tools, thinking_off;
  Json (*user)(const std::string& text);
  void (*add_reply)(const Json& reply, Json& turns);  // what was answered, as the next request repeats it
  const char* turns;
};
const Dialect dialects[] = {
    {"/v1/chat/completions",
     R"("tools":[{"type":"function","function":{"name":"get","parameters":{"properties":{"city":{"type":"string"},"n":{"type":"integer"}}}}}])",
     R"("reasoning_effort":"none")",
     [](const std::string& text) {
       return Json{{"role", "user"}, {"content", text}};
     },
     [](const Json& reply, Json& turns) {
       const Json& message = reply["choices"][0]["message"];
       turns.push_back(message);
       for (const Json& call : message.value("tool_calls", Json::array())) {
         turns.push_back({{"role", "tool"}, {"tool_call_id", call["id"]}, {"content", "out"}});
       }
     },
     "messages"},
    {"/v1/messages",
     R"("tools":[{"name":"get","input_schema":{"properties":{"city":{"type":"string"},"n":{"type":"integer"}}}}])",
     R"("thinking":{"type":"disabled"})",
     [](const std::string& text) {
       return Json{{"role", "user"}, {"content", text}};
     },
     [](const Json& reply, Json& turns) {
       turns.push_back({{"role", "assistant"}, {"content", reply["content"]}});
       Json results = Json::array();
       for (const Json& block : reply["content"]) {
         if (block["type"] == "tool_use") {
           results.push_back({{"type", "tool_result"}, {"tool_use_id", block["id"]}, {"content", "out"}});
         }
       }
       if (!results.empty()) turns.push_back({{"role", "user"}, {"content", results}});
     },
     "messages"},
    {"/v1/responses",
     R"("tools":[{"type":"function","name":"get","parameters":{"properties":{"city":{"type":"string"},"n":{"type":"integer"}}}}])",
     R"("reasoning":{"effort":"none"})",
     [](const std::string& text) {
       return Json{{"role", "user"}, {"content", text}};
     },
     [](const Json& reply, Json& turns) {
       for (const Json& item : reply["output"]) turns.push_back(item);
       for (const Json& item : reply["output"]) {
         if (item["type"] == "function_call") {
           turns.push_back({{"type", "function_call_output"}, {"call_id", item["call_id"]}, {"output", "out"}});
         }
       }
     },
     "input"},
};

class ReplyIdsTest : public ServiceTest {
 protected:
  static std::string body(const Dialect& dialect, const Json& turns, bool thinks) {
    std::string fields = dialect.tools + "," + (thinks ? R"("x":0)" : dialect.thinking_off);
    if (thinks && dialect.path == "/v1/messages") fields += R"(,"thinking":{"type":"adaptive"})";
    return "{" + fields + ",\"" + dialect.turns + "\":" + turns.dump() + "}";
  }
  // Sends the turns; the engine answers with `ids`. Returns the reply.
  static Json answer(Setup& setup, const Dialect& dialect, const Json& turns, bool thinks, const Ids& ids) {
    const size_t i = setup.engine.count();
    const auto responder = setup.call("POST", dialect.path, body(dialect, turns, thinks));
    setup.engine.admit(i);
    setup.engine.tokens(ids, i);
    setup.engine.finish(engine::FinishReason::stop, model_->id("<|user|>"), {}, i);
    setup.executor.run();
    EXPECT_EQ(responder->replies.at(0).status, 200) << responder->replies.at(0).body;
    return Json::parse(responder->replies.at(0).body);
  }
  // The text cut into tokens as the model might, but the tokenizer would not: byte by byte at times.
  static Ids cut_oddly(const std::string& text, std::mt19937& random) {
    Ids ids;
    for (size_t at = 0; at < text.size();) {
      size_t length = 1 + random() % 5;
      if (text[at] == '<') {
        for (const auto* marker :
             {"</think>", "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"}) {
          if (text.compare(at, std::string(marker).size(), marker) == 0) length = std::string(marker).size();
        }
      } else {
        length = std::min(length, text.find('<', at) == std::string::npos ? text.size() : text.find('<', at) - at);
      }
      for (const int32_t id : model_->ids(text.substr(at, length))) ids.push_back(id);
      at += length;
    }
    return ids;
  }
};

bool begins_with(const Ids& ids, const Ids& head) {
  return ids.size() > head.size() && std::equal(head.begin(), head.end(), ids.begin());
}

// The next prompt is the last one and what was sampled: everything can be resumed.
TEST_F(ReplyIdsTest, ComeBackInEveryDialect) {
  const std::string two_calls =
      "why</think>See. <tool_call>get<arg_key>city</arg_key><arg_value> Oslo </arg_value><arg_key>n</arg_key>"
      "<arg_value> 7 </arg_value></tool_call>\n<tool_call>get</tool_call>";
  const std::string replies[] = {
      "why is that </think>\n\nBecause \n",
      two_calls,
      "why</think><tool_call> get \n<arg_key> n </arg_key>\n<arg_value>12</arg_value></tool_call>",
      "</think>Hello",
      "why <tool_call>get</tool_call>",  // the reasoning is not closed before the call
  };
  std::mt19937 random(3);
  for (const Dialect& dialect : dialects) {
    for (const bool thinks : {true, false}) {
      Setup setup;
      setup.served.max_model_len = 100'000;
      Json turns = Json::array({dialect.user("Hi")});
      Ids so_far;  // the prompt and reply of the turn before
      for (int turn = 0; turn < 12; ++turn) {
        std::string text = replies[random() % (thinks ? 5 : 4)];
        if (!thinks) text = text.substr(text.find("</think>") + 8);
        const Ids ids = cut_oddly(text, random);
        const size_t i = setup.engine.count();
        const Json reply = answer(setup, dialect, turns, thinks, ids);
        const Ids prompt = setup.engine.request(i).prompt_ids;
        EXPECT_TRUE(so_far.empty() || begins_with(prompt, so_far))
            << dialect.path << " turn " << turn << " " << thinks << "\n"
            << model_->tokenizer.decode(prompt);
        so_far = prompt;
        so_far.insert(so_far.end(), ids.begin(), ids.end());
        dialect.add_reply(reply, turns);
        const std::string role = turns.back().value("role", ""), type = turns.back().value("type", "");
        if (role != "user" && role != "tool" && type != "function_call_output") {
          turns.push_back(dialect.user("Go on"));
        }
      }
    }
  }
}

// What was changed is rendered as it is now; what another salt or another conversation said is not looked at.
TEST_F(ReplyIdsTest, OnlyWhatWasSaidHere) {
  for (const Dialect& dialect : dialects) {
    Setup setup;
    std::mt19937 random(5);
    const std::string text = "why</think>Hello there";
    const Ids odd = cut_oddly(text, random);
    ASSERT_NE(odd, model_->ids(text));
    Json turns = Json::array({dialect.user("Hi")});
    const Json reply = answer(setup, dialect, turns, true, odd);
    const Ids prompt = setup.engine.request(0).prompt_ids;
    dialect.add_reply(reply, turns);
    turns.push_back(dialect.user("And?"));
    const auto next = [&](const Json& sent, const std::string& more = {}) {
      std::string request = body(dialect, sent, true);
      request.insert(1, more);
      const size_t i = setup.engine.count();
      setup.call("POST", dialect.path, request);
      return setup.engine.request(i).prompt_ids;
    };
    Ids spliced = prompt, rendered = prompt;
    spliced.insert(spliced.end(), odd.begin(), odd.end());
    const Ids plain = model_->ids(text);
    rendered.insert(rendered.end(), plain.begin(), plain.end());
    EXPECT_TRUE(begins_with(next(turns), spliced));
    EXPECT_TRUE(begins_with(next(turns, R"("cache_salt":"other",)"), rendered));
    Json edited = Json::parse([&] {
      std::string dump = turns.dump();
      dump.replace(dump.find("Hello there"), 11, "Hello where");
      return dump;
    }());
    EXPECT_FALSE(begins_with(next(edited), spliced));
    Json elsewhere = turns;
    elsewhere[0] = dialect.user("Ho");
    const Ids other = next(elsewhere);
    EXPECT_EQ(std::search(other.begin(), other.end(), odd.begin(), odd.end()), other.end());
  }
}

// A text that spells markup is not a call, though it reads the same.
TEST_F(ReplyIdsTest, SpelledMarkupIsNotACall) {
  Setup setup;
  const Dialect& chat = dialects[0];
  Json turns = Json::array({chat.user("Hi")});
  const Ids called = model_->ids("</think><tool_call>get</tool_call>");
  answer(setup, chat, turns, true, called);
  Ids so_far = setup.engine.request(0).prompt_ids;
  so_far.insert(so_far.end(), called.begin(), called.end());
  turns.push_back({{"role", "assistant"}, {"content", "<tool_call>get</tool_call>"}});
  turns.push_back(chat.user("And?"));
  setup.call("POST", chat.path, body(chat, turns, true));
  EXPECT_FALSE(begins_with(setup.engine.request(1).prompt_ids, so_far));
}

// Rules under which a reply is not kept.
TEST_F(ReplyIdsTest, CutRepliesAreRenderedAgain) {
  Setup setup;
  const Dialect& chat = dialects[0];
  Json turns = Json::array({chat.user("Hi")});
  std::mt19937 random(1);
  const Ids odd = cut_oddly("why</think>Hello END there", random);
  const auto responder = setup.call("POST", chat.path, R"({"stop":["END"],)" + body(chat, turns, true).substr(1));
  setup.engine.admit(0);
  setup.engine.tokens(odd, 0);
  setup.executor.run();
  const Json reply = Json::parse(responder->replies.at(0).body);
  EXPECT_EQ(reply["choices"][0]["message"]["content"], "Hello ");
  chat.add_reply(reply, turns);
  turns.push_back(chat.user("And?"));
  setup.call("POST", chat.path, body(chat, turns, true));
  const Ids prompt = setup.engine.request(1).prompt_ids, plain = model_->ids("why</think>Hello<|user|>And?");
  EXPECT_NE(std::search(prompt.begin(), prompt.end(), plain.begin(), plain.end()), prompt.end());
}

// C.8 b: short reasoning waits, and an answer that looked like it is sent once.
TEST_F(ReplyIdsTest, ShortReasoningWaits) {
  ServiceOptions options;
  options.chat.reasoning_hold = 4;
  Setup setup(options);
  const auto texts = [](const RecordingResponder& responder) {
    std::string reasoning, content;
    for (const std::string& event : responder.events) {
      if (event == "[DONE]") continue;
      const Json json = Json::parse(event);
      const Json& delta = json["choices"][0]["delta"];
      reasoning += delta.value("reasoning", "");
      content += delta.value("content", "");
    }
    return reasoning + "|" + content;
  };
  const auto answer = setup.chat(R"("stream":true)");
  setup.engine.admit(0);
  setup.engine.tokens(model_->ids("Yes"), 0);
  setup.executor.run();
  EXPECT_EQ(texts(*answer), "|");
  setup.engine.finish(engine::FinishReason::stop, model_->id("<|user|>"), {}, 0);
  setup.executor.run();
  EXPECT_EQ(texts(*answer), "|Yes");

  const auto reasoned = setup.chat(R"("stream":true)");
  setup.engine.admit(1);
  setup.engine.tokens(model_->ids("So</think>Yes"), 1);  // the closer ends the waiting
  setup.executor.run();
  EXPECT_EQ(texts(*reasoned), "So|Yes");

  const auto lengthy = setup.chat(R"("stream":true)");
  setup.engine.admit(2);
  const Ids ids = model_->ids("one two three four five six");
  setup.engine.tokens({ids.begin(), ids.begin() + 5}, 2);
  setup.executor.run();
  EXPECT_NE(texts(*lengthy), "|");
}

}  // namespace
}  // namespace tandem::api::reply_ids_test
