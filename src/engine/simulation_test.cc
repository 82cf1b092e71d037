// Thousands of seeds of the simulation, and proof that it notices what it is there for.
#include "engine/simulation.h"

#include <cstdlib>

#include "base/log.h"

namespace tandem::engine::simulation_test {
namespace {

std::string replay_line(uint64_t seed) {
  return "replay: TANDEM_SIMULATION_SEED=" + std::to_string(seed) + " engine_test --gtest_filter=Simulation.OneSeed";
}

// TANDEM_SIMULATION_SEEDS: more of them, for a long run.
uint64_t seeds_to_run() {
  const char* more = std::getenv("TANDEM_SIMULATION_SEEDS");
  return more == nullptr ? 4000 : std::max<uint64_t>(4000, std::strtoull(more, nullptr, 10));
}

TEST(Simulation, EverythingHoldsForEverySeed) {
  set_log_level(LogLevel::error);
  SimulationResult sum;
  for (uint64_t seed = 1; seed <= seeds_to_run(); ++seed) {
    const SimulationResult result = simulate(seed);
    ASSERT_EQ(result.failure, "") << replay_line(seed);
    sum.requests += result.requests;
    sum.steps += result.steps;
    sum.preemptions += result.preemptions;
    sum.evictions += result.evictions;
    sum.cached_tokens += result.cached_tokens;
    sum.refused += result.refused;
    sum.head_only_steps += result.head_only_steps;
    sum.moves_only_steps += result.moves_only_steps;
    sum.cancelled += result.cancelled;
    sum.overdue += result.overdue;
    sum.failed += result.failed;
    sum.drafted += result.drafted;
    sum.accepted += result.accepted;
    sum.invalid_proposals += result.invalid_proposals;
    sum.longest_wait = std::max(sum.longest_wait, result.longest_wait);
  }
  // The stories hold what they are told for.
  EXPECT_GT(sum.requests, 20'000);
  EXPECT_GT(sum.preemptions, 500);
  EXPECT_GT(sum.evictions, 10'000);
  EXPECT_GT(sum.cached_tokens, 50'000);
  EXPECT_GT(sum.refused, 100);
  EXPECT_GT(sum.head_only_steps, 100);
  EXPECT_GT(sum.moves_only_steps, 1'000);
  EXPECT_GT(sum.cancelled, 500);
  EXPECT_GT(sum.overdue, 500);
  EXPECT_GT(sum.failed, 200);
  EXPECT_GT(sum.drafted, 100'000);
  EXPECT_GT(sum.accepted, 20'000);
  EXPECT_GT(sum.invalid_proposals, 500);
  RecordProperty("longest_wait_ms", std::to_string(sum.longest_wait.count() / 1'000'000));
  RecordProperty("steps", std::to_string(sum.steps));
}

TEST(Simulation, OneSeed) {
  const char* seed = std::getenv("TANDEM_SIMULATION_SEED");
  if (seed == nullptr) GTEST_SKIP() << "set TANDEM_SIMULATION_SEED to replay a story";
  set_log_level(LogLevel::info);
  EXPECT_EQ(simulate(std::strtoull(seed, nullptr, 10)).failure, "");
}

// Some seed of the first few hundred must fail under a spoiled step.
void expect_noticed(const char* what, const SpoilStep& spoil) {
  set_log_level(LogLevel::error);
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    if (!simulate(seed, spoil).failure.empty()) return;
  }
  ADD_FAILURE() << "not noticed: " << what;
}

TEST(Simulation, NoticesSpoiledSteps) {
  expect_noticed("a page copy is left out", [](forward::Step& step) { step.page_copies.clear(); });
  expect_noticed("a page copy is a row short", [](forward::Step& step) {
    for (auto& copy : step.page_copies) copy.rows = std::max(1, copy.rows - 1);
  });
  expect_noticed("a state is not kept", [](forward::Step& step) { step.keeps.clear(); });
  expect_noticed("a state is not restored", [](forward::Step& step) { step.restores.clear(); });
  expect_noticed("two streams' pages are mixed up", [](forward::Step& step) {
    if (step.segments.size() < 2) return;
    std::swap(step.page_tables[static_cast<size_t>(step.segments[0].page_table)],
              step.page_tables[static_cast<size_t>(step.segments[1].page_table)]);
  });
  expect_noticed("a row is another token", [](forward::Step& step) {
    if (!step.tokens.empty()) step.tokens[0] = (step.tokens[0] + 1) % FakeModel::vocabulary;
  });
}

}  // namespace
}  // namespace tandem::engine::simulation_test
