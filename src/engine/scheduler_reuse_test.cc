// What is kept of a request and what later ones make of it.
#include "base/error.h"
#include "base/log.h"
#include "engine/scheduler_fixture.h"

namespace tandem::engine::scheduler_reuse_test {
namespace {

class ReuseTest : public ::testing::Test {
 protected:
  void SetUp() override { set_log_level(LogLevel::error); }
  static std::vector<int32_t> joined(std::vector<int32_t> a, const std::vector<int32_t>& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  }
};

TEST_F(ReuseTest, AnIdenticalPromptIsAnsweredWithoutAForward) {
  SteppedScheduler s({.slots = 2, .page_rows = 16});
  const auto prompt = some_prompt(100);
  EXPECT_EQ(s.run(greedy(prompt, 5)).cached(), 0);
  auto& again = s.submit(greedy(prompt, 5));
  s.step();
  EXPECT_TRUE(s.last.tokens.empty());
  EXPECT_EQ(s.last.head_slots.size(), 1u);
  EXPECT_EQ(s.last.restores.size(), 1u);
  EXPECT_EQ(again.collector.tokens().size(), 1u);
  s.run_until_idle();
  EXPECT_EQ(again.cached(), 100);
  EXPECT_EQ(again.miss(), PrefixMiss::none);
  EXPECT_EQ(again.collector.tokens(), expected_reply(prompt, 5));
}

TEST_F(ReuseTest, FullPagesAreSharedAndThePartialOneIsCopied) {
  SteppedScheduler s({.slots = 2, .page_rows = 16});
  const auto prompt = some_prompt(40);
  s.run(greedy(prompt, 1));
  s.submit(greedy(joined(prompt, {1, 2, 3}), 5));
  s.step();
  ASSERT_EQ(s.last.page_copies.size(), 1u);
  EXPECT_EQ(s.last.page_copies[0].rows, 8);
  EXPECT_EQ(s.last.tokens.size(), 3u);
  EXPECT_EQ(s.last.segments[0].position, 40);
  const auto& first = s.model.steps.front();
  EXPECT_EQ(s.last.page_tables[0], first.page_tables[0]);
  EXPECT_EQ(s.last.page_tables[2], s.last.page_copies[0].to);
}

TEST_F(ReuseTest, TheNextTurnResumesAfterTheReply) {
  SteppedScheduler s({.slots = 1, .page_rows = 16});
  const auto prompt = some_prompt(50);
  const auto reply = expected_reply(prompt, 30);
  const int32_t stop = reply[20];
  const auto length = static_cast<size_t>(std::find(reply.begin(), reply.end(), stop) - reply.begin());
  auto& first = s.run(greedy(prompt, 30, {stop}));
  EXPECT_EQ(first.collector.wait().reason, FinishReason::stop);
  const auto turn = joined(joined(prompt, first.collector.tokens()), {stop, 1, 2, 3});
  auto& second = s.run(greedy(turn, 5));
  EXPECT_EQ(second.cached(), 50 + static_cast<int64_t>(length));  // all but the stop token and what follows
  EXPECT_EQ(second.collector.tokens(), expected_reply(turn, 5));
}

TEST_F(ReuseTest, ACancelledReplyIsKeptToo) {
  SteppedScheduler s({.slots = 1, .page_rows = 16});
  const auto prompt = some_prompt(50);
  auto& client = s.submit(greedy(prompt, 500));
  while (client.collector.tokens().size() < 20) s.step();
  s.scheduler.cancel(client.number, s.now);
  s.run_until_idle();
  EXPECT_EQ(s.run(greedy(joined(prompt, client.collector.tokens()), 3)).cached(), 69);  // the last token was not run
}

TEST_F(ReuseTest, ForkPointsAreKeptWhenTheSecondPromptParts) {
  auto options = options_for({.slots = 1, .page_rows = 16}, 64);
  SteppedScheduler s({.slots = 1, .page_rows = 16}, options);
  const auto system = some_prompt(80);
  s.run(greedy(joined(system, {1, 1, 1, 1}), 3));
  EXPECT_EQ(s.run(greedy(joined(system, {2, 2, 2, 2}), 3)).cached(), 0);  // nothing was kept there, but it is now
  EXPECT_EQ(s.run(greedy(joined(system, {5, 5, 5, 5}), 3)).cached(), 80);
}

TEST_F(ReuseTest, AskedPositionsAndTheStrideAreKept) {
  auto options = options_for({.slots = 1, .page_rows = 16}, 512);
  options.keep.smallest_stride = options.keep.largest_stride = 64;
  SteppedScheduler s({.slots = 1, .page_rows = 16}, options);
  auto request = greedy(some_prompt(300), 1);
  request.keep_positions = {100};
  s.run(request);
  for (const auto& [length, expected] :
       std::vector<std::pair<int64_t, int64_t>>{{70, 64}, {110, 100}, {140, 128}, {299, 256}, {300, 300}}) {
    auto edited = some_prompt(300);
    edited.resize(static_cast<size_t>(length));
    edited.push_back(63);
    EXPECT_EQ(s.run(greedy(edited, 1)).cached(), expected) << length;
  }
}

TEST_F(ReuseTest, MissesHaveReasons) {
  SteppedScheduler s({.slots = 1, .page_rows = 16, .records = 2});
  const auto prompt = some_prompt(60);
  EXPECT_EQ(s.run(greedy(prompt, 1)).miss(), PrefixMiss::new_prefix);

  auto salted = greedy(prompt, 1);
  salted.cache_salt = "pepper";
  auto& other = s.submit(salted);
  s.run_until_idle();
  EXPECT_EQ(other.cached(), 0);
  EXPECT_EQ(other.miss(), PrefixMiss::other_salt);

  auto every_row = greedy(prompt, 1);
  every_row.needs_every_prompt_row = true;
  auto& logprobs = s.run(every_row);
  EXPECT_EQ(logprobs.cached(), 0);
  EXPECT_EQ(logprobs.miss(), PrefixMiss::logprobs_asked);

  auto edited = prompt;
  edited[10] = 63;
  auto effort = greedy(edited, 1);
  effort.prompt_parts = {{5, 9, PromptPart::Kind::template_text}, {9, 12, PromptPart::Kind::effort}};
  EXPECT_EQ(s.run(effort).miss(), PrefixMiss::effort_changed);

  s.run(greedy(some_prompt(60, 20), 1));
  s.run(greedy(some_prompt(60, 21), 1));
  s.run(greedy(some_prompt(60, 22), 1));
  auto& evicted = s.run(greedy(edited, 1));
  EXPECT_EQ(evicted.cached(), 0);
  EXPECT_EQ(evicted.miss(), PrefixMiss::evicted);
}

TEST_F(ReuseTest, KeptStatesMakeRoomForStreams) {
  SteppedScheduler s({.slots = 1, .pages = 9, .page_rows = 16}, 64, 120);
  for (int i = 0; i < 20; ++i) {
    const auto prompt = some_prompt(90, i);
    EXPECT_EQ(s.run(greedy(prompt, 20)).collector.tokens(), expected_reply(prompt, 20));
  }
  const Status status = s.scheduler.status();
  EXPECT_GT(status.evictions, 10);
  EXPECT_EQ(status.free_rows + status.reclaimable_rows, status.pool_rows);
  EXPECT_GT(status.kept_states, 0);
}

TEST_F(ReuseTest, AStateWhosePartialPageCannotBeHadTwiceIsNotResumed) {
  // 4 pages: the state holds all of them, the last one partly, and the prompt needs all four itself.
  SteppedScheduler s({.slots = 1, .pages = 5, .page_rows = 16}, 64, 64);
  const auto prompt = some_prompt(55);
  s.run(greedy(prompt, 1));
  auto& again = s.run(greedy(prompt, 9));
  EXPECT_EQ(again.collector.tokens(), expected_reply(prompt, 9));
}

TEST_F(ReuseTest, CountersAddUp) {
  SteppedScheduler s({.slots = 2, .page_rows = 16});
  s.run(greedy(some_prompt(40), 4));
  s.run(greedy(some_prompt(40), 4));
  const Status status = s.scheduler.status();
  EXPECT_EQ(status.prompt_tokens, 80);
  EXPECT_EQ(status.cached_tokens, 40);
  EXPECT_EQ(status.generated_tokens, 8);
  EXPECT_EQ(status.step_rows, 40 + 3 + 3);  // a reply's last token is never run
  EXPECT_EQ(status.running + status.waiting, 0);
  EXPECT_EQ(status.kept_states, 2);  // the prompt, and its end with the reply
}

}  // namespace
}  // namespace tandem::engine::scheduler_reuse_test
