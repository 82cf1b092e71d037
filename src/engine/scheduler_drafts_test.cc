// Drafts change how many tokens a step yields and never which: one rule a test, over a model with known answers.
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/log.h"
#include "engine/fake_drafter.h"
#include "engine/scheduler_fixture.h"

namespace tandem::engine::scheduler_drafts_test {
namespace {

using Proposal = draft::Proposal;
using View = draft::StreamView;

SchedulerOptions drafting_options(const FakeModelOptions& model, int32_t chunk = 64) {
  auto options = options_for(model, chunk);
  options.capacity.max_logit_rows = 64;
  options.draft.choice = draft::Choice::copy;
  options.draft.has_copy = true;
  options.draft.policy.kind = draft::Policy::Kind::fixed;
  return options;
}

class Drafted {
 public:
  explicit Drafted(FakeDrafter::Script script, const FakeModelOptions& model = {.slots = 4, .records = 4})
      : Drafted(std::move(script), model, drafting_options(model)) {}
  Drafted(FakeDrafter::Script script, const FakeModelOptions& model, const SchedulerOptions& options)
      : drafter(std::move(script)), stepped(model, options, &drafter) {}

  FakeDrafter drafter;
  SteppedScheduler stepped;
};

DraftStats stats_of(SteppedScheduler::Client& client) { return client.collector.wait().drafts; }

class SchedulerDrafts : public ::testing::Test {
 protected:
  void SetUp() override { set_log_level(LogLevel::error); }
};

TEST_F(SchedulerDrafts, APerfectDrafterYieldsAllItsTokensInEveryStep) {
  for (const int32_t count : {1, 3, 7, 15}) {
    Drafted d(FakeDrafter::perfect(count));
    auto& client = d.stepped.run(greedy(some_prompt(9), 1 + 5 * (count + 1)));
    EXPECT_EQ(client.collector.tokens(), expected_reply(some_prompt(9), static_cast<size_t>(1 + 5 * (count + 1))));
    const DraftStats stats = stats_of(client);
    EXPECT_EQ(stats.steps, 5);
    EXPECT_EQ(stats.tokens_of_step[static_cast<size_t>(count + 1)], 5);
    EXPECT_EQ(stats.accepted, 5 * count);
    EXPECT_EQ(stats.drafted, 5 * count);
  }
}

TEST_F(SchedulerDrafts, ForcedRejectionAtEveryPlaceChangesNothing) {
  for (int32_t count = 1; count <= 15; ++count) {
    for (int32_t right = 0; right < count; ++right) {
      Drafted d(FakeDrafter::right_up_to(count, right));
      auto& client = d.stepped.run(greedy(some_prompt(13, count), 60));
      ASSERT_EQ(client.collector.tokens(), expected_reply(some_prompt(13, count), 60)) << count << " " << right;
      const DraftStats stats = stats_of(client);
      EXPECT_EQ(stats.steps, (59 + right) / (right + 1)) << count << " " << right;
      EXPECT_EQ(stats.steps + stats.accepted, 59);
    }
  }
}

TEST_F(SchedulerDrafts, TheAdversaryCostsRowsButNoToken) {
  Drafted d(FakeDrafter::right_up_to(7, 0));
  auto& client = d.stepped.run(greedy(some_prompt(5), 20));
  EXPECT_EQ(client.collector.tokens(), expected_reply(some_prompt(5), 20));
  EXPECT_EQ(stats_of(client).tokens_of_step[1], 19);
}

TEST_F(SchedulerDrafts, NoRowPastTheReplysEndIsRun) {
  for (int64_t max_tokens = 1; max_tokens <= 20; ++max_tokens) {
    Drafted d(FakeDrafter::perfect(7));
    auto& client = d.stepped.submit(greedy(some_prompt(6), max_tokens));
    int64_t last_row = 0;
    while (d.stepped.step() != nullptr) {
      for (const int64_t position : d.stepped.last.positions) last_row = std::max(last_row, position);
    }
    EXPECT_EQ(client.collector.tokens().size(), static_cast<size_t>(max_tokens));
    EXPECT_LE(last_row, 6 + max_tokens - 2);
    EXPECT_EQ(client.collector.wait().reason, FinishReason::length);
  }
}

// The state kept at a reply's end must be the one of a run without drafts: no row behind the stop token's place.
TEST_F(SchedulerDrafts, AStopTokenAmongAcceptedDraftsEndsTheReplyThere) {
  const auto reply = expected_reply(some_prompt(8), 30);
  for (size_t at = 0; at < 12; ++at) {
    const auto first = static_cast<size_t>(std::find(reply.begin(), reply.end(), reply[at]) - reply.begin());
    Drafted d(FakeDrafter::perfect(7));
    auto& client = d.stepped.run(greedy(some_prompt(8), 30, {reply[at]}));
    EXPECT_EQ(client.collector.tokens(), std::vector<int32_t>(reply.begin(), reply.begin() + std::ptrdiff_t(first)));
    EXPECT_EQ(client.collector.wait().stop_token, reply[at]);
    // The next turn opens with the stop token and resumes at the reply's end.
    auto next = some_prompt(8);
    next.insert(next.end(), reply.begin(), reply.begin() + static_cast<std::ptrdiff_t>(first) + 1);
    auto& turn = d.stepped.run(greedy(next, 4));
    EXPECT_EQ(turn.cached(), std::ssize(next) - 1);
    EXPECT_EQ(turn.collector.tokens(), expected_reply(next, 4));
  }
}

TEST_F(SchedulerDrafts, StopStringsEndTheReplyInsideAWindow) {
  const auto reply = expected_reply(some_prompt(8), 30);
  Drafted d(FakeDrafter::perfect(7));
  auto request = greedy(some_prompt(8), 30);
  int seen = 0;
  request.ends_after = [&](int32_t token) {
    EXPECT_EQ(token, reply[static_cast<size_t>(seen)]);
    return ++seen == 11;
  };
  auto& client = d.stepped.run(request);
  EXPECT_EQ(client.collector.tokens().size(), 11u);
  EXPECT_EQ(client.collector.wait().reason, FinishReason::stop);
  EXPECT_EQ(client.collector.wait().stop_token, -1);
  auto next = some_prompt(8);
  next.insert(next.end(), reply.begin(), reply.begin() + 11);
  EXPECT_EQ(d.stepped.run(greedy(next, 2)).cached(), 8 + 10);  // the eleventh was never run
}

// Requests of all kinds with drafts and without: equal.
class Equality : public SchedulerDrafts {
 protected:
  static std::vector<int32_t> reply(const Request& request, draft::Drafter* drafter, DraftVerify verify) {
    auto options = drafting_options({.slots = 4, .records = 4});
    options.draft.verify = verify;
    SteppedScheduler stepped({.slots = 4, .records = 4}, options, drafter);
    // Rows whose logits lie close together, so that samplers and penalties matter.
    stepped.model.change_row = [](std::vector<float>& row, int64_t position) {
      for (size_t id = 0; id < row.size(); ++id)
        row[id] += static_cast<float>(keyed_uniform(7, position, static_cast<int32_t>(id))) * 5;
    };
    auto& client = stepped.run(request);
    EXPECT_EQ(client.collector.wait().error, "");
    return client.collector.tokens();
  }
  static void expect_equal(const Request& request) {
    const auto serial = reply(request, nullptr, DraftVerify::exact);
    EXPECT_GT(serial.size(), 5u);
    for (int32_t wrong_at = 0; wrong_at <= 7; ++wrong_at) {
      FakeDrafter drafter(following(request.prompt_ids, serial, wrong_at));
      EXPECT_EQ(reply(request, &drafter, DraftVerify::exact), serial) << wrong_at;
      EXPECT_GT(drafter.tried(), 0);
      if (wrong_at == 7) {
        EXPECT_EQ(drafter.accepted(), drafter.tried());
      }
    }
  }
  // Drafts that are the reply's own tokens but for one.
  static FakeDrafter::Script following(std::vector<int32_t> prompt, std::vector<int32_t> serial, int32_t wrong_at) {
    return [prompt, serial, wrong_at](const View& view, Proposal& proposal) {
      const auto from = view.ids.size() - prompt.size();
      for (size_t i = from; i < serial.size() && proposal.count < 7; ++i) {
        const int32_t place = proposal.count++;
        const int32_t token = place == wrong_at ? (serial[i] + 1) % FakeModel::vocabulary : serial[i];
        proposal.tokens[static_cast<size_t>(place)] = token;
        proposal.confidence[static_cast<size_t>(place)] = 1;
      }
    };
  }
  static Request sampled(uint64_t seed) {
    auto request = greedy(some_prompt(11), 60);
    request.sampling = {.temperature = 1.0, .seed = seed};
    return request;
  }
};

TEST_F(Equality, Greedy) { expect_equal(greedy(some_prompt(11), 60)); }

TEST_F(Equality, SampledWithFilters) {
  for (uint64_t seed = 0; seed < 4; ++seed) {
    auto request = sampled(seed);
    expect_equal(request);
    request.sampling.top_k = 20;
    request.sampling.top_p = 0.8;
    expect_equal(request);
    request.sampling.min_p = 0.1;
    expect_equal(request);
  }
}

TEST_F(Equality, PenaltiesAndBias) {
  auto request = sampled(5);
  request.sampling.repetition_penalty = 1.3;
  request.sampling.presence_penalty = 0.7;
  request.sampling.frequency_penalty = 0.4;
  request.sampling.logit_bias = {{3, 4.0f}, {9, -100.0f}};
  expect_equal(request);
  request.sampling.temperature = 0;
  expect_equal(request);
}

// The penalties themselves, against a loop that knows the history.
TEST_F(Equality, PenaltiesCountPromptAndReply) {
  Request request = greedy(some_prompt(5), 12);
  request.sampling.presence_penalty = 2.0;
  request.sampling.frequency_penalty = 2.0;
  const auto tokens = reply(request, nullptr, DraftVerify::exact);
  auto history = request.prompt_ids;
  for (size_t i = 0; i < tokens.size(); ++i) {
    auto row = FakeModel::logits_after(history);
    for (size_t id = 0; id < row.size(); ++id) {
      row[id] += static_cast<float>(keyed_uniform(7, std::ssize(history), static_cast<int32_t>(id))) * 5;
      const auto count = std::count(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(i), id);
      if (count > 0) row[id] -= 2.0f * static_cast<float>(count) + 2.0f;
    }
    EXPECT_EQ(tokens[i], std::max_element(row.begin(), row.end()) - row.begin()) << i;
    history.push_back(tokens[i]);
  }
}

TEST_F(Equality, MinTokensHoldStopsBackInEveryRow) {
  auto request = sampled(9);
  for (int32_t id = 0; id < 32; ++id) request.stop_token_ids.push_back(id);
  request.min_tokens = 23;
  expect_equal(request);
}

// Every second token must be even, every other one odd.
class Alternating : public TokenRule {
 public:
  void mask(std::span<uint32_t> bits) override {
    for (auto& word : bits) word &= odd_ ? 0xAAAAAAAAu : 0x55555555u;
  }
  void accept(int32_t token) override {
    if ((token % 2 == 1) != odd_) throw std::logic_error("a token that was masked");
    odd_ = !odd_;
  }
  int32_t allowed_drafts(std::span<const int32_t> drafts) override {
    bool odd = odd_;
    int32_t count = 0;
    for (const int32_t draft : drafts) {
      if ((draft % 2 == 1) != odd) break;
      odd = !odd;
      ++count;
    }
    return count;
  }

