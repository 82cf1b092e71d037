// Log-probabilities of the prompt: of every token but the first, once, whatever the steps are cut into.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "engine/scheduler_fixture.h"

namespace tandem::engine::scheduler_prompt_logprobs_test {
namespace {

// What the sink heard of the prompt; events hold pointers that end with the call.
struct Heard {
  std::vector<int32_t> tokens;
  std::vector<TokenLogprobs> reports;
  std::vector<Event::Kind> kinds;

  Engine::Sink sink() {
    return [this](const Event& event) {
      kinds.push_back(event.kind);
      if (event.kind != Event::Kind::prompt_token) return;
      tokens.push_back(event.token);
      reports.push_back(*event.logprobs);
    };
  }
};

void step_to_the_end(SteppedScheduler& stepped) { stepped.run_until_idle(); }

// The fake model's row: 5 for one token, 0 for the others.
void expect_prompt(const Heard& heard, const std::vector<int32_t>& prompt, int32_t most) {
  ASSERT_EQ(heard.tokens, std::vector<int32_t>(prompt.begin() + 1, prompt.end()));
  const double log_sum = std::log(std::exp(5.0) + FakeModel::vocabulary - 1);
  for (size_t i = 1; i < prompt.size(); ++i) {
    const int32_t likeliest = FakeModel::next({prompt.begin(), prompt.begin() + static_cast<std::ptrdiff_t>(i)});
    const TokenLogprobs& report = heard.reports[i - 1];
    const bool is_it = prompt[i] == likeliest;
    EXPECT_NEAR(report.chosen, (is_it ? 5 : 0) - log_sum, 1e-6) << i;
    EXPECT_EQ(report.rank, is_it ? 1 : 2) << i;  // all others are equal
    ASSERT_EQ(report.size, most) << i;
    if (most > 0) {
      EXPECT_EQ(report.best[0].first, likeliest) << i;
      EXPECT_NEAR(report.best[0].second, 5 - log_sum, 1e-6) << i;
    }
  }
}

TEST(SchedulerPromptLogprobs, OfEveryTokenOnceInAnyChunks) {
  std::vector<int32_t> prompt = some_prompt(41);
  prompt[7] = FakeModel::next({prompt.begin(), prompt.begin() + 7});  // one that is the likeliest
  for (const int32_t chunk : {8, 9, 64}) {
    for (const int32_t logit_rows : {8, 11, 100}) {
      for (const int32_t most : {0, 3}) {
        FakeModelOptions model;
        SchedulerOptions options = options_for(model, chunk);
        options.capacity.max_logit_rows = logit_rows;
        SteppedScheduler stepped(model, options);
        Heard heard, other;
        Request request = greedy(prompt, 3);
        request.prompt_logprobs = most;
        stepped.submit(greedy(some_prompt(5), 30));  // somebody decodes beside it
        stepped.scheduler.submit(request, heard.sink(), stepped.now);
        request.prompt_logprobs = 1;
        stepped.scheduler.submit(request, other.sink(), stepped.now);
        while (stepped.step() != nullptr) {
          ASSERT_LE(std::ssize(stepped.last.logit_rows) + std::ssize(stepped.last.head_slots), logit_rows);
        }
        expect_prompt(heard, prompt, most);
        expect_prompt(other, prompt, 1);
        EXPECT_EQ(heard.kinds.front(), Event::Kind::admitted);
        EXPECT_EQ(heard.kinds[prompt.size()], Event::Kind::token);  // behind all of the prompt
      }
    }
  }
}

TEST(SchedulerPromptLogprobs, KeptStatesAreNotResumed) {
  SteppedScheduler stepped({});
  const auto prompt = some_prompt(20);
  stepped.run(greedy(prompt, 2));
  Heard heard;
  Request request = greedy(prompt, 2);
  request.prompt_logprobs = 0;
  auto& client = stepped.submit(request);
  stepped.scheduler.submit(request, heard.sink(), stepped.now);
  step_to_the_end(stepped);
  EXPECT_EQ(client.cached(), 0);
  EXPECT_EQ(client.miss(), PrefixMiss::logprobs_asked);
  expect_prompt(heard, prompt, 0);
  EXPECT_GT(stepped.run(greedy(prompt, 2)).cached(), 0);  // others may resume what it left
}

TEST(SchedulerPromptLogprobs, APromptOfOneToken) {
  SteppedScheduler stepped({});
  Heard heard;
  Request request = greedy({5}, 2);
  request.prompt_logprobs = 2;
  stepped.scheduler.submit(request, heard.sink(), stepped.now);
  step_to_the_end(stepped);
  EXPECT_TRUE(heard.tokens.empty());
  EXPECT_EQ(heard.kinds.back(), Event::Kind::finished);
}

// What was given back runs its rows again and says nothing twice.
TEST(SchedulerPromptLogprobs, GivenBackAndResumed) {
  FakeModelOptions model;
  model.slots = 1;
  for (int steps = 0; steps < 8; ++steps) {
    SchedulerOptions options = options_for(model, 8);
    options.capacity.max_logit_rows = 8;
    SteppedScheduler stepped(model, options);
    const auto prompt = some_prompt(30);
    Heard heard;
    Request request = greedy(prompt, 6);
    request.prompt_logprobs = 1;
    request.priority = background_priority;
    stepped.scheduler.submit(request, heard.sink(), stepped.now);
    for (int i = 0; i < steps; ++i) stepped.step();
    auto& front = stepped.submit(greedy(some_prompt(4), 2));
    step_to_the_end(stepped);
    EXPECT_TRUE(front.collector.finished());
    expect_prompt(heard, prompt, 1);
    EXPECT_EQ(std::count(heard.kinds.begin(), heard.kinds.end(), Event::Kind::token), 6) << steps;
  }
}

TEST(SchedulerPromptLogprobs, OutOfRange) {
  SteppedScheduler stepped({});
  for (const int32_t most : {-2, most_logprobs + 1}) {
    Request request = greedy({1, 2}, 1);
    request.prompt_logprobs = most;
    try {
      stepped.submit(request);
      FAIL() << most;
    } catch (const Error& error) {
      EXPECT_EQ(error.where(), "prompt_logprobs");
    }
  }
}

}  // namespace
}  // namespace tandem::engine::scheduler_prompt_logprobs_test
