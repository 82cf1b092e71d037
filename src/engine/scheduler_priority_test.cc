// Who is admitted when: priorities, places given back by requests in the background, and nobody waits for ever.
#include <algorithm>

#include "engine/scheduler_fixture.h"

namespace tandem::engine::scheduler_priority_test {
namespace {

Request with_priority(int64_t priority, int length = 6, int64_t max_tokens = 4) {
  Request request = greedy(some_prompt(length), max_tokens);
  request.priority = priority;
  return request;
}

FakeModelOptions one_slot() {
  FakeModelOptions options;
  options.slots = 1;
  return options;
}

TEST(SchedulerPriority, LowerIsAdmittedEarlier) {
  SteppedScheduler stepped(one_slot());
  auto& running = stepped.submit(with_priority(0));
  stepped.step();
  auto& later = stepped.submit(with_priority(5));
  auto& plain = stepped.submit(with_priority(0));
  auto& first = stepped.submit(with_priority(-2));
  auto& second = stepped.submit(with_priority(-2));
  std::vector<const SteppedScheduler::Client*> order;
  while (stepped.step() != nullptr) {
    for (auto* client : {&later, &plain, &first, &second}) {
      if (client->admitted() && std::find(order.begin(), order.end(), client) == order.end()) order.push_back(client);
    }
  }
  EXPECT_EQ(order, (std::vector<const SteppedScheduler::Client*>{&first, &second, &plain, &later}));
  EXPECT_EQ(running.collector.tokens(), expected_reply(some_prompt(6), 4));
}

// One that needs more room than there is does not keep a better one waiting that comes later.
TEST(SchedulerPriority, ABetterOneNeedNotWaitForRoom) {
  FakeModelOptions options;
  options.slots = 3;
  options.pages = 4;  // three of four rows
  options.page_rows = 4;
  options.records = 0;
  SteppedScheduler stepped(options);
  stepped.submit(with_priority(0, 3, 4));
  stepped.step();
  auto& large = stepped.submit(with_priority(1, 7, 1));
  stepped.step();
  EXPECT_FALSE(large.admitted());
  auto& small = stepped.submit(with_priority(0, 2, 1));
  stepped.step();
  EXPECT_TRUE(small.admitted());
  stepped.run_until_idle();
  EXPECT_EQ(large.collector.wait().reason, FinishReason::length);
}

TEST(SchedulerPriority, TheBackgroundGivesItsPlaceBack) {
  SteppedScheduler stepped(one_slot());
  auto& background = stepped.submit(with_priority(background_priority, 6, 10));
  for (int i = 0; i < 4; ++i) stepped.step();
  const size_t before = background.collector.tokens().size();
  ASSERT_GT(before, 0u);
  auto& other = stepped.submit(with_priority(background_priority));
  stepped.step();
  EXPECT_FALSE(other.admitted());  // not for its like
  auto& front = stepped.submit(with_priority(0));
  stepped.step();
  EXPECT_TRUE(front.admitted());
  while (!front.collector.finished()) stepped.step();
  EXPECT_EQ(background.collector.tokens().size(), before + 1);
  stepped.run_until_idle();
  EXPECT_EQ(background.collector.tokens(), expected_reply(some_prompt(6), 10));  // it went on where it was
  EXPECT_EQ(other.collector.wait().reason, FinishReason::length);
  EXPECT_EQ(stepped.scheduler.status().preemptions, 1);
}

TEST(SchedulerPriority, NobodyWaitsForEver) {
  for (const int64_t priority : {int64_t{1}, background_priority}) {
    SteppedScheduler stepped(one_slot());
    stepped.submit(with_priority(0));
    stepped.step();
    auto& patient = stepped.submit(with_priority(priority));
    int passed_by = 0;
    while (!patient.collector.finished()) {  // there is always another that is better
      if (stepped.scheduler.waiting() < 2) stepped.submit(with_priority(0)), ++passed_by;
      ASSERT_NE(stepped.step(), nullptr);
      ASSERT_LT(passed_by, 100);
    }
    EXPECT_GE(passed_by, most_passes);
    EXPECT_LE(passed_by, most_passes + 3);
    EXPECT_EQ(patient.collector.tokens(), expected_reply(some_prompt(6), 4));
  }
}

// Whatever is given back for whom, every request gets the tokens that it gets alone.
TEST(SchedulerPriority, AnyMixGivesTheSameTokens) {
  uint32_t state = 7;
  const auto dice = [&state](uint32_t sides) { return ((state = state * 1664525 + 1013904223) >> 16) % sides; };
  for (int round = 0; round < 40; ++round) {
    FakeModelOptions options;
    options.slots = 1 + static_cast<int32_t>(dice(3));
    options.pages = 12;
    options.page_rows = 4;
    options.records = static_cast<int32_t>(dice(4));
    SteppedScheduler stepped(options);
    std::vector<std::pair<SteppedScheduler::Client*, std::vector<int32_t>>> expected;
    for (int i = 0; i < 25; ++i) {
      const int64_t priorities[] = {0, -1, 3, background_priority, background_priority};
      const int length = 1 + static_cast<int>(dice(15));
      const int64_t tokens = 1 + dice(12);
      const auto prompt = some_prompt(length, static_cast<int>(dice(5)));
      Request request = greedy(prompt, tokens);
      request.priority = priorities[dice(5)];
      if (dice(4) == 0) request.prompt_logprobs = 1;
      expected.emplace_back(&stepped.submit(std::move(request)), expected_reply(prompt, static_cast<size_t>(tokens)));
      for (uint32_t steps = dice(6); steps > 0; --steps) stepped.step();
    }
    stepped.run_until_idle();
    for (const auto& [client, tokens] : expected) {
      EXPECT_EQ(client->collector.wait().reason, FinishReason::length);
      ASSERT_EQ(client->collector.tokens(), tokens) << round;
    }
  }
}

}  // namespace
}  // namespace tandem::engine::scheduler_priority_test
