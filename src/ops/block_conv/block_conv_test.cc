// The two-tap convolution against a slow transcription of its formula.
#include "ops/block_conv/block_conv.h"

#include "ops/test_random.h"

namespace tandem::ops::block_conv_test {
namespace {

struct Example {
  int64_t blocks = 3, block_rows = 4, channels = 12, group_size = 3, delta_stride = 19;
  int64_t rows() const { return blocks * block_rows; }
  int64_t groups() const { return channels / group_size; }
  std::vector<float> base, delta, in;

  explicit Example(uint64_t seed) {
    test::Random random(seed);
    base = random.normals(2 * channels);
    delta = random.normals(rows() * delta_stride);
    in = random.normals(rows() * channels);
  }
  std::vector<float> run(int threads, bool accumulate, const std::vector<float>& before) const {
    std::vector<float> out = before;
    device::Threads pool(threads);
    BlockConv conv;
    conv.rows = rows();
    conv.block_rows = block_rows;
    conv.channels = channels;
    conv.group_size = group_size;
    conv.base = base.data();
    conv.delta = delta.data();
    conv.delta_stride = delta_stride;
    conv.in = in.data();
    conv.out = out.data();
    conv.accumulate = accumulate;
    block_conv(pool, conv);
    return out;
  }
};

TEST(BlockConv, Formula) {
  const Example e(3);
  const auto value = [](const std::vector<float>& v, int64_t i) {
    return static_cast<double>(v[static_cast<size_t>(i)]);
  };
  std::vector<double> expected;
  for (int64_t row = 0; row < e.rows(); ++row) {
    for (int64_t c = 0; c < e.channels; ++c) {
      const int64_t g = c / e.group_size, delta = row * e.delta_stride;
      const double here = (value(e.base, c) + value(e.delta, delta + g)) * value(e.in, row * e.channels + c);
      const double tap = value(e.base, e.channels + c) + value(e.delta, delta + e.groups() + g);
      const double before = row % e.block_rows == 0 ? 0.0 : value(e.in, (row - 1) * e.channels + c);
      expected.push_back(here + tap * before);
    }
  }
  const std::vector<float> plain = e.run(2, false, test::unwritten(e.rows() * e.channels));
  EXPECT_TRUE(test::close(plain, expected, 1e-6));
  EXPECT_TRUE(test::same_bits(plain, e.run(1, false, test::unwritten(e.rows() * e.channels))));
  const std::vector<float> residual = test::Random(4).normals(e.rows() * e.channels);
  for (size_t i = 0; i < expected.size(); ++i) expected[i] += residual[i];
  EXPECT_TRUE(test::close(e.run(2, true, residual), expected, 1e-6));
}

TEST(BlockConv, IdentityParametersChangeNothing) {
  Example e(5);
  std::fill(e.base.begin(), e.base.begin() + e.channels, 1.0f);
  std::fill(e.base.begin() + e.channels, e.base.end(), 0.0f);
  std::fill(e.delta.begin(), e.delta.end(), 0.0f);
  EXPECT_TRUE(test::same_bits(e.run(1, false, test::unwritten(e.rows() * e.channels)), e.in));
}

// A block's rows are the same alone and among others.
TEST(BlockConv, BlocksDoNotSeeEachOther) {
  Example e(6);
  const std::vector<float> all = e.run(1, false, test::unwritten(e.rows() * e.channels));
  for (int64_t i = 0; i < e.block_rows * e.channels; ++i) e.in[static_cast<size_t>(i)] = test::not_a_number;
  const std::vector<float> poisoned = e.run(1, false, test::unwritten(e.rows() * e.channels));
  const int64_t first = e.block_rows * e.channels;
  EXPECT_TRUE(test::same_bits(all.data() + first, poisoned.data() + first, (e.blocks - 1) * first));
}

}  // namespace
}  // namespace tandem::ops::block_conv_test
