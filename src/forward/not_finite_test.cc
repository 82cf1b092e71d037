// Where a NaN is said to be.
#include "forward/not_finite.h"

#include <limits>

namespace tandem::forward::not_finite_test {
namespace {

constexpr float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();

TEST(NotFinite, Counts) {
  EXPECT_EQ(count_not_finite(std::vector<float>{0, -1e38f, nan, infinity, -infinity}), 3);
  EXPECT_EQ(count_not_finite({}), 0);
}

TEST(NotFinite, StatesAreNamedByTheModelsLayer) {
  model::Shape shape;
  using Kind = model::AttentionKind;
  shape.layer_types = {Kind::kda, Kind::dsa, Kind::kda, Kind::kda};
  EXPECT_EQ(not_finite_state(shape, 0, 1, 3, 64), "layer 0, KDA state of slot 1: 3 of 64 values");
  EXPECT_EQ(not_finite_state(shape, 1, 1, 3, 64), "layer 2, KDA state of slot 1: 3 of 64 values");
}

TEST(NotFinite, RowsAreNamedByTheirStream) {
  Step step;
  step.segments.resize(2);
  step.segments[0] = {.slot = 4, .first_row = 0, .rows = 1, .position = 7};
  step.segments[1] = {.slot = 2, .first_row = 1, .rows = 2, .position = 30};
  std::vector<float> hidden(6, 1.0f);
  EXPECT_EQ(not_finite_hidden(step, hidden, 2), "");
  hidden[4] = nan;
  EXPECT_EQ(not_finite_hidden(step, hidden, 2), "final hidden row 2 (slot 2, position 31): 1 values");
}

}  // namespace
}  // namespace tandem::forward::not_finite_test
