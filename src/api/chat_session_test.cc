// The life of a chat reply over a scripted engine: shapes, order of the stream, stops, failures, clients that leave.
#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <set>

#include "api/service_fixture.h"
#include "engine/rule_list.h"

namespace tandem::api::chat_session_test {
namespace {

using Json = nlohmann::json;
using engine::FinishReason;
using ChatSessionTest = ServiceTest;

Json only_reply(const RecordingResponder& responder, int status) {
  EXPECT_EQ(responder.replies.size(), 1u);
  if (responder.replies.empty()) return {};
  EXPECT_EQ(responder.replies[0].status, status) << responder.replies[0].body;
  EXPECT_EQ(responder.replies[0].content_type, "application/json");
  return Json::parse(responder.replies[0].body);
}

std::set<std::string> keys(const Json& object) {
  std::set<std::string> names;
  for (const auto& [name, value] : object.items()) names.insert(name);
  return names;
}

TEST_F(ChatSessionTest, FullReply) {
  Setup setup;
  const auto responder = setup.chat(R"("model":"any","seed":7)");
  EXPECT_TRUE(responder->replies.empty());
  EXPECT_EQ(setup.service.active(), 1u);
  setup.answer("because</think>2 + 3 = 5");
  const Json body = only_reply(*responder, 200);
  EXPECT_EQ(setup.service.active(), 0u);
  EXPECT_EQ(body["id"].get<std::string>().rfind("chatcmpl-", 0), 0u);
  EXPECT_EQ(body["id"].get<std::string>().size(), 9u + 32u);
  EXPECT_EQ(body["object"], "chat.completion");
  EXPECT_EQ(body["model"], "any");
  ASSERT_EQ(body["choices"].size(), 1u);
  const Json& choice = body["choices"][0];
  EXPECT_EQ(choice["index"], 0);
  EXPECT_EQ(choice["logprobs"], nullptr);
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_EQ(choice["stop_reason"], nullptr);
  EXPECT_FALSE(choice.contains("reasoning_closed_by"));
  EXPECT_EQ(choice["message"], Json({{"role", "assistant"},
                                     {"content", "2 + 3 = 5"},
                                     {"refusal", nullptr},
                                     {"annotations", nullptr},
                                     {"audio", nullptr},
                                     {"function_call", nullptr},
                                     {"reasoning", "because"},
                                     {"reasoning_content", "because"}}));
  for (const auto* name : {"system_fingerprint", "service_tier", "prompt_logprobs"}) {
    EXPECT_TRUE(body.contains(name) && body[name].is_null()) << name;
  }
  const auto reply_tokens = static_cast<int64_t>(model_->ids("because</think>2 + 3 = 5").size()) + 1;  // and the stop
  const auto reasoning_tokens = static_cast<int64_t>(model_->ids("because</think>").size());
  const auto prompt_tokens = static_cast<int64_t>(setup.engine.request().prompt_ids.size());
  EXPECT_EQ(body["usage"], Json({{"prompt_tokens", prompt_tokens},
                                 {"completion_tokens", reply_tokens},
                                 {"total_tokens", prompt_tokens + reply_tokens},
                                 {"prompt_tokens_details", {{"cached_tokens", 0}}},
                                 {"completion_tokens_details",
                                  {{"reasoning_tokens", reasoning_tokens},
                                   {"accepted_prediction_tokens", 0},
                                   {"rejected_prediction_tokens", 0}}}}));
  EXPECT_EQ(body["metrics"]["seed"], 7);
  for (const auto* name : {"time_to_first_token_ms", "generation_time_ms", "queue_time_ms", "mean_itl_ms"}) {
    EXPECT_GE(body["metrics"][name].get<double>(), 0) << name;
  }
}

TEST_F(ChatSessionTest, StreamOrder) {
  Setup setup;
  const auto responder = setup.chat(R"("stream":true,"stream_options":{"include_usage":true})");
  EXPECT_TRUE(responder->opened);
  EXPECT_TRUE(responder->events.empty());  // the first chunk comes with the admission, not before
  setup.engine.admit();
  setup.executor.run();
  ASSERT_EQ(responder->events.size(), 1u);
  std::vector<int32_t> reply = model_->ids("why</think>5");
  for (const int32_t id : reply) {
    setup.engine.token(id);
    setup.executor.run();
  }
  setup.engine.finish(FinishReason::stop, model_->id("<|user|>"));
  setup.executor.run();
  EXPECT_TRUE(responder->closed);
  EXPECT_TRUE(responder->replies.empty());
  ASSERT_GE(responder->events.size(), 5u);
  EXPECT_EQ(responder->events.back(), "[DONE]");

  std::vector<Json> chunks;
  for (size_t i = 0; i + 1 < responder->events.size(); ++i) chunks.push_back(Json::parse(responder->events[i]));
  for (const Json& chunk : chunks) {
    EXPECT_EQ(chunk["id"], chunks[0]["id"]);
    EXPECT_EQ(chunk["created"], chunks[0]["created"]);
    EXPECT_EQ(chunk["model"], "nano");
    EXPECT_EQ(chunk["object"], "chat.completion.chunk");
  }
  const Json first = {{"index", 0},
                      {"delta", {{"role", "assistant"}, {"content", ""}}},
                      {"finish_reason", nullptr},
                      {"logprobs", nullptr}};
  EXPECT_EQ(chunks[0]["choices"], Json::array({first}));
  EXPECT_TRUE(chunks[0].contains("usage") && chunks[0]["usage"].is_null());

  std::string reasoning, content;
  for (size_t i = 1; i + 2 < chunks.size(); ++i) {
    const Json& choice = chunks[i]["choices"].at(0);
    EXPECT_EQ(choice["finish_reason"], nullptr);
    if (choice["delta"].contains("content")) {
      EXPECT_EQ(keys(choice["delta"]), (std::set<std::string>{"content"}));
      content += choice["delta"]["content"].get<std::string>();
    } else {
      EXPECT_EQ(keys(choice["delta"]), (std::set<std::string>{"reasoning", "reasoning_content"}));
      EXPECT_EQ(choice["delta"]["reasoning"], choice["delta"]["reasoning_content"]);
      EXPECT_TRUE(content.empty()) << "reasoning after content";
      reasoning += choice["delta"]["reasoning"].get<std::string>();
    }
  }
  EXPECT_EQ(reasoning, "why");
  EXPECT_EQ(content, "5");
  const Json& last = chunks[chunks.size() - 2];
  EXPECT_EQ(last["choices"].at(0)["delta"], Json::object());
  EXPECT_EQ(last["choices"].at(0)["finish_reason"], "stop");
  EXPECT_TRUE(last["choices"].at(0).contains("stop_reason"));
  EXPECT_TRUE(last["metrics"]["seed"].is_number_unsigned());
  EXPECT_TRUE(last["usage"].is_null());
  const Json& usage = chunks.back();
  EXPECT_EQ(usage["choices"], Json::array());
  EXPECT_EQ(usage["usage"]["completion_tokens"], reply.size() + 1);
}

TEST_F(ChatSessionTest, CachedTokensAreInEveryUsage) {
  Setup setup;
  const auto whole = setup.chat("");
  const auto streamed =
      setup.chat(R"("stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true})");
  setup.answer("</think>5", 0, 9);
  setup.answer("</think>5", 1, 7);
  EXPECT_EQ(only_reply(*whole, 200)["usage"]["prompt_tokens_details"]["cached_tokens"], 9);
  for (size_t i = 0; i + 1 < streamed->events.size(); ++i) {
    EXPECT_EQ(Json::parse(streamed->events[i])["usage"]["prompt_tokens_details"]["cached_tokens"], 7) << i;
  }
}

TEST_F(ChatSessionTest, UsageIsAbsentUnlessAskedFor) {
  Setup setup;
  const auto responder = setup.chat(R"("stream":true)");
  setup.answer("</think>5");
  for (const std::string& event : responder->events) EXPECT_EQ(event.find("\"usage\""), std::string::npos) << event;
}

TEST_F(ChatSessionTest, ContinuousUsageCountsUp) {
  Setup setup;
  const auto responder =
      setup.chat(R"("stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true})");
  setup.answer("</think>5 7");
  int64_t before = 0;
  for (size_t i = 0; i + 1 < responder->events.size(); ++i) {
    const Json chunk = Json::parse(responder->events[i]);
    const int64_t now = chunk["usage"]["completion_tokens"].get<int64_t>();
    EXPECT_GE(now, before);
    if (i == 0) {
      EXPECT_EQ(now, 0);
    }
    before = now;
  }
  EXPECT_EQ(before, static_cast<int64_t>(model_->ids("</think>5 7").size()) + 1);
}

