// Waiting for a reply: hooks, cancellation and the engine's failure as seen by a command.
#include "engine/run_request.h"

#include <cmath>

#include "base/error.h"
#include "engine/batch_engine.h"
#include "engine/testing.h"

namespace tandem::engine::run_request_test {
namespace {

BatchEngineOptions options() {
  return {.scheduler = options_for({.records = 0}, 16, 100000), .watchdog_s = 0, .on_stuck = {}};
}

Request greedy(int64_t max_tokens) {
  Request request;
  request.prompt_ids = {1, 2, 3};
  request.sampling.temperature = 0;
  request.max_tokens = max_tokens;
  return request;
}

TEST(RunRequest, ReturnsTheReply) {
  FakeModel model;
  BatchEngine engine(model, options());
  std::vector<int32_t> seen;
  const Reply reply = run_request(engine, greedy(5),
                                  {.on_token =
                                       [&](int32_t id) {
                                         seen.push_back(id);
                                         return true;
                                       },
                                   .is_cancelled = {}});
  EXPECT_EQ(reply.reason, FinishReason::length);
  EXPECT_EQ(reply.ids.size(), 5u);
  EXPECT_EQ(reply.ids, seen);
  EXPECT_EQ(reply.ids[0], FakeModel::next({1, 2, 3}));
}

TEST(RunRequest, AHookEndsIt) {
  FakeModel model;
  BatchEngine engine(model, options());
  int count = 0;
  const Reply by_token =
      run_request(engine, greedy(90000), {.on_token = [&](int32_t) { return ++count < 3; }, .is_cancelled = {}});
  EXPECT_EQ(by_token.reason, FinishReason::cancelled);
  EXPECT_EQ(by_token.ids.size(), 3u);
  EXPECT_GT(by_token.timings.decode_ms, 0);

  model.before_step = [](FakeModel&) { std::this_thread::sleep_for(std::chrono::milliseconds(1)); };
  const Reply by_flag =
      run_request(engine, greedy(90000), {.on_token = {}, .is_cancelled = [&] { return model.step_count > 10; }});
  EXPECT_EQ(by_flag.reason, FinishReason::cancelled);
}

TEST(RunRequest, AThrowingHookCancelsAndThrows) {
  FakeModel model;
  BatchEngine engine(model, options());
  EXPECT_THROW(run_request(engine, greedy(90000),
                           {.on_token = [](int32_t) -> bool { throw std::runtime_error("x"); }, .is_cancelled = {}}),
               std::runtime_error);
  EXPECT_EQ(run_request(engine, greedy(2)).ids.size(), 2u);
  EXPECT_LT(engine.status().steps, 80000);
}

TEST(RunRequest, EngineFailureIsAnInternalError) {
  FakeModel model;
  model.before_step = [](FakeModel&) { throw std::runtime_error("no more"); };
  BatchEngine engine(model, options());
  try {
    run_request(engine, greedy(3));
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::internal);
    EXPECT_NE(std::string(e.what()).find("no more"), std::string::npos);
  }
  EXPECT_THROW(run_request(engine, greedy(3)), Error);
}

}  // namespace
}  // namespace tandem::engine::run_request_test
