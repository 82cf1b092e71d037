// The conventions of τ over an engine that says what the test wants; what is compared with a reference, and what is
// not; files that cannot be used.
#include "eval/acceptance.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace tandem::eval::acceptance_test {
namespace {

const std::filesystem::path source = TANDEM_SOURCE_DIR;
constexpr int32_t stop = 99;

const text::Tokenizer& tokenizer() {
  static const text::Tokenizer nano = text::Tokenizer::load(source / "models/nano");
  return nano;
}

// Replies as lists of steps: the first is the prompt's token. A stop token ends a reply; requests for logprobs are
// answered plainly, with a margin for each token.
class ScriptedEngine : public engine::Engine {
 public:
  std::vector<std::vector<std::vector<int32_t>>> replies;  // of requests without logprobs, in their order
  float margin = 5;
  std::vector<engine::Request> requests;
  int64_t max_model_len = 1000;

  uint64_t submit(engine::Request request, Sink sink) override {
    const bool asked = request.logprobs >= 0;
    if (!asked) ++answered_;
    const auto& steps = replies.at(static_cast<size_t>(answered_ - 1));
    engine::Event end;
    end.kind = engine::Event::Kind::finished;
    end.reason = engine::FinishReason::length;
    int64_t emitted = 0;
    for (size_t step = 0; step < steps.size(); ++step) {
      if (step > 0) end.drafts.begin_step(7);
      for (size_t i = 0; i < steps[step].size() && emitted < request.max_tokens; ++i, ++emitted) {
        if (step > 0) end.drafts.add_token(static_cast<int32_t>(i), i + 1 < steps[step].size());
        say(steps[step][i], i == 0, request, sink, end);
      }
    }
    requests.push_back(std::move(request));
    sink(end);
    return requests.size();
  }
  void cancel(uint64_t) override {}
  engine::Status status() const override {
    engine::Status status;
    status.max_model_len = max_model_len;
    return status;
  }

