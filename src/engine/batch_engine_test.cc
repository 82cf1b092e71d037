// The engine over a model with known answers: tokens, events, limits, cancellation, failure, and many threads at once.
#include "engine/batch_engine.h"

#include <cmath>
#include <ctime>
#include <future>
#include <random>
#include <thread>

#include "base/error.h"
#include "base/log.h"
#include "engine/testing.h"

namespace tandem::engine::batch_engine_test {
namespace {

constexpr FakeModelOptions one_slot{.slots = 1, .records = 0};  // nothing is kept: every prompt is run

BatchEngineOptions options(int32_t chunk = 8, int64_t max_model_len = 1000, const FakeModelOptions& model = one_slot) {
  return {.scheduler = options_for(model, chunk, max_model_len), .watchdog_s = 0, .on_stuck = {}};
}

ErrorCode refusal(Engine& engine, Request request) {
  try {
    engine.submit(std::move(request), [](const Event&) { ADD_FAILURE() << "an event of a refused request"; });
  } catch (const Error& e) {
    return e.code();
  }
  ADD_FAILURE() << "was not refused";
  return ErrorCode::failed_check;
}

// A model whose first step waits until it is opened.
struct Gate {
  std::promise<void> reached, open;
  std::atomic<bool> used{false};
  void operator()() {
    if (used.exchange(true)) return;
    reached.set_value();
    open.get_future().wait();
  }
};

TEST(BatchEngine, RepliesHaveTheModelsTokensForEveryChunkSize) {
  for (const int chunk : {1, 2, 7, 8, 9, 64, 600}) {
    for (const int length : {1, 8, 9, 64, 300}) {
      FakeModel model(one_slot);
      Collector collector;
      const auto prompt = some_prompt(length);
      {
        BatchEngine engine(model, options(chunk));
        engine.submit(greedy(prompt, 20), collector.sink());
        EXPECT_EQ(collector.wait().reason, FinishReason::length);
        EXPECT_EQ(model.step_count, (length + chunk - 1) / chunk + 19);  // the last token is never run
      }
      EXPECT_EQ(collector.tokens(), expected_reply(prompt, 20)) << chunk << " " << length;
      for (const auto& step : model.steps) EXPECT_LE(std::ssize(step.tokens), chunk);
    }
  }
}

TEST(BatchEngine, EventsComeInOrderWithTimings) {
  FakeModel model(one_slot);
  model.before_step = [](FakeModel&) { std::this_thread::sleep_for(std::chrono::milliseconds(2)); };
  BatchEngine engine(model, options());
  Collector collector;
  engine.submit(greedy(some_prompt(20), 3), collector.sink());
  const Event last = collector.wait();
  const auto events = collector.events();
  ASSERT_EQ(events.size(), 5u);
  EXPECT_EQ(events[0].kind, Event::Kind::admitted);
  for (size_t i = 1; i <= 3; ++i) EXPECT_EQ(events[i].kind, Event::Kind::token);
  EXPECT_EQ(last.kind, Event::Kind::finished);
  EXPECT_GE(last.timings.queue_ms, 0);
  EXPECT_GE(last.timings.prefill_ms, 6);  // three chunks
  EXPECT_GE(last.timings.decode_ms, 4);   // two more steps
}

TEST(BatchEngine, StopTokensEndTheReplyAndAreNotDelivered) {
  FakeModel model(one_slot);
  BatchEngine engine(model, options());
  const auto reply = expected_reply(some_prompt(5), 10);
  const int32_t stop = reply[4];
  const auto first = static_cast<size_t>(std::find(reply.begin(), reply.end(), stop) - reply.begin());
  Collector collector;
  engine.submit(greedy(some_prompt(5), 10, {63, stop, stop}), collector.sink());
  const Event last = collector.wait();
  EXPECT_EQ(last.reason, FinishReason::stop);
  EXPECT_EQ(last.stop_token, stop);
  EXPECT_EQ(collector.tokens(),
            std::vector<int32_t>(reply.begin(), reply.begin() + static_cast<std::ptrdiff_t>(first)));

  Collector at_limit;  // a stop token that uses up the budget is a stop
  engine.submit(greedy(some_prompt(5), static_cast<int64_t>(first) + 1, {stop}), at_limit.sink());
  EXPECT_EQ(at_limit.wait().reason, FinishReason::stop);
}

TEST(BatchEngine, MinTokensMasksTheStopTokens) {
  FakeModel model(one_slot);
  BatchEngine engine(model, options());
  const int32_t stop = FakeModel::next(some_prompt(5));
  for (const int64_t min_tokens : {0, 1, 4}) {
    Collector collector;
    auto request = greedy(some_prompt(5), 8, {stop});
    request.min_tokens = min_tokens;
    engine.submit(request, collector.sink());
    collector.wait();
    EXPECT_GE(std::ssize(collector.tokens()), min_tokens);
    if (min_tokens == 0) {
      EXPECT_TRUE(collector.tokens().empty());
    }
    for (const int32_t token : collector.tokens()) EXPECT_NE(token, stop);
  }
}

TEST(BatchEngine, MaxTokensIsCutToTheWindow) {
  FakeModel model(one_slot);
  BatchEngine engine(model, options(8, 30));
  Collector collector;
  engine.submit(greedy(some_prompt(25), 100), collector.sink());
  EXPECT_EQ(collector.wait().reason, FinishReason::length);
  EXPECT_EQ(collector.tokens().size(), 5u);
}

TEST(BatchEngine, TokensWithoutTextAreNeverSampled) {
  FakeModel model(one_slot);
  model.change_row = [](std::vector<float>& logits, int64_t) { logits[FakeModel::vocabulary - 1] = 100; };
  auto o = options();
  o.scheduler.sampled_tokens = FakeModel::vocabulary - 1;
  BatchEngine engine(model, o);
  for (const double temperature : {0.0, 1.0}) {
    Collector collector;
    auto request = greedy({FakeModel::vocabulary - 1}, 30);  // as a prompt token it is allowed
    request.sampling.temperature = temperature;
    engine.submit(request, collector.sink());
    collector.wait();
    EXPECT_EQ(collector.tokens().size(), 30u);
    for (const int32_t token : collector.tokens()) EXPECT_LT(token, FakeModel::vocabulary - 1);
  }
}

TEST(BatchEngine, SampledTokensAreThoseOfTheirAbsolutePosition) {
  // A flat row at every position: the token is the keyed noise's alone, whatever the chunk size was.
  const auto flatten = [](std::vector<float>& logits, int64_t) { logits.assign(logits.size(), 0.0f); };
  const std::vector<float> flat(FakeModel::vocabulary, 0.0f);
  for (const int chunk : {3, 100}) {
    FakeModel model(one_slot);
    model.change_row = flatten;
    BatchEngine engine(model, options(chunk));
    Collector collector;
    auto request = greedy(some_prompt(10), 15);
    request.sampling = {.temperature = 1.0, .top_k = 0, .top_p = 1.0, .min_p = 0.0, .seed = 99};
    engine.submit(request, collector.sink());
    collector.wait();
    Sampler sampler(FakeModel::vocabulary);
    for (size_t i = 0; i < 15; ++i)
      EXPECT_EQ(collector.tokens()[i],
                sampler.select(flat, request.sampling, 10 + static_cast<int64_t>(i), {FakeModel::vocabulary, {}}));
  }
}

TEST(BatchEngine, RefusesWhatCanNeverRun) {
  FakeModel model(one_slot);
  BatchEngine engine(model, options(8, 30));
  EXPECT_EQ(refusal(engine, greedy({}, 5)), ErrorCode::usage);
  EXPECT_EQ(refusal(engine, greedy({1, -1}, 5)), ErrorCode::usage);
  EXPECT_EQ(refusal(engine, greedy({1, FakeModel::vocabulary}, 5)), ErrorCode::usage);
  EXPECT_EQ(refusal(engine, greedy(some_prompt(30), 5)), ErrorCode::usage);
  EXPECT_EQ(refusal(engine, greedy({1}, 0)), ErrorCode::usage);
  auto request = greedy({1}, 5);
  request.min_tokens = -1;
  EXPECT_EQ(refusal(engine, request), ErrorCode::usage);
  request = greedy({1}, 5);
  for (int32_t id = 0; id < FakeModel::vocabulary; ++id) request.stop_token_ids.push_back(id);
  request.min_tokens = 1;
  EXPECT_EQ(refusal(engine, request), ErrorCode::usage);
  for (const SamplingParams& bad :
       {SamplingParams{.temperature = -1}, SamplingParams{.temperature = std::nan("")}, SamplingParams{.top_p = 0},
        SamplingParams{.top_p = 1.1}, SamplingParams{.min_p = -0.1}, SamplingParams{.min_p = std::nan("")}}) {
    request = greedy({1}, 5);
    request.sampling = bad;
    EXPECT_EQ(refusal(engine, request), ErrorCode::usage);
  }
  Collector collector;  // the longest prompt that fits
  engine.submit(greedy(some_prompt(29), 5), collector.sink());
  EXPECT_EQ(collector.wait().reason, FinishReason::length);
  EXPECT_EQ(collector.tokens().size(), 1u);
}

TEST(BatchEngine, RunsRequestsInTheOrderOfTheirArrival) {
  FakeModel model(one_slot);
  Gate gate;
  model.before_step = [&](FakeModel&) { gate(); };
  BatchEngine engine(model, options());
  std::mutex mutex;
  std::vector<int> order;
  std::vector<Collector> collectors(5);
  for (int i = 0; i < 5; ++i) {
    auto sink = collectors[static_cast<size_t>(i)].sink();
    engine.submit(greedy(some_prompt(3 + i), 4), [&, i, sink](const Event& e) {
      if (e.kind == Event::Kind::admitted) {
        const std::lock_guard lock(mutex);
        order.push_back(i);
      }
      sink(e);
    });
  }
  gate.reached.get_future().wait();
  EXPECT_EQ(engine.status().running, 1);
  EXPECT_EQ(engine.status().waiting, 4);
  gate.open.set_value();
  for (int i = 0; i < 5; ++i) {
    collectors[static_cast<size_t>(i)].wait();
    EXPECT_EQ(collectors[static_cast<size_t>(i)].tokens(), expected_reply(some_prompt(3 + i), 4));
  }
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3, 4}));
}

