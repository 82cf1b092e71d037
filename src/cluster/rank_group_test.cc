// The group around the ranks: what it plans and exchanges, and what happens when a rank fails.
#include "cluster/rank_group.h"

#include "base/error.h"
#include "cluster/test_streams.h"
#include "forward/cost.h"
#include "forward/probe.h"

namespace tandem::cluster::rank_group_test {
namespace {

// What the ranks hold adds up to what one rank holds, and the pages are shared or not.
TEST(RankGroup, PlannedBytes) {
  const model::Shape& shape = loaded("tinyA").shape;
  const Capacity small{.pages = 20, .max_rows = 16}, large{.pages = 40, .max_rows = 16};
  const auto pages = [&](GroupSize size) {
    return RankGroup::planned_bytes(shape, size, large) - RankGroup::planned_bytes(shape, size, small);
  };
  EXPECT_EQ(RankGroup::planned_bytes(shape, one_rank, small), forward::TextModel::planned_bytes(shape, small));
  EXPECT_GE(pages(two_ranks), 2 * pages(one_rank)) << "every rank has every page";
  const Capacity kept{.pages = 20, .max_rows = 16, .kept_states = 1};
  const int64_t record =
      RankGroup::planned_bytes(shape, two_ranks, kept) - RankGroup::planned_bytes(shape, two_ranks, small);
  EXPECT_LT(record, 2 * forward::TextModel::kept_state_bytes(shape)) << "the heads of a record are shared";
  EXPECT_GT(record, forward::TextModel::kept_state_bytes(shape)) << "its rings and head row are not";
}

// What a step exchanges is known from its shape (forward/cost.h).
class Exchanges : public ::testing::TestWithParam<std::pair<std::string, std::string>> {};

TEST_P(Exchanges, AreWhatTheShapeSays) {
  const auto& [model, name] = GetParam();
  const Ids ids = ids_of(model, name);
  for (const GroupSize size : {one_rank, two_ranks, shared_pages}) {
    Streams streams(model, size);
    forward::ExchangeCost sum;
    int64_t position = 0;
    for (const int64_t rows : {8, 1, 3, 7, 20}) {  // tinyA's first steps see fewer pools than are selected
      Trace trace;
      streams.run(0, std::span(ids).subspan(static_cast<size_t>(position), static_cast<size_t>(rows)), position, trace);
      const forward::ExchangeCost step = forward::exchange_cost(
          streams.shape(), {0, size.tensor_parallel_size, size.decode_context_parallel_size}, position, rows, rows);
      sum.exchanges += step.exchanges;
      sum.bytes += step.bytes;
      EXPECT_EQ(streams.group().exchanges(), sum.exchanges) << name_of(size) << " at " << position;
      EXPECT_EQ(streams.group().exchanged_bytes(), sum.bytes) << name_of(size) << " at " << position;
      position += rows;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Exchanges,
                         ::testing::Values(std::pair{"tinyA", "case_T46"}, std::pair{"tinyB", "case_T66"}));

TEST(RankGroup, BytesOfAStepByHand) {
  // Two of [rows, hidden] for each of 8 layers and one for the embedding; the first half of 203 logits.
  const forward::ExchangeCost two = forward::exchange_cost(loaded("tinyA").shape, {0, 2, 1}, 0, 12, 12);
  EXPECT_EQ(two.exchanges, 2 * 8 + 2);
  EXPECT_EQ(two.bytes, 4 * 12 * (17 * 96 + 102));
}

TEST(RankGroup, SizesThatThereAreNot) {
  const Loaded& model = loaded("tinyA");
  for (const GroupSize size : {GroupSize{3, 1}, {0, 1}, {1, 2}, {2, 3}, {-1, 1}}) {
    try {
      const RankGroup group(model.shape, model.weights, size, {}, 1);
      ADD_FAILURE() << name_of(size);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::usage) << error.what();
    }
  }
}

TEST(RankGroup, BytesThatAreNoStepBreakTheGroup) {
  Streams streams("tinyA", two_ranks);
  const std::vector<std::byte> bytes(20);
  EXPECT_THROW(streams.group().run(bytes), Error);
  Step step;
  streams.add(step, 0, Ids{1, 2, 3}, 0);
  try {
    streams.group().run(step);
    ADD_FAILURE() << "the group is broken";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::internal);
  }
}

// A probe that throws makes rank 0 fail in the middle of a layer; rank 1 waits for it at the next exchange.
class Thrower final : public forward::Probe {
 public:
  void streams(int64_t layer, int64_t, const float*) override {
    if (layer == 3) throw Error(ErrorCode::does_not_fit, "layer 3", "a fault");
  }
};

TEST(RankGroup, ARankThatFailsIsReportedAndNobodyHangs) {
  for (const GroupSize size : {one_rank, two_ranks, shared_pages}) {
    Streams streams("tinyA", size);
    Step step;
    streams.add(step, 0, Ids{1, 2, 3}, 0);
    streams.group().run(step);
    Thrower thrower;
    try {
      streams.group().run(step, &thrower);
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::does_not_fit) << "the first error, not the other rank's";
    }
    EXPECT_THROW(streams.group().run(step), Error) << "broken for good";
  }
}

}  // namespace
}  // namespace tandem::cluster::rank_group_test
