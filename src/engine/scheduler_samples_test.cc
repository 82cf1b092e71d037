// Tokens chosen in the step: the same events as from whole logits, and logits only where something else needs them.
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/log.h"
#include "engine/fake_drafter.h"
#include "engine/reasoning_rule.h"
#include "engine/rule_list.h"
#include "engine/scheduler_fixture.h"

namespace tandem::engine::scheduler_samples_test {
namespace {

SchedulerOptions sampling_options(const FakeModelOptions& model, bool in_step) {
  SchedulerOptions options = options_for(model, 64);
  options.capacity.max_logit_rows = 64;
  options.samples_in_step = in_step;
  options.draft.choice = draft::Choice::copy;
  options.draft.has_copy = true;
  options.draft.policy.kind = draft::Policy::Kind::fixed;
  return options;
}

// A scheduler with drafts, of which the first two are what a greedy reply says next.
struct Sampled {
  explicit Sampled(bool in_step, const SchedulerOptions& options = sampling_options(model_options, true))
      : drafter(FakeDrafter::right_up_to(3, 2)), stepped(model_options, with(options, in_step), &drafter) {
    // Several tokens may come, so that noise decides.
    stepped.model.change_row = [](std::vector<float>& row, int64_t position) {
      for (size_t id = 0; id < row.size(); ++id)
        row[id] += static_cast<float>((static_cast<int64_t>(id) * 37 + position * 11) % 23) * 0.25f;
    };
  }
  static SchedulerOptions with(SchedulerOptions options, bool in_step) {
    options.samples_in_step = in_step;
    return options;
  }
  static constexpr FakeModelOptions model_options{.slots = 4, .records = 4};

