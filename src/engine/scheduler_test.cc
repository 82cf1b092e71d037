// Rounds, slices, growth, giving back, cancellation, limits: one rule a test, over a model with known answers.
#include "engine/scheduler.h"

#include <limits>

#include "base/error.h"
#include "base/log.h"
#include "engine/scheduler_fixture.h"

namespace tandem::engine::scheduler_test {
namespace {

using std::chrono::milliseconds;

class SchedulerTest : public ::testing::Test {
 protected:
  void SetUp() override { set_log_level(LogLevel::error); }
};

int64_t prompt_rows(const forward::Step& step) {
  int64_t rows = 0;
  for (const auto& segment : step.segments)
    if (segment.rows > 1) rows += segment.rows;
  return rows;
}

TEST_F(SchedulerTest, EveryDecodingStreamIsInEveryRound) {
  SteppedScheduler s({.slots = 4, .records = 0}, 100);
  for (int i = 0; i < 4; ++i) s.submit(greedy(some_prompt(5 + i, i), 10));
  s.step();  // the four prompts together
  EXPECT_EQ(s.last.segments.size(), 4u);
  EXPECT_EQ(s.last.tokens.size(), 5u + 6 + 7 + 8);
  EXPECT_EQ(s.last.logit_rows.size(), 4u);
  for (int i = 0; i < 8; ++i) {
    s.step();
    EXPECT_EQ(s.last.tokens.size(), 4u);
    EXPECT_EQ(s.last.logit_rows, (std::vector<int32_t>{0, 1, 2, 3}));
  }
}

TEST_F(SchedulerTest, RowsOfAStepAreBounded) {
  SteppedScheduler s({.slots = 4, .records = 0}, 10);
  for (int i = 0; i < 4; ++i) s.submit(greedy(some_prompt(33, i), 5));
  while (s.step() != nullptr) EXPECT_LE(s.last.tokens.size(), 10u);
}

TEST_F(SchedulerTest, SlicesAreBoundedByTimeWhileOthersDecode) {
  auto options = options_for({.slots = 2, .records = 0}, 512, 10000);
  options.prefill_slice_ms = 100;
  options.keep.smallest_stride = 0;  // kept positions cut slices
  SteppedScheduler s({.slots = 2, .records = 0}, options);
  s.submit(greedy(some_prompt(4), 5000));
  s.step();
  s.submit(greedy(some_prompt(8000, 5), 2));
  Time last_slice{0};
  int slices = 0;
  for (int i = 0; i < 1000; ++i) {
    const Time began = s.now;
    // Each row costs a millisecond, each step four.
    const forward::Step* step = s.scheduler.schedule(s.now);
    ASSERT_NE(step, nullptr);
    const int64_t rows = prompt_rows(*step);
    EXPECT_EQ(step->segments[0].rows, 1);  // the decoding stream is in every round
    s.model.run(*step);
    s.now += milliseconds(4 + std::ssize(step->tokens));
    s.scheduler.complete(s.model.logits(), s.now);
    if (rows == 0) continue;
    ++slices;
    if (slices > 30) {
      EXPECT_NEAR(static_cast<double>((s.now - began).count()) / 1e6, 100, 20);
    }
    // Half the time belongs to rounds without prompt rows.
    if (slices > 1) {
      EXPECT_GE(began - last_slice, (s.now - began) / 3);
    }
    last_slice = s.now;
  }
  EXPECT_GT(slices, 30);
}

TEST_F(SchedulerTest, AloneAPromptRunsInFullChunks) {
  auto options = options_for({.slots = 2, .records = 0}, 128);
  options.prefill_slice_ms = 1;
  SteppedScheduler s({.slots = 2, .records = 0}, options);
  s.step_time = milliseconds(1000);
  s.submit(greedy(some_prompt(512), 1));
  for (int i = 0; i < 4; ++i) {
    s.step();
    EXPECT_EQ(s.last.tokens.size(), 128u);
  }
}

TEST_F(SchedulerTest, ShortPromptsNeedNoCredit) {
  auto options = options_for({.slots = 3, .records = 0}, 64);
  options.fill_share = 0.01;
  SteppedScheduler s({.slots = 3, .records = 0}, options);
  s.step_time = milliseconds(50);
  s.submit(greedy(some_prompt(4), 500));
  s.step();
  s.submit(greedy(some_prompt(900, 5), 2));
  s.step();  // a slice of the long prompt: its credit is used up for a long time
  EXPECT_EQ(prompt_rows(s.last), 16);
  s.step();
  EXPECT_EQ(prompt_rows(s.last), 0);
  auto& quick = s.submit(greedy(some_prompt(10, 9), 2));
  s.step();
  EXPECT_EQ(prompt_rows(s.last), 10);
  EXPECT_EQ(quick.collector.tokens().size(), 1u);
  s.step();
  EXPECT_EQ(prompt_rows(s.last), 0);
}

TEST_F(SchedulerTest, AdmissionIsFirstComeFirstServedAndTheHeadHoldsUpTheRest) {
  SteppedScheduler s({.slots = 4, .pages = 9, .page_rows = 16, .records = 0}, 256, 120);
  auto& running = s.submit(greedy(some_prompt(60), 20));  // 4 pages of 8, and one of headroom
  s.step();
  auto& large = s.submit(greedy(some_prompt(90, 1), 3));  // 6 pages
  auto& small = s.submit(greedy(some_prompt(3, 2), 3));
  for (int i = 0; i < 19; ++i) {
    EXPECT_FALSE(large.admitted());
    EXPECT_FALSE(small.admitted());
    s.step();
  }
  EXPECT_TRUE(running.collector.finished());
  s.step();
  EXPECT_TRUE(large.admitted());
  EXPECT_TRUE(small.admitted());
  s.run_until_idle();
  EXPECT_EQ(small.collector.tokens(), expected_reply(some_prompt(3, 2), 3));
}

TEST_F(SchedulerTest, WhatNeverFitsIsRefusedWithTheLargestSizeThatWould) {
  SteppedScheduler s({.slots = 1, .pages = 5, .page_rows = 16, .records = 0}, 256, 1000);
  try {
    s.submit(greedy(some_prompt(64), 1));
    FAIL() << "was not refused";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::usage);
    EXPECT_EQ(e.where(), "prompt");
    EXPECT_NE(std::string(e.what()).find("at most 63"), std::string::npos) << e.what();
  }
  // The largest one runs, and its reply is cut to the pool.
  auto& largest = s.run(greedy(some_prompt(63), 1000));
  EXPECT_EQ(largest.collector.wait().reason, FinishReason::length);
  EXPECT_EQ(largest.collector.tokens().size(), 1u);
  EXPECT_EQ(s.run(greedy(some_prompt(10), 1000)).collector.tokens().size(), 54u);
}

TEST_F(SchedulerTest, TheYoungestIsGivenBackAndNobodyNotices) {
  SteppedScheduler s({.slots = 3, .pages = 7, .page_rows = 16, .records = 0}, 256, 90);
  std::vector<SteppedScheduler::Client*> clients;
  for (int i = 0; i < 3; ++i) clients.push_back(&s.submit(greedy(some_prompt(10, i), 70)));
  s.run_until_idle();
  EXPECT_GT(s.scheduler.status().preemptions, 0);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(clients[static_cast<size_t>(i)]->collector.tokens(), expected_reply(some_prompt(10, i), 70));
    int admitted = 0;
    for (const Event& event : clients[static_cast<size_t>(i)]->collector.events())
      admitted += static_cast<int>(event.kind == Event::Kind::admitted);
    EXPECT_EQ(admitted, 1);
  }
}