TEST(BatchEngine, CancelEndsRunningAndQueuedRequests) {
  FakeModel model(one_slot);
  model.before_step = [](FakeModel&) { std::this_thread::sleep_for(std::chrono::milliseconds(1)); };
  BatchEngine engine(model, options(8, 100000));
  Collector running, queued, survivor;
  const auto first = engine.submit(greedy(some_prompt(5), 90000), running.sink());
  const auto second = engine.submit(greedy(some_prompt(6), 90000), queued.sink());
  engine.submit(greedy(some_prompt(7), 3), survivor.sink());
  running.wait_for_tokens(3);
  engine.cancel(second);  // ends while the first still runs
  EXPECT_EQ(queued.wait().reason, FinishReason::cancelled);
  ASSERT_EQ(queued.events().size(), 1u);
  EXPECT_EQ(queued.events()[0].timings.prefill_ms, 0);
  EXPECT_EQ(engine.status().running, 1);
  engine.cancel(first);
  engine.cancel(first);
  EXPECT_EQ(running.wait().reason, FinishReason::cancelled);
  EXPECT_EQ(survivor.wait().reason, FinishReason::length);
  EXPECT_EQ(survivor.tokens(), expected_reply(some_prompt(7), 3));
  engine.cancel(first);
  engine.cancel(12345);
}

