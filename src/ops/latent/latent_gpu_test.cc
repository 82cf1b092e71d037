// latent.cu against the CPU's records: equal bytes, and nothing written anywhere else.
#include <cmath>
#include <string>

#include "device/kernel_dimensions.h"
#include "ops/latent/latent_cuda.h"
#include "ops/latent/test_gpu_pages.h"
#include "ops/test_bf16.h"
#include "ops/test_random.h"

namespace tandem::ops::latent_gpu_test {
namespace {

using device::on_gpu;
using quant::RecordKind;

// Rows of every size: normals, tiny and huge ones, zeros, single spikes.
std::vector<float> rows_of_all_sizes(int64_t rows, int64_t width) {
  test::Random random(5);
  std::vector<float> x = random.normals(rows * width);
  for (int64_t row = 0; row < rows; ++row) {
    const float size = row % 4 == 0 ? 1.0f : row % 4 == 1 ? 1e-38f : row % 4 == 2 ? 3e37f : 0.0f;
    for (int64_t i = 0; i < width; ++i) x[static_cast<size_t>(row * width + i)] *= size;
    if (row % 3 == 0) x[static_cast<size_t>(row * width + random.below(width))] = -700.0f;
  }
  return as_bf16_values(x);
}

void expect_records(RecordKind kind, int64_t width, float outer_scale, int32_t rows_of_page, int32_t rank,
                    int32_t ranks) {
  SCOPED_TRACE(std::string(quant::name_of(kind)) + " of " + std::to_string(width));
  const CudaLatentStore store(device::gpu_under_test(), device::model_defines({}));
  const test::GpuStep step({{1, 13, 9, test::scattered_pages(6, 0, 2)}, {0, 0, 20, test::scattered_pages(6, 1, 2)}});
  test::TestPlane plane(kind, width, rows_of_page, 13, outer_scale);
  plane.view.rank = rank;
  plane.view.ranks = ranks;
  plane.upload();
  const std::vector<float> x = rows_of_all_sizes(step.rows, width);
  const auto latent = on_gpu(to_bf16(x));
  store.run({step.view, plane.view, latent.as<device::bf16>(), width}, step.rows + 5);
  for (int32_t row = 0; row < step.rows; ++row) {
    const auto& segment = step.host_segments[static_cast<size_t>(step.segment_of_row[static_cast<size_t>(row)])];
    const PagedPlane host = plane.host(segment.pages);
    const int64_t position = step.positions[static_cast<size_t>(row)];
    if (host.holds(position)) host.store(position, x.data() + row * width);
  }
  EXPECT_EQ(plane.device_data(), plane.data);
}

TEST(LatentGpu, RecordsHaveTheBytesOfTheCpu) {
  for (const int64_t width : {512, 72, 24}) {
    for (const auto kind :
         {RecordKind::bf16, RecordKind::latent_fp8, RecordKind::latent_fp8_row, RecordKind::latent_nvfp4})
      expect_records(kind, width, 0.0f, 8, 0, 1);
    expect_records(RecordKind::latent_nvfp4, width, 0.5f, 5, 0, 1);
  }
}

TEST(LatentGpu, AnotherRanksPagesAreLeftAlone) {
  expect_records(RecordKind::bf16, 72, 0.0f, 8, 1, 2);
  expect_records(RecordKind::latent_fp8, 72, 0.0f, 8, 0, 2);
}

TEST(LatentGpu, RowsThatAreNotFiniteReadAsNaN) {
  const CudaLatentStore store(device::gpu_under_test(), device::model_defines({}));
  const test::GpuStep step({{0, 0, 2, {1}}});
  for (const auto kind :
       {RecordKind::bf16, RecordKind::latent_fp8, RecordKind::latent_fp8_row, RecordKind::latent_nvfp4}) {
    test::TestPlane plane(kind, 72, 8, 2);
    plane.upload();
    std::vector<float> x(144, 1.0f);
    x[3] = std::numeric_limits<float>::infinity();
    x[75] = test::not_a_number;
    std::vector<uint16_t> bits = to_bf16(x);
    bits[75] = 0x7fc0;
    const auto latent = on_gpu(bits);
    store.run({step.view, plane.view, latent.as<device::bf16>(), 72}, 2);
    plane.data = plane.device_data();
    std::vector<float> row(72);
    for (int64_t i = 0; i < 2; ++i) {
      plane.host(step.host_segments[0].pages).load(i, row.data());
      EXPECT_FALSE(std::isfinite(row[3])) << quant::name_of(kind) << i;
    }
  }
}

TEST(LatentGpu, RefusesPlanesOfFp32) {
  const CudaLatentStore store(device::gpu_under_test(), device::model_defines({}));
  PlaneView plane{};
  plane.kind = static_cast<int32_t>(RecordKind::f32);
  EXPECT_ANY_THROW(store.run({{}, plane, nullptr, 8}, 1));
}

}  // namespace
}  // namespace tandem::ops::latent_gpu_test
