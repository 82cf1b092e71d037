// Requests whose own demands leave no token: they end with an error, and nobody else notices.
#include <stdexcept>

#include "engine/scheduler_fixture.h"

namespace tandem::engine::scheduler_rules_test {
namespace {

Request request_of(std::vector<int32_t> prompt, int64_t max_tokens) {
  Request request;
  request.prompt_ids = std::move(prompt);
  request.max_tokens = max_tokens;
  request.sampling.temperature = 0;
  return request;
}

// Allows everything until `tokens` have come, then nothing, or throws.
class Ending : public TokenRule {
 public:
  Ending(int tokens, bool throws) : left_(tokens), throws_(throws) {}
  void mask(std::span<uint32_t> bits) override {
    if (left_ > 0) return;
    if (throws_) throw std::runtime_error("no such state");
    std::fill(bits.begin(), bits.end(), 0u);
  }
  void accept(int32_t) override { --left_; }

 private:
  int left_;
  bool throws_;
};

void expect_only_this_one_fails(const Request& request, size_t tokens, const std::string& reason) {
  SteppedScheduler stepped({});
  auto& bad = stepped.submit(request);
  auto& good = stepped.submit(request_of({4, 5, 6}, 9));
  stepped.run_until_idle();
  EXPECT_EQ(bad.collector.wait().reason, FinishReason::error);
  EXPECT_NE(bad.collector.wait().error.find(reason), std::string::npos) << bad.collector.wait().error;
  EXPECT_EQ(bad.collector.tokens().size(), tokens);
  EXPECT_EQ(good.collector.wait().reason, FinishReason::length);
  EXPECT_EQ(good.collector.tokens().size(), 9u);
}

TEST(SchedulerRules, AMaskThatLeavesNothingEndsItsRequestOnly) {
  for (const int tokens : {0, 3}) {
    for (const bool throws : {false, true}) {
      Request request = request_of({1, 2, 3}, 9);
      request.rule = std::make_shared<Ending>(tokens, throws);
      expect_only_this_one_fails(request, static_cast<size_t>(tokens), throws ? "no such state" : "leave no token");
    }
  }
}

// One token is allowed, and min_tokens forbids it.
class Only : public TokenRule {
 public:
  explicit Only(int32_t token) : token_(static_cast<size_t>(token)) {}
  void mask(std::span<uint32_t> bits) override {
    for (size_t id = 0; id < bits.size() * 32; ++id)
      if (id != token_) bits[id / 32] &= ~(1u << id % 32);
  }
  void accept(int32_t) override {}

 private:
  size_t token_;
};

TEST(SchedulerRules, AStopIdThatIsAllThatIsAllowed) {
  Request request = request_of({1, 2, 3}, 9);
  request.rule = std::make_shared<Only>(7);
  request.stop_token_ids = {7};
  request.min_tokens = 2;
  expect_only_this_one_fails(request, 0, "leave no token");
  request.min_tokens = 0;
  SteppedScheduler stepped({});
  EXPECT_EQ(stepped.run(request).collector.wait().stop_token, 7);
}

TEST(SchedulerRules, PenaltiesThatWouldMakeLogitsInfiniteAreRefused) {
  SteppedScheduler stepped({});
  Request request = request_of({1}, 1);
  for (const double penalty : {1e-300, 1e-7, 2e6}) {
    request.sampling.repetition_penalty = penalty;
    EXPECT_THROW(stepped.submit(request), Error) << penalty;
  }
  request.sampling.repetition_penalty = 1e-6;
  EXPECT_EQ(stepped.run(request).collector.wait().reason, FinishReason::length);
}

class Complete : public TokenRule {
 public:
  explicit Complete(int64_t tokens) : left_(tokens) {}
  void mask(std::span<uint32_t>) override {}
  bool masks() const override { return false; }
  void accept(int32_t) override { --left_; }
  bool is_finished() const override { return left_ <= 0; }

 private:
  int64_t left_;
};

TEST(SchedulerRules, ACompleteReplyEndsWithoutAStopToken) {
  Request request = request_of({1, 2, 3}, 9);
  request.min_tokens = 9;  // completeness counts more
  request.rule = std::make_shared<Complete>(4);
  SteppedScheduler stepped({});
  auto& reply = stepped.run(request);
  EXPECT_EQ(reply.collector.wait().reason, FinishReason::stop);
  EXPECT_EQ(reply.collector.wait().stop_token, -1);
  EXPECT_EQ(reply.collector.tokens().size(), 4u);
}

TEST(SchedulerRules, ALoopEndsWithItsOwnReason) {
  Request request = request_of({1, 2, 3}, 50);
  request.rule = std::make_shared<Only>(7);
  request.repetition = {.max_size = 4, .min_size = 2, .min_count = 3};
  SteppedScheduler stepped({});
  auto& reply = stepped.run(request);
  EXPECT_EQ(reply.collector.wait().reason, FinishReason::repetition);
  EXPECT_EQ(reply.collector.tokens(), std::vector<int32_t>(6, 7)) << "three times two tokens";
  for (const RepetitionLimit& limit : {RepetitionLimit{.max_size = -1, .min_size = 1, .min_count = 2},
                                       RepetitionLimit{.max_size = 2, .min_size = 3, .min_count = 2},
                                       RepetitionLimit{.max_size = 2, .min_size = 1, .min_count = 1}}) {
    request.repetition = limit;
    EXPECT_THROW(stepped.submit(request), Error);
  }
}

}  // namespace
}  // namespace tandem::engine::scheduler_rules_test