TEST(BatchEngine, CancelBetweenPrefillChunks) {
  FakeModel model(one_slot);
  Gate gate;
  model.before_step = [&](FakeModel&) { gate(); };
  BatchEngine engine(model, options(4));
  Collector collector;
  const auto number = engine.submit(greedy(some_prompt(400), 5), collector.sink());
  gate.reached.get_future().wait();
  engine.cancel(number);
  gate.open.set_value();
  EXPECT_EQ(collector.wait().reason, FinishReason::cancelled);
  EXPECT_EQ(model.step_count, 1);
  EXPECT_TRUE(collector.tokens().empty());
}

TEST(BatchEngine, AFailedStepBreaksTheEngineForGood) {
  FakeModel model(one_slot);
  Gate gate;
  model.before_step = [&](FakeModel& m) {
    gate();
    if (m.step_count == 3) throw std::runtime_error("disk on fire");
  };
  BatchEngine engine(model, options());
  Collector running, queued;
  engine.submit(greedy(some_prompt(5), 10), running.sink());
  engine.submit(greedy(some_prompt(5), 10), queued.sink());
  gate.reached.get_future().wait();
  gate.open.set_value();
  for (auto* collector : {&running, &queued}) {
    const Event last = collector->wait();
    EXPECT_EQ(last.reason, FinishReason::error);
    EXPECT_NE(last.error.find("disk on fire"), std::string::npos);
  }
  EXPECT_EQ(running.tokens().size(), 2u);
  const Status status = engine.status();
  EXPECT_TRUE(status.broken);
  EXPECT_FALSE(status.ready);
  EXPECT_EQ(status.reason, "disk on fire");
  EXPECT_EQ(status.running + status.waiting, 0);
  EXPECT_EQ(refusal(engine, greedy({1}, 1)), ErrorCode::resource);
  EXPECT_EQ(model.step_count, 3);
}

