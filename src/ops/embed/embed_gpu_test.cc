// embed.cu: every row where it belongs, and nothing else written.
#include "base/error.h"
#include "device/kernel_dimensions.h"
#include "device/test_gpu.h"
#include "ops/embed/embed_cuda.h"
#include "ops/test_random.h"

namespace tandem::ops::embed_gpu_test {
namespace {

using device::from_gpu;
using device::on_gpu;

constexpr uint16_t poison = 0x7fff;

size_t index(int64_t i) { return static_cast<size_t>(i); }

std::vector<uint16_t> random_bits(uint64_t seed, int64_t count) {
  test::Random random(seed);
  std::vector<uint16_t> out(index(count));
  for (uint16_t& x : out) x = static_cast<uint16_t>(random.below(0x7f00));
  return out;
}

const CudaEmbed& embed_on_gpu() {
  static const CudaEmbed embed(device::gpu_under_test(), device::model_defines({}));
  return embed;
}

TEST(EmbedGpu, OwnTokensIntoEveryStream) {
  const int64_t hidden = 2056, copies = 4, stride = copies * hidden + 8;  // more than one turn of a block
  const std::vector<int32_t> tokens = {12, 10, 14, 9, 15, 11, 13};
  const auto table = random_bits(1, 5 * hidden);
  const auto gpu_table = on_gpu(table), gpu_tokens = on_gpu(tokens), rows = on_gpu(std::vector<int32_t>{6});
  const auto out = on_gpu(std::vector<uint16_t>(index(7 * stride), poison));
  embed_on_gpu().embed({rows.as<int32_t>(), gpu_tokens.as<int32_t>(), gpu_table.as<device::bf16>(), 10, 5,
                        static_cast<int32_t>(hidden), static_cast<int32_t>(copies), out.as<device::bf16>(), stride},
                       7);
  const auto got = from_gpu<uint16_t>(out.data(), 7 * stride);
  for (int64_t i = 0; i < std::ssize(got); ++i) {
    const int64_t row = i / stride, column = i % stride, token = tokens[index(row)] - 10;
    const bool written = row < 6 && token >= 0 && token < 5 && column < copies * hidden;
    ASSERT_EQ(got[index(i)], written ? table[index(token * hidden + column % hidden)] : poison) << row << " " << column;
  }
}

TEST(EmbedGpu, RefusesRowsThatAreNotWholePieces) {
  EmbedArgs args{};
  args.hidden = 12;
  EXPECT_THROW(embed_on_gpu().embed(args, 1), Error);
  EXPECT_EQ(CudaEmbed::cost(3, 64, 4).bytes, 3 * 64 * 2 * 5);
}

}  // namespace
}  // namespace tandem::ops::embed_gpu_test