 private:
  void say(int32_t token, bool begins, const engine::Request& request, const Sink& sink, engine::Event& end) const {
    if (token == stop && !request.stop_token_ids.empty()) {
      end.reason = engine::FinishReason::stop;
      end.stop_token = token;
      return;
    }
    engine::TokenLogprobs logprobs;
    logprobs.size = 2;
    logprobs.best[0] = {token, -0.5f};
    logprobs.best[1] = {token + 1, -0.5f - margin};
    engine::Event event;
    event.token = token;
    event.begins_step = begins;
    if (request.logprobs >= 0) event.logprobs = &logprobs;
    sink(event);
  }
  int64_t answered_ = 0;
};

AcceptancePrompt prompt_of(std::vector<int32_t> output = {}, std::vector<int64_t> taus = {}) {
  AcceptancePrompt prompt;
  prompt.name = std::string("a");
  prompt.ids = {1, 2, 3};
  prompt.output = std::move(output);
  prompt.mtp_taus = std::move(taus);
  return prompt;
}

AcceptanceOptions greedy(ReferenceLoop reference = ReferenceLoop::none) {
  AcceptanceOptions options;
  options.sampling.temperature = 0;
  options.stop_ids = {stop};
  options.reference = reference;
  return options;
}

TEST(Acceptance, CountsTheStopTokenInItsStepAndTheFirstTokenInNone) {
  ScriptedEngine engine;
  engine.replies = {{{10}, {11, 12, 13}, {14}, {15, stop}},     // stops inside a step
                    {{10}, {11, 12}, {stop}},                   // with a step of its own
                    {{stop}},                                   // at once: no step at all
                    {{10}, {11, 12, 13, 14, 15, 16, 17, 18}}};  // cut by the length limit
  const std::vector<AcceptancePrompt> prompts(4, prompt_of());
  AcceptanceOptions options = greedy();
  options.max_tokens = 7;
  std::vector<int64_t> progress;
  const auto report = run_acceptance(engine, prompts, options, [&](int64_t done) { progress.push_back(done); });
  EXPECT_EQ(report.results[0].taus, (std::vector<int64_t>{3, 1, 2}));
  EXPECT_EQ(report.results[1].taus, (std::vector<int64_t>{2, 1}));
  EXPECT_EQ(report.results[2].taus, (std::vector<int64_t>{}));
  EXPECT_EQ(report.results[3].taus, (std::vector<int64_t>{6}));
  EXPECT_EQ(report.results[0].reply_tokens, 7);
  EXPECT_EQ(report.results[2].reply_tokens, 1);
  EXPECT_EQ(progress, (std::vector<int64_t>{1, 2, 3, 4}));

  EXPECT_DOUBLE_EQ(report.request_mean(), (2.0 + 1.5 + 6.0) / 3);  // the reply without a step says nothing
  EXPECT_DOUBLE_EQ(report.token_weighted_mean(), 15.0 / 6);
  EXPECT_EQ(report.histogram(), (std::vector<int64_t>{0, 2, 2, 1, 0, 0, 1}));
  EXPECT_EQ(report.drafts.steps, report.steps());
  EXPECT_EQ(report.drafts.drafted, 42);
  const auto rates = report.accepted_rates();
  ASSERT_EQ(rates.size(), 7u);
  EXPECT_DOUBLE_EQ(rates[0], 4.0 / 6);
  EXPECT_DOUBLE_EQ(rates[1], 2.0 / 6);
  EXPECT_DOUBLE_EQ(rates[6], 0);
}

TEST(Acceptance, RequestsAreWhatTheOptionsSay) {
  ScriptedEngine engine;
  engine.replies = {{{10}, {stop}}, {{10}, {stop}}};
  engine.max_model_len = 10;
  AcceptanceOptions options = greedy();
  options.sampling.temperature = 0.7;
  options.sampling.seed = 5;
  options.max_tokens = 4;
  run_acceptance(engine, {prompt_of()}, options, {});
  options.max_tokens = 100;
  run_acceptance(engine, {prompt_of()}, options, {});
  EXPECT_EQ(engine.requests[0].prompt_ids, (std::vector<int32_t>{1, 2, 3}));
  EXPECT_EQ(engine.requests[0].sampling.temperature, 0.7);
  EXPECT_EQ(engine.requests[0].sampling.seed, 5u);
  EXPECT_EQ(engine.requests[0].max_tokens, 4);
  EXPECT_EQ(engine.requests[0].logprobs, -1);
  EXPECT_EQ(engine.requests[1].max_tokens, 7);  // what the model can hold
}

TEST(Acceptance, EqualStepsAreNoDifference) {
  ScriptedEngine engine;
  engine.replies = {{{10}, {11, 12, 13}, {14, stop}}};
  const auto report =
      run_acceptance(engine, {prompt_of({10, 11, 12, 13, 14, stop}, {3, 2})}, greedy(ReferenceLoop::mtp), {});
  EXPECT_EQ(report.compared, 1);
  EXPECT_EQ(report.different(), 0);
  EXPECT_EQ(report.reference_steps, 2);
  EXPECT_DOUBLE_EQ(report.reference_request_mean(), 2.5);
  EXPECT_DOUBLE_EQ(report.reference_token_weighted_mean(), 2.5);
  EXPECT_EQ(engine.requests.size(), 1u);
  EXPECT_GT(engine.requests[0].max_tokens, 6 + 7) << "the limit must not bound the last drafts";
}

// In fp32 nothing may differ; in bf16 a prompt may, and the mean a little.
TEST(Acceptance, PassesByWhatThePassesArithmeticCanKeep) {
  AcceptanceReport report;
  AcceptanceResult result;
  result.taus = {3, 2};
  result.difference.emplace().margin = 5;
  report.results = {result};
  report.compared = 1;
  report.reference_means = {2.5};
  EXPECT_FALSE(report.passed());
  report.options.is_rounded = true;
  EXPECT_TRUE(report.passed());
  report.reference_means = {2.53};
  EXPECT_FALSE(report.passed()) << "1.2 % below";
  report.reference_means = {2.5};
  report.results.push_back(result);
  EXPECT_FALSE(report.passed()) << "two prompts of two";
}

TEST(Acceptance, TheFirstStepThatDiffersIsFoundWithTheTokenItHangsOn) {
  ScriptedEngine engine;
  engine.replies = {{{10}, {11, 12, 13}, {14, 15}, {16, stop}}};
  const auto report = run_acceptance(engine, {prompt_of({10, 11, 12, 13, 14, 15, 16, stop}, {3, 3, 1})},
                                     greedy(ReferenceLoop::mtp), {});
  const auto& difference = report.results[0].difference;
  ASSERT_TRUE(difference.has_value());
  EXPECT_FALSE(difference->in_tokens);
  EXPECT_EQ(difference->step, 1);
  EXPECT_EQ(difference->token, 5);  // "15": the reference had drafted it, here it was the model's own
  EXPECT_FLOAT_EQ(static_cast<float>(difference->margin), 5);
  EXPECT_EQ(report.unexplained(), 1);
  ASSERT_EQ(engine.requests.size(), 2u);  // the second one asks for the margin
  EXPECT_EQ(engine.requests[1].logprobs, 2);
  EXPECT_EQ(engine.requests[1].max_tokens, 6);
  EXPECT_EQ(engine.requests[1].drafter, draft::Choice::none);
}

TEST(Acceptance, TiesOfTheModelExplainDifferences) {
  for (const float margin : {0.0005f, 0.002f}) {
    ScriptedEngine engine;
    engine.margin = margin;
    engine.replies = {{{10}, {11, 12, 77}, {78, stop}}};  // another token, and from there another reply
    const auto report =
        run_acceptance(engine, {prompt_of({10, 11, 12, 13, 14, stop}, {3, 2})}, greedy(ReferenceLoop::mtp), {});
    const auto& difference = report.results[0].difference;
    ASSERT_TRUE(difference.has_value());
    EXPECT_TRUE(difference->in_tokens);
    EXPECT_EQ(difference->step, -1);
    EXPECT_EQ(difference->token, 3);
    EXPECT_EQ(report.unexplained(), margin < 0.001f ? 0 : 1);
  }
}

TEST(Acceptance, AReferenceThatWasCutIsFollowedAsFarAsItGoes) {
  ScriptedEngine engine;
  engine.replies = {{{10}, {11, 12, 13}, {14, 15, 16}}};
  const auto report = run_acceptance(engine, {prompt_of({10, 11, 12, 13, 14}, {3, 1})}, greedy(ReferenceLoop::mtp), {});
  EXPECT_EQ(engine.requests[0].max_tokens, 5);
  EXPECT_EQ(report.different(), 0);
}

TEST(Acceptance, PromptsWithoutAReferenceAreOnlyCounted) {
  ScriptedEngine engine;
  engine.replies = {{{10}, {11, stop}}, {{10}, {11, stop}}};
  AcceptancePrompt other = prompt_of({10, 12, stop}, {});
  other.dflash2_taus = {2};
  const auto report = run_acceptance(engine, {prompt_of(), other}, greedy(ReferenceLoop::mtp), {});
  EXPECT_EQ(report.compared, 0);
  EXPECT_EQ(report.different(), 0);
  EXPECT_EQ(report.steps(), 2);
}

TEST(Acceptance, SampledRepliesHaveNoReference) {
  ScriptedEngine engine;
  AcceptanceOptions options = greedy(ReferenceLoop::dflash2);
  options.sampling.temperature = 1;
  EXPECT_THROW(run_acceptance(engine, {prompt_of()}, options, {}), Error);
}

TEST(Acceptance, ReportsSayWhatWasFound) {
  ScriptedEngine engine;
  engine.replies = {{{10}, {11, 12, 13}, {14, 15}, {16, stop}}, {{10}, {11, stop}}};
  auto chat = prompt_of();
  chat.name = std::string("line 2");
  auto report = run_acceptance(engine, {prompt_of({10, 11, 12, 13, 14, 15, 16, stop}, {3, 3, 1}), chat},
                               greedy(ReferenceLoop::mtp), {});
  report.drafter = std::string("mtp");
  report.policy = std::string("fixed");
  const auto text = acceptance_text(report);
  EXPECT_NE(text.find("prompt 0 (a): step 1 "), std::string::npos) << text;
  EXPECT_NE(text.find("chats "), std::string::npos) << text;
  const auto written = acceptance_json(report);
  EXPECT_EQ(written.find("{\n  \"schema\": \"tandem.eval_acceptance/1\""), 0u);
  const auto json = nlohmann::json::parse(written);
  EXPECT_EQ(json["drafter"], "mtp");
  EXPECT_EQ(json["steps"], 4);
  EXPECT_EQ(json["tokens"], 9);
  EXPECT_EQ(json["histogram"], (nlohmann::json{{"1", 0}, {"2", 3}, {"3", 1}}));
  EXPECT_EQ(json["request_mean"], (7.0 / 3 + 2) / 2);
  EXPECT_EQ(json["passed"], false);
  EXPECT_EQ(json["reference"]["different"], 1);
  EXPECT_EQ(json["reference"]["unexplained"], 1);
  EXPECT_EQ(json["results"][0]["tokens_per_step"], (std::vector<int>{3, 2, 2}));
  EXPECT_EQ(json["results"][0]["difference"]["token"], 5);
  EXPECT_TRUE(json["results"][1]["difference"].is_null());
}

TEST(AcceptancePrompts, TheBundledFileReads) {
  const auto prompts = read_acceptance_prompts(source / "models/nano/acceptance_prompts.jsonl", tokenizer(), 2048);
  ASSERT_EQ(prompts.size(), 80u);
  int64_t mtp = 0, dflash2 = 0;
  for (const auto& prompt : prompts) mtp += std::ssize(prompt.mtp_taus), dflash2 += std::ssize(prompt.dflash2_taus);
  EXPECT_EQ(mtp, 581);
  EXPECT_EQ(dflash2, 388);
}

TEST(AcceptancePrompts, ChatBodiesAreRendered) {
  const auto prompts = parse_acceptance_prompts(
      "\n{\"messages\": [{\"role\": \"user\", \"content\": \"Where?\"}], \"reasoning_effort\": \"low\"}\r\n  \n"
      "{\"prompt_ids\": [5, 6], \"skill\": \"b\"}",
      "file", tokenizer(), 2048);
  ASSERT_EQ(prompts.size(), 2u);
  EXPECT_EQ(prompts[0].name, "line 2");
  EXPECT_NE(tokenizer().decode(prompts[0].ids).find("<|user|>Where?<|assistant|><think>"), std::string::npos);
  EXPECT_EQ(prompts[1].name, "b");
  EXPECT_EQ(prompts[1].ids, (std::vector<int32_t>{5, 6}));
}

TEST(AcceptancePrompts, BadFilesNameLineAndKey) {
  const std::string good = R"({"messages": [{"role": "user", "content": "x"}]})"
                           "\n";
  for (const auto& [line, word] : std::vector<std::pair<std::string, std::string>>{
           {"{", "JSON"},
           {"5", "no object"},
           {"{}", "neither"},
           {R"({"messages": 5})", "messages"},
           {R"({"messages": [{"role": 5}]})", "messages[0]"},
           {R"({"prompt_ids": []})", "prompt_ids"},
           {R"({"prompt_ids": "1 2"})", "prompt_ids"},
           {R"({"prompt_ids": [1, 2048]})", "2048 at place 1"},
           {R"({"prompt_ids": [1, -1]})", "-1 at place 1"},
           {R"({"prompt_ids": [1.5]})", "1.5 at place 0"},
           {R"({"prompt_ids": [18446744073709551615]})", "place 0"},
           {R"({"prompt_ids": [1], "output_ids": [7, 2048]})", "output_ids"},
           {R"({"prompt_ids": [1], "output_ids": [7, 8, 9], "mtp3_tokens_per_step": [1]})", "mtp3_tokens_per_step"},
           {R"({"prompt_ids": [1], "output_ids": [7, 8], "dflash2_tokens_per_step": [0, 1]})",
            "dflash2_tokens_per_step"},
           {R"({"prompt_ids": [1], "dflash2_tokens_per_step": [2]})", "dflash2_tokens_per_step"},
           {R"({"prompt_ids": [1], "skill": 3})", "skill"},
           {std::string(100000, '['), "nested"}}) {
    try {
      parse_acceptance_prompts(good + line, "file", tokenizer(), 2048);
      ADD_FAILURE() << line.substr(0, 60);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::bad_file);
      EXPECT_NE(std::string(e.what()).find("file:2"), std::string::npos) << e.what();
      EXPECT_NE(std::string(e.what()).find(word), std::string::npos) << e.what();
    }
  }
  EXPECT_THROW(parse_acceptance_prompts(" \n\n", "file", tokenizer(), 2048), Error);
}

}  // namespace
}  // namespace tandem::eval::acceptance_test
