// leaves.cu: exact, so every bit is compared; rows that are not there stay as they were.
#include "base/error.h"
#include "device/kernel_dimensions.h"
#include "device/test_gpu.h"
#include "ops/leaves/leaves_cuda.h"
#include "ops/test_bf16.h"
#include "ops/test_random.h"

namespace tandem::ops::leaves_gpu_test {
namespace {

using device::from_gpu;
using device::on_gpu;

constexpr int32_t rows = 3, max_rows = 5;
constexpr uint16_t untouched = 0x7fff;

TEST(LeavesGpu, SumsAreRoundedOnceAndAMissingLeafIsSkipped) {
  const CudaLeaves leaves(device::gpu_under_test(), device::model_defines({}));
  constexpr int32_t width = 1100;
  std::vector<float> values[2];
  for (int leaf = 0; leaf < 2; ++leaf)
    values[leaf] = test::Random(static_cast<uint64_t>(leaf) + 1).normals(max_rows * width, 2.0f);
  std::fill_n(values[1].begin() + width, width, -0.0f);  // a row that leaf 1 has nothing for
  values[0][width] = -0.0f;                              // … where leaf 0 is −0: so is the sum
  const auto first = on_gpu(values[0]), second = on_gpu(values[1]), count = on_gpu(std::vector<int32_t>{rows});
  for (const int missing : {-1, 0, 1}) {
    const auto out = on_gpu(std::vector<uint16_t>(max_rows * width, untouched));
    AddLeavesArgs args{};
    args.rows = count.as<int32_t>();
    args.part[0] = missing == 0 ? nullptr : first.as<float>();
    args.part[1] = missing == 1 ? nullptr : second.as<float>();
    args.y = out.as<device::bf16>();
    args.width = width;
    leaves.add(args, max_rows);
    const std::vector<uint16_t> got = from_gpu<uint16_t>(out.data(), max_rows * width);
    for (size_t i = 0; i < got.size(); ++i) {
      const float sum = missing == 0 ? values[1][i] : missing == 1 ? values[0][i] : values[0][i] + values[1][i];
      ASSERT_EQ(got[i], i < size_t{rows} * width ? bf16_bits(sum) : untouched) << missing << ", " << i;
    }
  }
}

TEST(LeavesGpu, EmbeddingRowsComeFromTheirOwner) {
  const CudaLeaves leaves(device::gpu_under_test(), device::model_defines({}));
  constexpr int32_t hidden = 24, copies = 2, stride = 56;
  const std::vector<uint16_t> parts[2] = {to_bf16(test::Random(1).normals(max_rows * hidden)),
                                          to_bf16(test::Random(2).normals(max_rows * hidden))};
  const std::vector<int32_t> tokens = {6, 7, 2, 9, 9};
  const auto first = on_gpu(parts[0]), second = on_gpu(parts[1]), ids = on_gpu(tokens),
             count = on_gpu(std::vector<int32_t>{rows}),
             out = on_gpu(std::vector<uint16_t>(max_rows * stride, untouched));
  leaves.join_embeddings({count.as<int32_t>(),
                          ids.as<int32_t>(),
                          {first.as<device::bf16>(), second.as<device::bf16>()},
                          7,
                          hidden,
                          copies,
                          out.as<device::bf16>(),
                          stride},
                         max_rows);
  std::vector<uint16_t> expected(max_rows * stride, untouched);
  for (int32_t row = 0; row < rows; ++row) {
    const std::vector<uint16_t>& part = parts[tokens[static_cast<size_t>(row)] < 7 ? 0 : 1];
    for (int32_t copy = 0; copy < copies; ++copy)
      std::copy_n(part.begin() + row * hidden, hidden, expected.begin() + row * stride + copy * hidden);
  }
  EXPECT_EQ(from_gpu<uint16_t>(out.data(), max_rows * stride), expected);
}

TEST(LeavesGpu, ColumnsLieSideBySide) {
  const CudaLeaves leaves(device::gpu_under_test(), device::model_defines({}));
  constexpr int32_t columns[2] = {1030, 1029}, all = columns[0] + columns[1];
  const std::vector<float> parts[2] = {test::Random(1).normals(max_rows * columns[0]),
                                       test::Random(2).normals(max_rows * columns[1])};
  const auto first = on_gpu(parts[0]), second = on_gpu(parts[1]), count = on_gpu(std::vector<int32_t>{rows}),
             out = on_gpu(std::vector<float>(max_rows * all, 7.0f));
  leaves.join_columns(
      {count.as<int32_t>(), {first.as<float>(), second.as<float>()}, {columns[0], columns[1]}, out.as<float>()},
      max_rows);
  std::vector<float> expected(max_rows * all, 7.0f);
  for (int32_t row = 0; row < rows; ++row) {
    std::copy_n(parts[0].begin() + row * columns[0], columns[0], expected.begin() + row * all);
    std::copy_n(parts[1].begin() + row * columns[1], columns[1], expected.begin() + row * all + columns[0]);
  }
  EXPECT_EQ(from_gpu<float>(out.data(), max_rows * all), expected);
}

TEST(LeavesGpu, RefusesWhatItCannotAdd) {
  const CudaLeaves leaves(device::gpu_under_test(), device::model_defines({}));
  AddLeavesArgs args{};
  args.width = 8;
  EXPECT_THROW(leaves.add(args, 1), Error) << "no leaf";
  const float value = 0.0f;  // never read
  args.part[0] = &value;
  args.width = 6;
  EXPECT_THROW(leaves.add(args, 1), Error);
  EXPECT_EQ(CudaLeaves::cost(3, 8).bytes, 3 * 8 * 10);
}

}  // namespace
}  // namespace tandem::ops::leaves_gpu_test
