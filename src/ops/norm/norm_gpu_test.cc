// norm.cu against norm.h's fp32 arithmetic, rounded once.
#include <cmath>

#include "device/kernel_dimensions.h"
#include "device/test_gpu.h"
#include "ops/norm/norm.h"
#include "ops/norm/norm_cuda.h"
#include "ops/test_bf16.h"
#include "ops/test_random.h"

namespace tandem::ops::norm_gpu_test {
namespace {

using device::from_gpu;
using device::on_gpu;

TEST(NormGpu, RmsAndLayerNorms) {
  device::Gpu& gpu = device::gpu_under_test();
  const CudaNorm norm(gpu, device::model_defines({}));
  for (const int32_t width : {8, 96, 128, 512, 4096}) {
    constexpr int32_t rows = 3, max_rows = 5;
    const std::vector<float> x = as_bf16_values(test::Random(1).normals(max_rows * width, 2.0f));
    const std::vector<float> weight = test::Random(2).normals(width), bias = test::Random(3).normals(width);
    const auto input = on_gpu(to_bf16(x)), out = on_gpu(std::vector<uint16_t>(2 * max_rows * width, 0x7fff));
    const auto gpu_weight = on_gpu(weight), gpu_bias = on_gpu(bias), count = on_gpu(std::vector<int32_t>{rows});
    auto* y = out.as<device::bf16>();
    const NormPart parts[] = {
        {input.as<device::bf16>(), y, gpu_weight.as<float>(), nullptr, width, width, width, 1e-5f},
        {input.as<device::bf16>(), y + max_rows * width, gpu_weight.as<float>(), gpu_bias.as<float>(), width, width,
         width, 1e-6f}};
    norm.run(parts, count.as<int32_t>(), max_rows);
    const std::vector<uint16_t> got = from_gpu<uint16_t>(y, 2 * max_rows * width);
    std::vector<float> expected(static_cast<size_t>(width));
    for (int32_t row = 0; row < rows; ++row) {
      rms_norm(x.data() + row * width, weight.data(), 1e-5f, width, expected.data());
      EXPECT_LE(bf16_distance(&got[static_cast<size_t>(row * width)], expected), 1) << width;
      layer_norm(x.data() + row * width, weight.data(), bias.data(), 1e-6f, width, expected.data());
      EXPECT_LE(bf16_distance(&got[static_cast<size_t>((max_rows + row) * width)], expected, 1e-6f), 1) << width;
    }
    for (int32_t i = rows * width; i < max_rows * width; ++i)
      ASSERT_EQ(got[static_cast<size_t>(i)], 0x7fff) << "a row that is not there";
  }
}

TEST(NormGpu, CostCountsRowsAndParameters) {
  const float parameter = 0.0f;  // never read
  const NormPart parts[] = {{nullptr, nullptr, &parameter, nullptr, 8, 8, 8, 1e-5f},
                            {nullptr, nullptr, &parameter, &parameter, 8, 8, 8, 1e-5f}};
  EXPECT_EQ(CudaNorm::cost(parts, 3).bytes, 2 * 3 * 8 * (2 + 2) + 3 * 8 * 4);
}

}  // namespace
}  // namespace tandem::ops::norm_gpu_test