TEST_F(SchedulerTest, AStreamThatCannotGrowWaitsWhileAPromptRuns) {
  SteppedScheduler s({.slots = 2, .pages = 7, .page_rows = 16, .records = 0}, 8, 96);
  auto& decoding = s.submit(greedy(some_prompt(14), 30));
  s.step();
  s.step();
  auto& filling = s.submit(greedy(some_prompt(60, 1), 4));  // 4 pages; 1 + 1 are the other's, and all are taken
  s.step();
  ASSERT_TRUE(filling.admitted());
  s.run_until_idle();
  EXPECT_EQ(decoding.collector.tokens(), expected_reply(some_prompt(14), 30));
  EXPECT_EQ(filling.collector.tokens(), expected_reply(some_prompt(60, 1), 4));
}

TEST_F(SchedulerTest, CancellationFreesTheStreamWithinOneStep) {
  SteppedScheduler s({.slots = 2, .pages = 9, .page_rows = 16, .records = 0}, 8, 120);
  const auto cancelled = [&](SteppedScheduler::Client& client) {
    s.scheduler.cancel(client.number, s.now);
    s.scheduler.check();
    return client.collector.finished() && client.collector.wait().reason == FinishReason::cancelled;
  };
  auto& decoding = s.submit(greedy(some_prompt(5), 50));
  s.step();
  s.step();
  auto& filling = s.submit(greedy(some_prompt(60, 1), 5));
  s.step();
  auto& queued = s.submit(greedy(some_prompt(5, 2), 5));
  auto& last = s.submit(greedy(some_prompt(5, 3), 5));
  s.step();
  EXPECT_FALSE(queued.admitted());
  EXPECT_TRUE(cancelled(queued));
  EXPECT_TRUE(cancelled(filling));
  s.step();
  EXPECT_TRUE(last.admitted());
  EXPECT_TRUE(cancelled(decoding));
  EXPECT_TRUE(cancelled(last));
  EXPECT_EQ(s.step(), nullptr);
  const Status status = s.scheduler.status();
  EXPECT_EQ(status.free_rows, status.pool_rows);
  EXPECT_FALSE(decoding.collector.late());
}

