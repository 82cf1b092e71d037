// kda_output.cu against kda_output_cpu.cc on the same bf16 rows, its result rounded once.
#include <algorithm>

#include "device/kernel_dimensions.h"
#include "device/test_gpu.h"
#include "ops/kda_conv/kda_conv_cuda.h"
#include "ops/kda_conv/kda_output.h"
#include "ops/test_bf16.h"
#include "ops/test_random.h"

namespace tandem::ops::kda_output_gpu_test {
namespace {

using device::bf16;
using device::from_gpu;
using device::on_gpu;

TEST(KdaOutputGpu, IsTheCpuOperation) {
  for (const auto& [heads, dim] : {std::pair<int64_t, int64_t>{11, 32}, {3, 128}, {64, 128}}) {
    constexpr int64_t rows = 5, max_rows = 7;
    const int64_t width = heads * dim, gate_stride = width + 16;
    const CudaKdaOutput output(
        device::gpu_under_test(),
        device::model_defines(dim == 128 ? device::KernelDimensions{} : device::KernelDimensions{32, 72, 32, 4, 128}),
        dim);
    test::Random random(static_cast<uint64_t>(dim));
    const std::vector<float> o = as_bf16_values(random.normals(max_rows * width, 0.1f)),
                             gate = as_bf16_values(random.normals(max_rows * gate_stride, 4.0f)),
                             weight = random.normals(dim);
    const auto gpu_o = on_gpu(to_bf16(o)), gpu_gate = on_gpu(to_bf16(gate)), gpu_weight = on_gpu(weight),
               count = on_gpu(std::vector<int32_t>{rows});
    output.run({count.as<int32_t>(), gpu_o.as<bf16>(), gpu_gate.as<bf16>(), gate_stride, gpu_weight.as<float>(), 1e-5f,
                static_cast<int32_t>(heads), gpu_o.as<bf16>()},
               max_rows);
    std::vector<float> expected = o, dense_gate;
    for (int64_t row = 0; row < rows; ++row)
      dense_gate.insert(dense_gate.end(), gate.begin() + row * gate_stride, gate.begin() + row * gate_stride + width);
    device::Threads threads(1);
    kda_output(threads, {heads, dim, rows, expected.data(), dense_gate.data(), weight.data(), 1e-5f});
    const std::vector<uint16_t> got = from_gpu<uint16_t>(gpu_o.data(), max_rows * width);
    expected.resize(static_cast<size_t>(rows * width));
    EXPECT_LE(bf16_distance(got.data(), expected), 1) << dim;  // fp32 sums in another order, then a rounding
    EXPECT_EQ(from_bf16({got.begin() + rows * width, got.end()}),
              std::vector<float>(o.begin() + rows * width, o.end()));
  }
}

}  // namespace
}  // namespace tandem::ops::kda_output_gpu_test
