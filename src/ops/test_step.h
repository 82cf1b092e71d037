// A step in device memory for tests of kernels: segments one after the other, given by slot, rows and position.
#pragma once

#include <cstdint>
#include <vector>

#include "device/test_gpu.h"
#include "ops/step_view.h"

namespace tandem::ops::test {

struct TestSegment {
  int32_t slot = 0, rows = 0, certain_rows = 0, position = 0, kda_block = 0;
};

class TestStep {
 public:
  explicit TestStep(const std::vector<TestSegment>& segments) {
    std::vector<SegmentView> views;
    std::vector<int32_t> positions, segment_of_row;
    for (const TestSegment& s : segments) {
      views.push_back(
          {s.slot, 0, static_cast<int32_t>(positions.size()), s.rows, s.certain_rows, s.position, s.kda_block, 0});
      for (int32_t i = 0; i < s.rows; ++i) {
        positions.push_back(s.position + i);
        segment_of_row.push_back(static_cast<int32_t>(views.size()) - 1);
      }
    }
    rows_ = static_cast<int64_t>(positions.size());
    std::vector<int32_t> counts(step_counts);
    counts[step_rows] = static_cast<int32_t>(rows_);
    counts[step_segments] = static_cast<int32_t>(views.size());
    memory_.push_back(device::on_gpu(counts));
    memory_.push_back(device::on_gpu(positions));
    memory_.push_back(device::on_gpu(segment_of_row));
    memory_.push_back(device::on_gpu(views));
    view_.counts = memory_[0].as<int32_t>();
    view_.positions = memory_[1].as<int32_t>();
    view_.segment_of_row = memory_[2].as<int32_t>();
    view_.segments = memory_[3].as<SegmentView>();
  }
  const StepView& view() const { return view_; }
  int64_t rows() const { return rows_; }

 private:
  std::vector<device::GpuMemory> memory_;
  StepView view_{};
  int64_t rows_ = 0;
};

}  // namespace tandem::ops::test
