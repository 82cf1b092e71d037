// What a floor counts, against numbers written out for the bundled model.
#include "forward/cost.h"

#include <gtest/gtest.h>

#include "forward/test_models.h"

namespace tandem::forward::cost_test {
namespace {

constexpr int64_t position = 99;  // fewer tokens than index_topk: a row attends to all of them

Cost cost_of(int64_t rows, int64_t streams) {
  const Loaded& nano = loaded("nano");
  return step_cost(nano.shape, nano.weights, position, rows, rows, streams);
}

// models/nano/config.json: 6 KDA layers of 2 heads of 128 and a convolution of 4, 2 DSA layers with latents of 512.
constexpr int64_t kda_layers = 6, width = 2 * 128, dsa_layers = 2, latent = 512;
// fp32: the state, k, G and δ of the 7 rows that a row has before it in its block of 16 on average, and the three raw
// rows before it of q, k and v.
constexpr int64_t kda_bytes = kda_layers * 4 * (width * 128 + 3 * 7 * width + 3 * 3 * width);

TEST(Cost, AStreamReadsItsStatesAndLatentRows) {
  EXPECT_EQ(cost_of(1, 1).state_bytes, kda_bytes + dsa_layers * 4 * latent * (position + 1));
}

// Eight rows of one stream share its states; latent rows are read by each.
TEST(Cost, RowsOfOneStreamShareItsStates) {
  int64_t latents = 0;
  for (int64_t t = position; t < position + 8; ++t) latents += dsa_layers * 4 * latent * (t + 1);
  EXPECT_EQ(cost_of(8, 1).state_bytes, kda_bytes + latents);
}

// Eight streams share the weights alone.
TEST(Cost, StreamsShareWeightsAlone) {
  const Cost one = cost_of(1, 1), eight = cost_of(1, 8);
  EXPECT_EQ(eight.state_bytes, 8 * one.state_bytes);
  EXPECT_EQ(eight.multiply_adds, 8 * one.multiply_adds);
  EXPECT_EQ(eight.weight_bytes, cost_of(8, 1).weight_bytes);
  // All 8 experts of the 7 sparse layers instead of 2: gate, up and down of 128 x 256 in bf16.
  EXPECT_EQ(eight.weight_bytes - one.weight_bytes, 7 * (8 - 2) * 3 * 128 * 256 * 2);
}

}  // namespace
}  // namespace tandem::forward::cost_test