TEST(BatchEngine, NotANumberAndForeignExceptionsBreakItToo) {
  for (const bool foreign : {false, true}) {
    FakeModel model(one_slot);
    model.change_row = [](std::vector<float>& logits, int64_t) { logits[3] = std::nanf(""); };
    if (foreign) model.before_step = [](FakeModel&) { throw 7; };
    BatchEngine engine(model, options());
    Collector collector;
    engine.submit(greedy({1}, 5), collector.sink());
    EXPECT_EQ(collector.wait().reason, FinishReason::error);
    EXPECT_TRUE(engine.status().broken);
  }
}

TEST(BatchEngine, AThrowingReceiverLosesOnlyItsOwnRequest) {
  FakeModel model(one_slot);
  BatchEngine engine(model, options());
  engine.submit(greedy(some_prompt(5), 500), [](const Event&) { throw std::runtime_error("gone"); });
  Collector collector;
  engine.submit(greedy(some_prompt(6), 4), collector.sink());
  EXPECT_EQ(collector.wait().reason, FinishReason::length);
  EXPECT_LT(engine.status().steps, 10);
  EXPECT_TRUE(engine.status().ready);
}

TEST(BatchEngine, ReceiversMaySubmitAndCancel) {
  FakeModel model(one_slot);
  BatchEngine engine(model, options());
  Collector second;
  std::atomic<uint64_t> first{0};
  Collector collector;
  auto sink = collector.sink();
  first = engine.submit(greedy(some_prompt(5), 500), [&](const Event& e) {
    sink(e);
    if (e.kind != Event::Kind::token || collector.tokens().size() != 3) return;
    while (first == 0) std::this_thread::yield();
    engine.cancel(first);
    engine.submit(greedy(some_prompt(6), 2), second.sink());
  });
  EXPECT_EQ(collector.wait().reason, FinishReason::cancelled);
  EXPECT_EQ(collector.tokens().size(), 3u);
  EXPECT_EQ(second.wait().reason, FinishReason::length);
}

TEST(BatchEngine, DestructionCancelsWhatIsLeft) {
  FakeModel model(one_slot);
  model.before_step = [](FakeModel&) { std::this_thread::sleep_for(std::chrono::milliseconds(1)); };
  Collector running, queued;
  {
    BatchEngine engine(model, options(8, 100000));
    engine.submit(greedy(some_prompt(5), 90000), running.sink());
    engine.submit(greedy(some_prompt(5), 90000), queued.sink());
    running.wait_for_tokens(1);
  }
  EXPECT_EQ(running.wait().reason, FinishReason::cancelled);
  EXPECT_EQ(queued.wait().reason, FinishReason::cancelled);
}

TEST(BatchEngine, IdleCostsNoTime) {
  FakeModel model(one_slot);
  BatchEngine engine(model, options());
  Collector collector;
  engine.submit(greedy({1}, 2), collector.sink());
  collector.wait();
  const std::clock_t before = std::clock();  // of the whole process
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_LT(static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC, 0.05);
}

TEST(BatchEngine, ManyThreadsSubmitAndCancelAtRandom) {
  FakeModel model(one_slot);
  BatchEngine engine(model, options(16));
  std::atomic<int> complete{0}, cancelled{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t)
    threads.emplace_back([&, t] {
      std::mt19937 random(static_cast<uint32_t>(t));
      for (int i = 0; i < 40; ++i) {
        Collector collector;
        const auto prompt = some_prompt(1 + static_cast<int>(random() % 40));
        const auto count = 1 + static_cast<int64_t>(random() % 30);
        const uint64_t number = engine.submit(greedy(prompt, count), collector.sink());
        if (random() % 2 == 0) {
          std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
          engine.cancel(number);
        }
        if (random() % 8 == 0) (void)engine.status();
        const Event last = collector.wait();
        const auto tokens = collector.tokens();
        const auto reply = expected_reply(prompt, static_cast<size_t>(count));
        // A cancelled reply is a prefix of the whole one.
        EXPECT_TRUE(std::equal(tokens.begin(), tokens.end(), reply.begin()));
        if (last.reason == FinishReason::length) {
          ++complete;
          EXPECT_EQ(tokens.size(), reply.size());
        } else {
          ++cancelled;
          EXPECT_EQ(last.reason, FinishReason::cancelled);
        }
        EXPECT_FALSE(collector.late());
      }
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(complete + cancelled, 320);
  EXPECT_GT(complete, 100);
  const Status status = engine.status();
  EXPECT_TRUE(status.ready);
  EXPECT_EQ(status.running + status.waiting, 0);
}

}  // namespace
}  // namespace tandem::engine::batch_engine_test