 private:
  bool odd_ = false;
};

TEST_F(Equality, ARuleMasksEveryRowAndCutsDrafts) {
  auto request = sampled(3);
  const auto with_rule = [&](draft::Drafter* drafter) {
    request.rule = std::make_shared<Alternating>();
    return reply(request, drafter, DraftVerify::exact);
  };
  const auto serial = with_rule(nullptr);
  for (size_t i = 0; i < serial.size(); ++i) EXPECT_EQ(serial[i] % 2, static_cast<int32_t>(i % 2));
  for (int32_t wrong_at = 0; wrong_at <= 7; ++wrong_at) {
    FakeDrafter drafter(following(request.prompt_ids, serial, wrong_at));
    EXPECT_EQ(with_rule(&drafter), serial);
    // A wrong draft has the wrong parity here: it costs no row.
    EXPECT_EQ(drafter.accepted(), drafter.tried());
  }
}

TEST_F(Equality, ARuleThatThrowsEndsItsRequestOnly) {
  class Throwing : public TokenRule {
   public:
    void mask(std::span<uint32_t>) override {}
    void accept(int32_t) override { throw std::runtime_error("no such state"); }
  };
  Drafted d(FakeDrafter::perfect(7));
  auto request = greedy(some_prompt(4), 9);
  request.rule = std::make_shared<Throwing>();
  auto& bad = d.stepped.submit(request);
  auto& good = d.stepped.submit(greedy(some_prompt(6), 9));
  d.stepped.run_until_idle();
  EXPECT_EQ(bad.collector.wait().reason, FinishReason::error);
  EXPECT_NE(bad.collector.wait().error.find("no such state"), std::string::npos);
  EXPECT_EQ(good.collector.tokens(), expected_reply(some_prompt(6), 9));
}

TEST_F(Equality, LogprobsAreThoseOfTheKeptRows) {
  const auto logprobs = [](draft::Drafter* drafter) {
    auto options = drafting_options({});
    SteppedScheduler stepped({}, options, drafter);
    auto request = greedy(some_prompt(7), 25);
    request.logprobs = 3;
    std::vector<std::pair<float, std::vector<std::pair<int32_t, float>>>> seen;
    stepped.scheduler.submit(
        request,
        [&](const Event& event) {
          if (event.kind != Event::Kind::token) return;
          ASSERT_NE(event.logprobs, nullptr);
          seen.emplace_back(event.logprobs->chosen, std::vector(event.logprobs->best.begin(),
                                                                event.logprobs->best.begin() + event.logprobs->size));
        },
        stepped.now);
    stepped.run_until_idle();
    return seen;
  };
  const auto serial = logprobs(nullptr);
  ASSERT_EQ(serial.size(), 25u);
  EXPECT_EQ(serial[0].second.size(), 3u);
  EXPECT_EQ(serial[0].first, serial[0].second[0].second);
  // One logit is 5, 63 are 0: ln(e^5 / (e^5 + 63)).
  EXPECT_NEAR(serial[0].first, -std::log1p(63 * std::exp(-5.0)), 1e-6);
  for (const int32_t right : {0, 3, 7}) {
    FakeDrafter drafter(FakeDrafter::right_up_to(7, right));
    EXPECT_EQ(logprobs(&drafter), serial);
  }
}

TEST_F(SchedulerDrafts, TokensOutsideTheVocabularyAreDroppedAndCounted) {
  for (const int32_t bad : {-1, FakeModel::vocabulary, std::numeric_limits<int32_t>::min(), 1 << 30}) {
    Drafted d([&](const View& view, Proposal& proposal) {
      FakeDrafter::perfect(5)(view, proposal);
      proposal.tokens[3] = bad;
    });
    auto& client = d.stepped.run(greedy(some_prompt(9), 20));
    EXPECT_EQ(client.collector.tokens(), expected_reply(some_prompt(9), 20));
    EXPECT_EQ(stats_of(client).drafted, 0);
    EXPECT_GT(d.stepped.scheduler.status().invalid_proposals, 10);
  }
}

TEST_F(SchedulerDrafts, AProposalOfAnImpossibleLengthIsDropped) {
  for (const int32_t count : {-1, 16, 1000}) {
    Drafted d([&](const View&, Proposal& proposal) { proposal.count = count; });
    auto& client = d.stepped.run(greedy(some_prompt(9), 20));
    EXPECT_EQ(client.collector.tokens(), expected_reply(some_prompt(9), 20));
    EXPECT_GT(d.stepped.scheduler.status().invalid_proposals, 10);
  }
}

TEST_F(SchedulerDrafts, StreamsOfDifferentDepthsShareAStep) {
  Drafted d(
      [](const View& view, Proposal& proposal) { FakeDrafter::right_up_to(view.slot * 4, view.slot)(view, proposal); });
  std::vector<SteppedScheduler::Client*> clients;
  for (int i = 0; i < 4; ++i) clients.push_back(&d.stepped.submit(greedy(some_prompt(5 + i, i), 40)));
  d.stepped.step();
  d.stepped.step();
  std::vector<int32_t> rows;
  for (const auto& segment : d.stepped.last.segments) rows.push_back(segment.rows);
  EXPECT_EQ(rows, (std::vector<int32_t>{1, 5, 9, 13}));
  d.stepped.run_until_idle();
  for (int i = 0; i < 4; ++i)
    EXPECT_EQ(clients[static_cast<size_t>(i)]->collector.tokens(), expected_reply(some_prompt(5 + i, i), 40));
}

TEST_F(SchedulerDrafts, RowsOfAStepAreBounded) {
  auto options = drafting_options({.slots = 4, .records = 0}, 20);
  options.capacity.max_logit_rows = 12;
  Drafted d(FakeDrafter::perfect(15), {.slots = 4, .records = 0}, options);
  for (int i = 0; i < 6; ++i) d.stepped.submit(greedy(some_prompt(9, i), 40));
  while (d.stepped.step() != nullptr) {
    EXPECT_LE(d.stepped.last.tokens.size(), 20u);
    EXPECT_LE(d.stepped.last.logit_rows.size() + d.stepped.last.head_slots.size(), 12u);
  }
}

// A prompt beside streams with drafts gets rows in every slice.
TEST_F(SchedulerDrafts, PromptsAreNotStarved) {
  auto options = drafting_options({.slots = 4, .records = 0}, 16);
  options.prefill_slice_ms = 0;
  options.fill_share = 1;
  Drafted d(FakeDrafter::perfect(15), {.slots = 4, .records = 0}, options);
  for (int i = 0; i < 3; ++i) d.stepped.submit(greedy(some_prompt(4, i), 300));
  d.stepped.step();
  d.stepped.step();
  auto& late = d.stepped.submit(greedy(some_prompt(60, 7), 3));
  int steps = 0;
  for (; late.collector.tokens().empty() && steps < 100; ++steps) d.stepped.step();
  EXPECT_LE(steps, 12);
}

TEST_F(SchedulerDrafts, DraftsDoNotEvictKeptStates) {
  FakeModelOptions model{.slots = 1, .pages = 5, .page_rows = 16, .records = 4};
  auto options = drafting_options(model);
  options.max_model_len = 64;
  Drafted d(FakeDrafter::perfect(15), model, options);
  d.stepped.run(greedy(some_prompt(16, 1), 1));                     // kept: one page of four
  auto& client = d.stepped.submit(greedy(some_prompt(33, 2), 12));  // three pages, up to 45 rows
  d.stepped.run_until_idle();
  EXPECT_EQ(client.collector.tokens(), expected_reply(some_prompt(33, 2), 12));
  EXPECT_EQ(d.stepped.scheduler.status().evictions, 0);
}

TEST_F(SchedulerDrafts, ARequestMayDoWithoutDrafts) {
  Drafted d(FakeDrafter::perfect(7));
  auto request = greedy(some_prompt(9), 20);
  request.drafter = draft::Choice::none;
  EXPECT_EQ(stats_of(d.stepped.run(request)).drafted, 0);
  request.drafter = draft::Choice::copy;
  EXPECT_GT(stats_of(d.stepped.run(request)).drafted, 0);
  request.drafter = draft::Choice::mtp;
  try {
    d.stepped.submit(request);
    FAIL() << "was not refused";
  } catch (const Error& e) {
    EXPECT_EQ(e.where(), "drafter");
    EXPECT_NE(std::string(e.what()).find("none, copy, auto"), std::string::npos) << e.what();
  }
}

TEST_F(SchedulerDrafts, TheLastRowsBeforeAPromptsEndLeaveContext) {
  auto options = drafting_options({.slots = 1, .records = 4}, 8);
  options.draft.context_rows = 10;
  options.keep.smallest_stride = 0;
  Drafted d(FakeDrafter::perfect(3), {.slots = 1, .records = 4}, options);
  auto request = greedy(some_prompt(50), 3);
  request.keep_positions = {20};
  d.stepped.submit(request);
  std::vector<bool> seen(50);
  while (d.stepped.step() != nullptr) {
    for (const auto& segment : d.stepped.last.segments) {
      for (int64_t p = std::max(segment.position, segment.context_from); p < segment.position + segment.rows; ++p)
        if (p < 50) seen[static_cast<size_t>(p)] = true;
    }
  }
  for (size_t p = 0; p < 50; ++p) EXPECT_EQ(seen[p], (p >= 10 && p < 20) || p >= 40) << p;
}

TEST_F(SchedulerDrafts, SettingsOutsideTheirRangeAreNamed) {
  const auto refused = [](const char* name, const auto& change) {
    auto options = drafting_options({});
    change(options);
    try {
      const Scheduler scheduler(options);
      ADD_FAILURE() << name << " was not refused";
    } catch (const Error& e) {
      EXPECT_EQ(e.where(), name);
    }
  };
  refused("--num-speculative-tokens", [](auto& o) { o.draft.policy.depth = -1; });
  refused("--num-speculative-tokens", [](auto& o) { o.draft.policy.depth = 16; });
  SteppedScheduler s({});
  const auto refused_request = [&](const char* name, const auto& change) {
    auto request = greedy(some_prompt(5), 5);
    change(request);
    try {
      s.submit(request);
      ADD_FAILURE() << name << " was not refused";
    } catch (const Error& e) {
      EXPECT_EQ(e.where(), name);
    }
  };
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  refused_request("repetition_penalty", [](Request& r) { r.sampling.repetition_penalty = 0; });
  refused_request("presence_penalty", [](Request& r) { r.sampling.presence_penalty = 2.1; });
  refused_request("frequency_penalty", [](Request& r) { r.sampling.frequency_penalty = nan; });
  refused_request("logit_bias", [](Request& r) { r.sampling.logit_bias = {{-1, 0.0f}}; });
  refused_request("logit_bias", [](Request& r) { r.sampling.logit_bias = {{1, 101.0f}}; });
  refused_request("logprobs", [](Request& r) { r.logprobs = 21; });
}

}  // namespace
}  // namespace tandem::engine::scheduler_drafts_test
