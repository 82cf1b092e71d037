// rows.cu: every move of a row, and that nothing else is touched.
#include <algorithm>

#include "device/kernel_dimensions.h"
#include "device/test_gpu.h"
#include "ops/rows/rows_cuda.h"
#include "ops/test_bf16.h"
#include "ops/test_random.h"

namespace tandem::ops::rows_gpu_test {
namespace {

using device::bf16;
using device::from_gpu;
using device::on_gpu;

constexpr int32_t width = 96, slots = 3;
constexpr int64_t slot_stride = (hidden_ring_rows + 1) * width;

std::vector<uint16_t> random_rows(int64_t rows, uint64_t seed) {
  return to_bf16(test::Random(seed).normals(rows * width));
}
std::vector<uint16_t> row_of(const std::vector<uint16_t>& rows, int64_t row) {
  return {rows.begin() + row * width, rows.begin() + (row + 1) * width};
}

// Two segments: 40 rows of slot 2 at position 7, one row of slot 0 at position 0.
struct TwoSegments {
  TwoSegments() {
    std::vector<int32_t> position(41), segment(41, 0);
    for (int32_t i = 0; i < 40; ++i) position[static_cast<size_t>(i)] = 7 + i;
    segment[40] = 1;
    positions = on_gpu(position);
    segment_of_row = on_gpu(segment);
    segments = on_gpu(std::vector<SegmentView>{{2, 0, 0, 40, 40, 7, 0, 0}, {0, 0, 40, 1, 1, 0, 0, 0}});
    counts = on_gpu(std::vector<int32_t>{41, 2, 0, 0, 0, 0, 0, 0});
    view = {};
    view.counts = counts.as<int32_t>();
    view.positions = positions.as<int32_t>();
    view.segment_of_row = segment_of_row.as<int32_t>();
    view.segments = segments.as<SegmentView>();
  }
  device::GpuMemory positions, segment_of_row, segments, counts;
  StepView view;
};

class RowsGpu : public ::testing::Test {
 protected:
  CudaRows rows_{device::gpu_under_test(), device::model_defines({})};
};

TEST_F(RowsGpu, GathersFromEveryPlace) {
  const auto dense = random_rows(5, 1), ring = random_rows(slots * (hidden_ring_rows + 1), 2),
             last = random_rows(slots, 3);
  const auto gpu_dense = on_gpu(dense), gpu_ring = on_gpu(ring), gpu_last = on_gpu(last);
  const auto sources = on_gpu(
      std::vector<RowSource>{{row_of_step, 4, 0}, {row_of_ring, 67, 1}, {row_of_slot, 0, 2}, {row_of_step, 0, 0}});
  const auto count = on_gpu(std::vector<int32_t>{3}), out = on_gpu(std::vector<uint16_t>(4 * 200, 0x7fff));
  rows_.gather({count.as<int32_t>(),
                sources.as<RowSource>(),
                gpu_dense.as<bf16>(),
                {gpu_ring.as<bf16>(), slot_stride},
                gpu_last.as<bf16>(),
                out.as<bf16>(),
                200,
                width},
               4);
  const auto got = from_gpu<uint16_t>(out.data(), 4 * 200);
  const auto at = [&](int64_t row) {
    return std::vector<uint16_t>(got.begin() + row * 200, got.begin() + row * 200 + width);
  };
  EXPECT_EQ(at(0), row_of(dense, 4));
  EXPECT_EQ(at(1), row_of(ring, hidden_ring_rows + 1 + 67 % hidden_ring_rows));
  EXPECT_EQ(at(2), row_of(last, 2));
  EXPECT_EQ(at(3), std::vector<uint16_t>(width, 0x7fff));
  EXPECT_EQ(got[width], 0x7fff);
}

TEST_F(RowsGpu, StoresTheLastRowsOfEverySegment) {
  const TwoSegments step;
  const auto rows = random_rows(41, 4);
  const auto gpu_rows = on_gpu(rows), ring = on_gpu(std::vector<uint16_t>(slots * slot_stride, 0x7fff)),
             last = on_gpu(std::vector<uint16_t>(slots * width, 0x7fff));
  rows_.store_head_rows({step.view, gpu_rows.as<bf16>(), {ring.as<bf16>(), slot_stride}, width}, 64);
  rows_.store_last_rows({step.view, gpu_rows.as<bf16>(), last.as<bf16>(), width}, 8);
  const auto got = from_gpu<uint16_t>(ring.data(), slots * slot_stride),
             got_last = from_gpu<uint16_t>(last.data(), slots * width);
  for (int32_t i = 8; i < 40; ++i)
    EXPECT_EQ(row_of(got, 2 * (hidden_ring_rows + 1) + (7 + i) % hidden_ring_rows), row_of(rows, i)) << i;
  EXPECT_EQ(row_of(got, 0), row_of(rows, 40));
  EXPECT_EQ(row_of(got, 1), std::vector<uint16_t>(width, 0x7fff));
  EXPECT_EQ(std::count(got.begin(), got.end(), 0x7fff), (slots * (hidden_ring_rows + 1) - 33) * width);
  EXPECT_EQ(row_of(got_last, 0), row_of(rows, 40));
  EXPECT_EQ(row_of(got_last, 1), std::vector<uint16_t>(width, 0x7fff));
  EXPECT_EQ(row_of(got_last, 2), row_of(rows, 39));
}

TEST_F(RowsGpu, AddsAndZeroes) {
  const TwoSegments step;
  const auto x = random_rows(42, 5), y = random_rows(42, 6);
  const auto gpu_x = on_gpu(x), gpu_y = on_gpu(y);
  rows_.add({step.view.counts, gpu_x.as<bf16>(), gpu_y.as<bf16>(), width}, 42);
  auto got = from_gpu<uint16_t>(gpu_y.data(), 42 * width);
  for (size_t i = 0; i < 41 * width; ++i) ASSERT_EQ(got[i], bf16_bits(bf16_value(x[i]) + bf16_value(y[i])));
  EXPECT_EQ(row_of(got, 41), row_of(y, 41));
  rows_.zero_first({step.view, gpu_x.as<bf16>(), width, width / 2}, 42);
  got = from_gpu<uint16_t>(gpu_x.data(), 42 * width);
  for (int64_t row = 0; row < 42; ++row) {
    for (int32_t i = 0; i < width; ++i) {
      const auto at = static_cast<size_t>(row * width + i);
      ASSERT_EQ(got[at], row == 40 && i < width / 2 ? 0 : x[at]) << row;
    }
  }
}

}  // namespace
}  // namespace tandem::ops::rows_gpu_test