TEST_F(SchedulerTest, DeadlinesEndQueuedAndRunningRequests) {
  SteppedScheduler s({.slots = 1, .records = 0}, 8, 1000);
  auto late = greedy(some_prompt(5), 500);
  late.deadline_s = 0.02;
  auto& running = s.submit(late);
  late.deadline_s = 0.01;
  auto& queued = s.submit(late);
  late.deadline_s = 1e12;
  auto& patient = s.submit(late);
  while (!patient.admitted()) s.step();
  EXPECT_EQ(queued.collector.wait().reason, FinishReason::deadline);
  EXPECT_FALSE(queued.admitted());
  EXPECT_EQ(running.collector.wait().reason, FinishReason::deadline);
  EXPECT_NEAR(static_cast<double>(running.collector.tokens().size()), 20, 2);
  late.deadline_s = 0.0;
  EXPECT_THROW(s.submit(late), Error);
}

TEST_F(SchedulerTest, TheQueueHasALimit) {
  auto options = options_for({.slots = 2, .records = 0});
  options.max_waiting = 3;
  SteppedScheduler s({.slots = 2, .records = 0}, options);
  int refused = 0;
  for (int i = 0; i < 50; ++i) {
    try {
      s.submit(greedy(some_prompt(5, i), 3));
    } catch (const QueueFull& e) {
      EXPECT_EQ(e.code(), ErrorCode::resource);
      ++refused;
    }
  }
  EXPECT_EQ(refused, 45);
  s.run_until_idle();
  EXPECT_EQ(s.scheduler.running() + s.scheduler.waiting(), 0);
  EXPECT_NO_THROW(s.submit(greedy(some_prompt(5), 3)));
}

TEST_F(SchedulerTest, EndAllTellsEveryone) {
  SteppedScheduler s({.slots = 1, .records = 0});
  auto& running = s.submit(greedy(some_prompt(5), 50));
  auto& queued = s.submit(greedy(some_prompt(5), 50));
  s.step();
  s.scheduler.schedule(s.now);
  s.scheduler.end_all(FinishReason::error, "out of paper", s.now);
  for (auto* client : {&running, &queued}) {
    EXPECT_EQ(client->collector.wait().reason, FinishReason::error);
    EXPECT_EQ(client->collector.wait().error, "out of paper");
  }
  EXPECT_EQ(s.scheduler.running() + s.scheduler.waiting(), 0);
}

TEST_F(SchedulerTest, SettingsOutsideTheirRangeAreNamed) {
  const auto refused = [](const char* name, const auto& change) {
    auto options = options_for({});
    change(options);
    try {
      const Scheduler scheduler(options);
      ADD_FAILURE() << name << " was not refused";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::usage);
      EXPECT_EQ(e.where(), name);
    }
  };
  refused("--max-num-seqs", [](auto& o) { o.capacity.slots = 0; });
  refused("--max-num-batched-tokens", [](auto& o) { o.capacity.max_rows = 7; });
  refused("--max-num-batched-tokens", [](auto& o) { o.capacity.max_rows = -1; });
  refused("--max-queued-requests", [](auto& o) { o.max_waiting = 0; });
  refused("--prefill-slice-ms", [](auto& o) { o.prefill_slice_ms = -1; });
  refused("--fill-share", [](auto& o) { o.fill_share = 0; });
  refused("--max-queued-requests", [](auto& o) { o.max_waiting = most_waiting + 1; });
  refused("--max-queued-requests", [](auto& o) { o.max_waiting = std::numeric_limits<int64_t>::max(); });
  refused("--fill-share", [](auto& o) { o.fill_share = 1.5; });
  refused("--fill-share", [](auto& o) { o.fill_share = 0.0099; });
  refused("--fill-share", [](auto& o) { o.fill_share = 1e-300; });
  refused("--fill-share", [](auto& o) { o.fill_share = std::numeric_limits<double>::quiet_NaN(); });
  refused("max_model_len", [](auto& o) { o.max_model_len = 1; });
  refused("pages", [](auto& o) { o.capacity.pages = 1; });
  refused("max_logit_rows", [](auto& o) { o.capacity.max_logit_rows = 7; });
}

TEST_F(SchedulerTest, RequestsOutsideTheirRangeAreNamed) {
  SteppedScheduler s({});
  const auto refused = [&](const char* name, const auto& change) {
    auto request = greedy(some_prompt(5), 5);
    change(request);
    try {
      s.submit(request);
      ADD_FAILURE() << name << " was not refused";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::usage);
      EXPECT_EQ(e.where(), name);
    }
  };
  refused("max_tokens", [](Request& r) { r.max_tokens = 0; });
  refused("max_tokens", [](Request& r) { r.max_tokens = -5; });
  refused("min_tokens", [](Request& r) { r.min_tokens = -1; });
  refused("keep_positions[0]", [](Request& r) { r.keep_positions = {0}; });
  refused("keep_positions[1]", [](Request& r) { r.keep_positions = {5, 6}; });
  refused("prompt_parts[0]", [](Request& r) { r.prompt_parts = {{3, 9, PromptPart::Kind::effort}}; });
  refused("deadline_s", [](Request& r) { r.deadline_s = -1; });
}

}  // namespace
}  // namespace tandem::engine::scheduler_test
