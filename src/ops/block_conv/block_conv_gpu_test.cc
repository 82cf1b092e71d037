// block_conv.cu against block_conv.h on the same bf16 values, rounded once.
#include "device/kernel_dimensions.h"
#include "device/test_gpu.h"
#include "ops/block_conv/block_conv.h"
#include "ops/block_conv/block_conv_cuda.h"
#include "ops/test_bf16.h"
#include "ops/test_random.h"

namespace tandem::ops::block_conv_gpu_test {
namespace {

using device::bf16;
using device::from_gpu;
using device::on_gpu;

// At most 1 unit in the last place, and differences below 1e-6 where the two taps cancel: the second product is added
// by an fma.
TEST(BlockConvGpu, AgainstTheCpu) {
  device::Threads one(1);
  const CudaBlockConv conv_on_gpu(device::gpu_under_test(), device::model_defines({}));
  test::Random random(1);
  for (const auto& [channels, group_size] : {std::pair<int32_t, int32_t>{6, 2}, {64, 16}, {1040, 16}}) {
    for (const bool accumulate : {false, true}) {
      constexpr int32_t blocks = 2, block_rows = 4, rows = blocks * block_rows, more = block_rows;
      const int32_t groups = channels / group_size, delta_stride = 4 * groups;
      const std::vector<float> in = as_bf16_values(random.normals((rows + more) * channels)),
                               before = as_bf16_values(random.normals((rows + more) * channels)),
                               delta = as_bf16_values(random.normals((rows + more) * delta_stride)),
                               base = random.normals(2 * channels);
      std::vector<float> expected = before;
      block_conv(one, {rows, block_rows, channels, group_size, base.data(), delta.data() + 2 * groups, delta_stride,
                       in.data(), expected.data(), accumulate, Compute::bf16});

      const auto gpu_in = on_gpu(to_bf16(in)), gpu_delta = on_gpu(to_bf16(delta)), out = on_gpu(to_bf16(before));
      const auto gpu_base = on_gpu(base);
      const auto count = on_gpu(std::vector<int32_t>{blocks});
      conv_on_gpu.run(
          {count.as<int32_t>(), block_rows, channels, group_size, gpu_base.as<float>(),
           gpu_delta.as<bf16>() + 2 * groups, delta_stride, gpu_in.as<bf16>(), out.as<bf16>(), accumulate ? 1 : 0},
          blocks + 1);
      const auto got = from_gpu<uint16_t>(out.data(), (rows + more) * channels);
      expected.resize(static_cast<size_t>(rows) * channels);
      EXPECT_LE(bf16_distance(got.data(), expected, 1e-6f), 1) << channels;
      for (size_t i = static_cast<size_t>(rows) * channels; i < got.size(); ++i)
        ASSERT_EQ(got[i], bf16_bits(before[i])) << "a block that is not there";
    }
  }
}

}  // namespace
}  // namespace tandem::ops::block_conv_gpu_test