  FakeDrafter drafter;
  SteppedScheduler stepped;
};

Request drawn(int first, int64_t tokens, double temperature = 1) {
  Request request = greedy(some_prompt(9, first), tokens);
  request.sampling.temperature = temperature;
  request.sampling.seed = static_cast<uint64_t>(first);
  return request;
}

// What a client heard, but for times.
std::vector<std::string> events_of(SteppedScheduler::Client& client) {
  std::vector<std::string> lines;
  for (const Event& e : client.collector.events())
    lines.push_back(fmt::format("{} {} {} {} {} {} '{}' {} {}", static_cast<int>(e.kind), e.begins_step, e.token,
                                e.cached_tokens, static_cast<int>(e.reason), e.stop_token, e.error, e.drafts.drafted,
                                e.drafts.accepted));
  return lines;
}

// Runs the requests together, in both ways; returns {rows, samples} of those that were chosen in the step.
std::pair<int64_t, int64_t> compare(const std::vector<std::function<Request()>>& requests,
                                    const SchedulerOptions& options = sampling_options(Sampled::model_options, true)) {
  std::vector<std::vector<std::string>> heard[2];
  std::pair<int64_t, int64_t> rows{0, 0};
  for (const bool in_step : {false, true}) {
    Sampled s(in_step, options);
    std::vector<SteppedScheduler::Client*> clients;
    for (const auto& make : requests) clients.push_back(&s.stepped.submit(make()));
    while (s.stepped.step() != nullptr) {
      rows.first += in_step ? std::ssize(s.stepped.last.logit_rows) + std::ssize(s.stepped.last.head_slots) : 0;
      rows.second += std::ssize(s.stepped.last.samples);
    }
    for (SteppedScheduler::Client* client : clients) heard[in_step ? 1 : 0].push_back(events_of(*client));
  }
  EXPECT_EQ(heard[0], heard[1]);
  return rows;
}

class SchedulerSamples : public ::testing::Test {
 protected:
  void SetUp() override { set_log_level(LogLevel::error); }
};

TEST_F(SchedulerSamples, PlainRequestsNeedNoLogits) {
  const auto [rows, samples] = compare({[] { return drawn(1, 30, 0); }, [] { return drawn(2, 30); },
                                        [] {
                                          Request r = drawn(3, 30, 0.7);
                                          r.sampling.top_k = 9;
                                          r.sampling.top_p = 0.9;
                                          return r;
                                        },
                                        [] {
                                          Request r = drawn(4, 30, 1.5);
                                          r.sampling.min_p = 0.05;
                                          r.sampling.top_k = -1;
                                          return r;
                                        }});
  EXPECT_GT(rows, 60);
  EXPECT_EQ(samples, rows);
}

// Each of these needs whole rows, its neighbour does not.
TEST_F(SchedulerSamples, WhatLooksAtLogitsGetsThem) {
  const std::vector<std::function<void(Request&)>> changes = {
      [](Request& r) { r.logprobs = 2; },
      [](Request& r) { r.sampling.repetition_penalty = 1.2; },
      [](Request& r) { r.sampling.presence_penalty = 0.5; },
      [](Request& r) { r.sampling.frequency_penalty = 0.5; },
      [](Request& r) {
        r.sampling.logit_bias = {{5, 3.0f}};
      },
  };
  for (const auto& change : changes) {
    const auto [rows, samples] = compare({[&] {
      Request r = drawn(5, 20);
      change(r);
      return r;
    }});
    EXPECT_GT(rows, 20);
    EXPECT_EQ(samples, 0);
    const auto both = compare({[&] {
                                 Request r = drawn(5, 20);
                                 change(r);
                                 return r;
                               },
                               [] { return drawn(6, 20); }});
    EXPECT_GT(both.second, 0);
    EXPECT_LT(both.second, both.first);
  }
}

// Stop ids may not come at first: the step knows them, unless they are too many.
TEST_F(SchedulerSamples, StopIdsThatAreMasked) {
  const auto with_stops = [](int32_t stops) {
    return [stops] {
      Request r = drawn(7, 40);
      r.min_tokens = 20;
      for (int32_t id = 0; id < stops; ++id) r.stop_token_ids.push_back(id);
      return r;
    };
  };
  const auto few = compare({with_stops(5)});
  EXPECT_EQ(few.first, few.second);
  const auto many = compare({with_stops(forward::RowSample::most_masked + 1)});
  EXPECT_GT(many.first - many.second, 10);
  EXPECT_GT(many.second, 0) << "behind min_tokens";
}

TEST_F(SchedulerSamples, RulesThatCanListWhatTheyMask) {
  const auto with_rule = [](const std::function<std::shared_ptr<TokenRule>()>& rule) {
    return [rule] {
      Request r = drawn(8, 40);
      r.rule = rule();
      return r;
    };
  };
  const auto markers = compare({with_rule([] {
    return std::make_shared<ReasoningRule>(40, std::vector{33, 34}, -1);
  })});
  EXPECT_EQ(markers.first, markers.second);
  // The row at which the budget is spent has one token only.
  const auto budget = compare({with_rule([] { return std::make_shared<ReasoningRule>(40, std::vector{33}, 12); })});
  EXPECT_GT(budget.second, 20);
  EXPECT_GE(budget.first - budget.second, 1);
  EXPECT_LE(budget.first - budget.second, 6) << "and drafts behind it";
  // A rule that says only what it is asked.
  class Odd : public TokenRule {
   public:
    void mask(std::span<uint32_t> bits) override { bits[0] &= 0xAAAAAAAAu; }
    void accept(int32_t) override {}
    bool masks() const override { return true; }
  };
  EXPECT_EQ(compare({with_rule([] { return std::make_shared<Odd>(); })}).second, 0);
  EXPECT_EQ(compare({with_rule([] {
              return RuleList::of({std::make_shared<Odd>(), std::make_shared<ReasoningRule>(40, std::vector{33}, -1)});
            })}).second,
            0);
}

// A rule that throws while the step is built throws again where it ends its request.
TEST_F(SchedulerSamples, ARuleThatThrows) {
  class Broken : public TokenRule {
   public:
    void mask(std::span<uint32_t>) override { throw std::runtime_error("no such state"); }
    void accept(int32_t) override {}
    bool list_masked(std::span<const int32_t>, std::vector<int32_t>& ids) override {
      ids.push_back(1);
      throw std::runtime_error("no such state");
    }
  };
  compare({[] {
             Request r = drawn(9, 10);
             r.rule = std::make_shared<Broken>();
             return r;
           },
           [] { return drawn(10, 10); }});
}

// All ids masked is the request's own fault; with nothing masked it is the model's.
TEST_F(SchedulerSamples, NoTokenIsLeft) {
  const auto all_but_one = [] {
    Request r = drawn(11, 10);
    r.min_tokens = 5;
    r.stop_token_ids = {3};
    return r;
  };
  for (const bool in_step : {false, true}) {
    Sampled s(in_step);
    s.stepped.model.change_row = [](std::vector<float>& row, int64_t) {
      std::fill(row.begin(), row.end(), -std::numeric_limits<float>::infinity());
      row[3] = 1;
    };
    auto& client = s.stepped.submit(all_but_one());
    s.stepped.run_until_idle();
    EXPECT_EQ(client.collector.wait().reason, FinishReason::error);
    EXPECT_NE(client.collector.wait().error.find("leave no token"), std::string::npos);
  }
  for (const float wrong : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    for (const bool in_step : {false, true}) {
      Sampled s(in_step);
      s.stepped.model.change_row = [wrong](std::vector<float>& row, int64_t) {
        std::fill(row.begin(), row.end(), wrong);
      };
      s.stepped.submit(drawn(12, 10));
      try {
        s.stepped.run_until_idle();
        FAIL() << in_step;
      } catch (const Error& e) {
        EXPECT_EQ(e.code(), ErrorCode::internal) << e.what();
      }
    }
  }
}

// Ratio verification looks at the distributions of rows that verify drafts, greedy rows aside.
TEST_F(SchedulerSamples, RatioVerification) {
  SchedulerOptions options = sampling_options(Sampled::model_options, true);
  options.draft.verify = DraftVerify::ratio;
  const auto drawn_rows = compare({[] { return drawn(13, 40); }}, options);
  EXPECT_GT(drawn_rows.second, 0);
  EXPECT_GT(drawn_rows.first, 2 * drawn_rows.second) << "three of four rows verify a draft";
  const auto greedy_rows = compare({[] { return drawn(13, 40, 0); }}, options);
  EXPECT_EQ(greedy_rows.first, greedy_rows.second);
}

TEST_F(SchedulerSamples, AKeptPromptGivesItsFirstTokenFromItsHeadRow) {
  for (const bool in_step : {false, true}) {
    Sampled s(in_step);
    const auto first = s.stepped.run(drawn(14, 5)).collector.tokens();
    auto& again = s.stepped.submit(drawn(14, 5));
    bool head = false;
    while (s.stepped.step() != nullptr) {
      if (s.stepped.last.head_slots.empty()) continue;
      head = true;
      ASSERT_EQ(s.stepped.last.samples.size(), in_step ? 1u : 0u);
      if (in_step) {
        EXPECT_EQ(s.stepped.last.samples[0].position, 9);
      }
    }
    EXPECT_TRUE(head);
    EXPECT_EQ(again.collector.tokens(), first);
  }
}

TEST_F(SchedulerSamples, ResultsThatDoNotFitTheStepAreRefused) {
  Sampled s(true);
  s.stepped.submit(drawn(15, 5));
  ASSERT_NE(s.stepped.scheduler.schedule(Time{0}), nullptr);
  EXPECT_THROW(s.stepped.scheduler.complete(std::vector<float>(FakeModel::vocabulary), Time{0}), Error);
}

TEST(ReasoningRule, ListsWhatItMasks) {
  ReasoningRule rule(40, {33, 34}, 4);
  const auto listed = [&](std::vector<int32_t> tokens) -> std::optional<std::vector<int32_t>> {
    std::vector<int32_t> ids = {9};
    if (!rule.list_masked(tokens, ids)) return std::nullopt;
    return ids;
  };
  EXPECT_EQ(listed({}), (std::vector{9, 33, 34}));
  EXPECT_EQ(listed({1, 2}), (std::vector{9, 33, 34}));
  EXPECT_EQ(listed({1, 2, 3}), std::nullopt) << "only the closer may come";
  EXPECT_EQ(listed({1, 40, 3}), std::vector{9}) << "behind the closer all may";
  for (const int32_t token : {1, 2, 3}) rule.accept(token);
  EXPECT_EQ(listed({}), std::nullopt);
  rule.accept(40);
  EXPECT_EQ(listed({33}), std::vector{9});
}

}  // namespace
}  // namespace tandem::engine::scheduler_samples_test