TEST_F(ChatSessionTest, StreamedAndWholeRepliesHoldTheSameText) {
  const std::string text = "eins – zwei</think>drei 😀 vier";
  Setup setup;
  const auto whole = setup.chat("");
  const auto streamed = setup.chat(R"("stream":true)");
  setup.answer(text, 0);
  setup.answer(text, 1);
  const Json message = only_reply(*whole, 200)["choices"][0]["message"];
  std::string reasoning, content;
  for (size_t i = 0; i + 1 < streamed->events.size(); ++i) {
    const Json delta = Json::parse(streamed->events[i])["choices"][0]["delta"];
    reasoning += delta.value("reasoning", "");
    content += delta.value("content", "");
  }
  EXPECT_EQ(reasoning, message["reasoning"]);
  EXPECT_EQ(content, message["content"]);
  EXPECT_EQ(content, "drei 😀 vier");
}

TEST_F(ChatSessionTest, StopStringEndsTheReply) {
  Setup setup;
  const auto responder = setup.chat(R"("stop":["two","7"])");
  setup.engine.admit();
  setup.engine.tokens(model_->ids("7</think>one 7 three"));  // inside the reasoning a stop string means nothing
  setup.executor.run();
  const Json body = only_reply(*responder, 200);
  EXPECT_TRUE(setup.engine.cancelled());
  EXPECT_EQ(body["choices"][0]["message"]["content"], "one ");
  EXPECT_EQ(body["choices"][0]["message"]["reasoning"], "7");
  EXPECT_EQ(body["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(body["choices"][0]["stop_reason"], "7");
  EXPECT_EQ(body["usage"]["completion_tokens"], model_->ids("7</think>one 7").size());
  setup.engine.finish(FinishReason::cancelled);  // comes later and changes nothing
  setup.executor.run();
  EXPECT_EQ(responder->replies.size(), 1u);
}

// What the engine asks with every token, so that it ends by itself where the text's own matching does.
TEST_F(ChatSessionTest, TheEngineIsToldWhereAStopStringEnds) {
  Setup setup;
  setup.chat("");
  EXPECT_FALSE(setup.engine.request(0).ends_after);  // nothing to look for
  setup.chat(R"("stop":["o 7","二"])");
  const auto ends_at = [](const engine::Request& request, const std::vector<int32_t>& ids) {
    size_t count = 0;
    while (count < ids.size() && !request.ends_after(ids[count])) ++count;
    return count;
  };
  const auto ids = model_->ids("o 7 in thought</think>two 7 three");
  const auto last = model_->ids("o 7 in thought</think>two 7").size() - 1;
  EXPECT_EQ(ends_at(setup.engine.request(1), ids), last);
  // A character whose bytes are several tokens is complete with the last of them.
  setup.chat(R"("stop":"二")");
  const auto bytes = model_->ids("</think>二!");
  ASSERT_GT(bytes.size(), 3u);
  EXPECT_EQ(ends_at(setup.engine.request(2), bytes), bytes.size() - 2);
  // min_tokens counts here as it does in the text.
  setup.chat(fmt::format(R"("stop":"7","min_tokens":{})", model_->ids("</think>7").size()));
  EXPECT_EQ(ends_at(setup.engine.request(3), model_->ids("</think>7 7 7")), model_->ids("</think>7 7").size() - 1);
}

TEST_F(ChatSessionTest, AStopStringThatOnlyTheTextSeesCancels) {
  Setup setup;
  setup.engine.keeps_going = true;
  const auto whole = setup.chat(R"("stop":"7")");
  const auto streamed = setup.chat(R"("stop":"7","stream":true,"stream_options":{"include_usage":true})");
  for (size_t i = 0; i < 2; ++i) {
    setup.engine.admit(i);
    setup.engine.tokens(model_->ids("</think>one 7 three"), i);
    setup.executor.run();
    EXPECT_TRUE(setup.engine.cancelled(i));
    setup.engine.tokens(model_->ids(" four"), i);
    setup.executor.run();
  }
  EXPECT_TRUE(whole->replies.empty());
  EXPECT_FALSE(streamed->closed);
  setup.engine.finish(FinishReason::cancelled, -1, {}, 0);
  setup.engine.finish(FinishReason::error, -1, "too late to matter", 1);
  setup.executor.run();
  const Json choice = only_reply(*whole, 200)["choices"][0];
  EXPECT_EQ(choice["message"]["content"], "one ");
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_EQ(choice["stop_reason"], "7");
  ASSERT_GE(streamed->events.size(), 3u);
  EXPECT_EQ(streamed->events.back(), "[DONE]");
  const Json usage = Json::parse(streamed->events[streamed->events.size() - 2])["usage"];
  EXPECT_EQ(usage["completion_tokens"], model_->ids("</think>one 7").size());
}

TEST_F(ChatSessionTest, FiguresOfDrafts) {
  Setup setup;
  engine::DraftStats& drafts = setup.engine.drafts;
  drafts.begin_step(0);  // a plain step
  drafts.add_token(0, false);
  drafts.begin_step(3);  // two drafts accepted, one rejected
  drafts.add_token(0, true);
  drafts.add_token(1, true);
  drafts.add_token(2, false);
  drafts.begin_step(2);  // the reply ends with an accepted draft
  drafts.add_token(0, true);
  const Json expected = {{"mean_acceptance_length", 1.667},
                         {"draft_acceptance_rate", 0.6},
                         {"acceptance_histogram", {2, 0, 1, 0}},
                         {"num_spec_steps", 3},
                         {"num_accepted_draft_tokens", 3},
                         {"num_draft_tokens", 5},
                         {"num_spec_tokens", 3}};
  const auto whole = setup.chat("");
  const auto streamed =
      setup.chat(R"("stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true})");
  setup.answer("</think>5", 0);
  setup.answer("</think>5", 1);
  const Json body = only_reply(*whole, 200);
  EXPECT_EQ(body["metrics"]["speculative_decoding"], expected);
  const Json details = {{"reasoning_tokens", 1}, {"accepted_prediction_tokens", 3}, {"rejected_prediction_tokens", 2}};
  EXPECT_EQ(body["usage"]["completion_tokens_details"], details);
  const auto& events = streamed->events;
  ASSERT_GE(events.size(), 4u);
  EXPECT_EQ(Json::parse(events[events.size() - 3])["metrics"]["speculative_decoding"], expected);
  for (const size_t from_end : {2u, 3u})
    EXPECT_EQ(Json::parse(events[events.size() - from_end])["usage"]["completion_tokens_details"], details);
  EXPECT_EQ(Json::parse(events[1])["usage"]["completion_tokens_details"], Json({{"reasoning_tokens", 1}}));
}

TEST_F(ChatSessionTest, FiguresWithoutAnyStep) {
  Setup setup;
  const auto responder = setup.chat(R"("max_tokens":1)");  // the prompt gives the only token
  setup.engine.admit();
  setup.engine.tokens(model_->ids("</think>"));
  setup.engine.finish(FinishReason::length);
  setup.executor.run();
  const Json figures = only_reply(*responder, 200)["metrics"]["speculative_decoding"];
  EXPECT_EQ(figures["mean_acceptance_length"], nullptr);
  EXPECT_EQ(figures["draft_acceptance_rate"], nullptr);
  EXPECT_EQ(figures["acceptance_histogram"], Json::array({0}));
  EXPECT_EQ(figures["num_spec_steps"], 0);
  EXPECT_EQ(figures["num_spec_tokens"], 0);
}

TEST_F(ChatSessionTest, ADrafterThatIsNotThereIsRefused) {
  Setup setup;
  for (const auto* fields : {R"("drafter":"mtp")", R"("drafter":"mtp","stream":true)"}) {
    const auto responder = setup.chat(fields);
    const Json error = only_reply(*responder, 400)["error"];
    EXPECT_EQ(error["param"], "drafter");
    EXPECT_EQ(error["type"], "invalid_request_error");
    EXPECT_EQ(error["message"], "drafter: mtp; expected none");
    EXPECT_FALSE(responder->opened);
  }
  setup.chat(R"("draft":false)");
  EXPECT_EQ(setup.engine.request().drafter, draft::Choice::none);
  setup.chat("");
  EXPECT_FALSE(setup.engine.request(1).drafter);
}

TEST_F(ChatSessionTest, StopStringMayBeKeptAndWaitsForMinTokens) {
  Setup setup;
  const auto kept = setup.chat(R"("stop":"7","include_stop_str_in_output":true)");
  setup.answer("</think>1 7 2", 0);
  EXPECT_EQ(only_reply(*kept, 200)["choices"][0]["message"]["content"], "1 7");
  const auto late = setup.chat(R"("stop":"7","min_tokens":)" + std::to_string(model_->ids("</think>1 7").size()));
  setup.answer("</think>1 7 2 7 3", 1);
  EXPECT_EQ(only_reply(*late, 200)["choices"][0]["message"]["content"], "1 7 2 ");
}

TEST_F(ChatSessionTest, OwnStopTokenIsNamed) {
  Setup setup;
  const int32_t id = model_->ids("7").front();
  const auto responder = setup.chat("\"stop_token_ids\":[" + std::to_string(id) + "]");
  setup.engine.admit();
  setup.engine.tokens(model_->ids("</think>1"));
  setup.engine.finish(FinishReason::stop, id);
  setup.executor.run();
  const Json choice = only_reply(*responder, 200)["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_EQ(choice["stop_reason"], id);
  EXPECT_EQ(choice["message"]["content"], "17");  // its text is kept
}

TEST_F(ChatSessionTest, CutByLength) {
  Setup setup;
  const auto in_content = setup.chat("");
  setup.engine.admit(0);
  setup.engine.tokens(model_->ids("</think>1"), 0);
  setup.engine.finish(FinishReason::length, -1, {}, 0);
  setup.executor.run();
  Json choice = only_reply(*in_content, 200)["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "length");
  EXPECT_EQ(choice["message"]["content"], "1");
  EXPECT_EQ(choice["message"]["reasoning"], nullptr);
  const auto in_reasoning = setup.chat("");
  setup.engine.admit(1);
  setup.engine.tokens(model_->ids("still thinking"), 1);
  setup.engine.finish(FinishReason::length, -1, {}, 1);
  setup.executor.run();
  choice = only_reply(*in_reasoning, 200)["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "length");
  EXPECT_EQ(choice["message"]["content"], nullptr);
  EXPECT_EQ(choice["message"]["reasoning"], "still thinking");
}

// Rule C.8 b: the model never closed its reasoning, so what it wrote is the answer.
TEST_F(ChatSessionTest, ReasoningThatNeverClosedIsContent) {
  Setup setup;
  const auto whole = setup.chat("");
  const auto streamed = setup.chat(R"("stream":true)");
  setup.answer("just five", 0);
  setup.answer("just five", 1);
  const Json body = only_reply(*whole, 200);
  EXPECT_EQ(body["choices"][0]["message"]["content"], "just five");
  EXPECT_EQ(body["choices"][0]["message"]["reasoning"], nullptr);
  EXPECT_EQ(body["choices"][0]["reasoning_closed_by"], "eos");
  EXPECT_EQ(body["usage"]["completion_tokens_details"]["reasoning_tokens"], 0);
  std::string content;
  for (size_t i = 0; i + 1 < streamed->events.size(); ++i) {
    content += Json::parse(streamed->events[i])["choices"][0]["delta"].value("content", "");
  }
  EXPECT_EQ(content, "just five");
}

TEST_F(ChatSessionTest, ReasoningCanBeHidden) {
  Setup setup;
  const auto whole = setup.chat(R"("include_reasoning":false)");
  const auto streamed = setup.chat(R"("include_reasoning":false,"stream":true)");
  setup.answer("secret</think>5", 0);
  setup.answer("secret</think>5", 1);
  const Json body = only_reply(*whole, 200);
  EXPECT_EQ(body["choices"][0]["message"]["reasoning_content"], nullptr);
  EXPECT_GT(body["usage"]["completion_tokens_details"]["reasoning_tokens"], 1);
  for (const std::string& event : streamed->events) EXPECT_EQ(event.find("secret"), std::string::npos);
}

// The engine ends the two requests in the middle of their replies.
void fail_both(auto& setup, const std::vector<int32_t>& reply, const std::string& error) {
  for (size_t i = 0; i < 2; ++i) {
    setup.engine.admit(i);
    setup.engine.tokens(reply, i);
    setup.engine.finish(FinishReason::error, -1, error, i);
  }
  setup.executor.run();
}

TEST_F(ChatSessionTest, FailureOfTheEngine) {
  Setup setup;
  const auto whole = setup.chat("");
  const auto streamed = setup.chat(R"("stream":true)");
  fail_both(setup, model_->ids("</think>half"), "NaN in /secret/layer");
  EXPECT_EQ(only_reply(*whole, 500)["error"]["type"], "server_error");
  EXPECT_EQ(whole->replies[0].body.find("half"), std::string::npos);
  ASSERT_GE(streamed->events.size(), 3u);
  EXPECT_EQ(streamed->events.back(), "[DONE]");
  const Json error = Json::parse(streamed->events[streamed->events.size() - 2]);
  EXPECT_EQ(error["error"]["type"], "server_error");
  EXPECT_TRUE(streamed->closed);
  EXPECT_EQ(streamed->events[streamed->events.size() - 2].find("secret"), std::string::npos);
  EXPECT_EQ(setup.service.active(), 0u);
}

// Fields that contradict each other are the request's fault, and the client hears which kind of fault it is.
TEST_F(ChatSessionTest, RulesThatLeaveNoToken) {
  Setup setup;
  const auto whole = setup.chat("");
  const auto streamed = setup.chat(R"("stream":true)");
  fail_both(setup, model_->ids("</think>half"), std::string(engine::no_token_left));
  const Json error = only_reply(*whole, 400)["error"];
  EXPECT_EQ(error["type"], "invalid_request_error");
  EXPECT_EQ(error["code"], "no_token_left");
  const std::string count = fmt::format("After {} tokens", model_->ids("</think>half").size());
  EXPECT_NE(error["message"].get<std::string>().find(count), std::string::npos) << error;
  ASSERT_GE(streamed->events.size(), 3u);
  EXPECT_EQ(streamed->events.back(), "[DONE]");
  EXPECT_EQ(Json::parse(streamed->events[streamed->events.size() - 2])["error"], error);
  EXPECT_TRUE(streamed->closed);
}

TEST_F(ChatSessionTest, ClientThatLeavesCancels) {
  Setup setup;
  const auto queued = setup.chat("");
  queued->leave();
  EXPECT_TRUE(setup.engine.cancelled(0));
  const auto running = setup.chat(R"("stream":true)");
  setup.engine.admit(1);
  setup.executor.run();
  running->leave();
  EXPECT_TRUE(setup.engine.cancelled(1));
  setup.engine.finish(FinishReason::cancelled, -1, {}, 1);
  setup.executor.run();
  EXPECT_EQ(setup.service.active(), 0u);
  EXPECT_TRUE(queued->replies.empty());
}

TEST_F(ChatSessionTest, SlowClientGetsFewerLargerChunks) {
  Setup setup;
  const auto responder = setup.chat(R"("stream":true)");
  setup.engine.admit();
  setup.executor.run();
  responder->is_congested = true;
  setup.engine.tokens(model_->ids("why</think>one two three four"));
  setup.engine.finish(FinishReason::stop, model_->id("<|user|>"));
  setup.executor.run();
  EXPECT_EQ(responder->events.size(), 1u);
  responder->drain();
  ASSERT_EQ(responder->events.size(), 5u);  // first, reasoning, content, final, [DONE]
  EXPECT_EQ(Json::parse(responder->events[1])["choices"][0]["delta"]["reasoning"], "why");
  EXPECT_EQ(Json::parse(responder->events[2])["choices"][0]["delta"]["content"], "one two three four");
  EXPECT_TRUE(responder->closed);
}

}  // namespace
}  // namespace tandem::api::chat_session_test
