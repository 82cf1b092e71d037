// Steps and planes of a paged pool in device memory for tests, with the CPU's view of the same bytes.
#pragma once

#include <cstdint>
#include <vector>

#include "device/test_gpu.h"
#include "ops/latent/pages.h"
#include "ops/step_view.h"

namespace tandem::ops::test {

struct PagedTestSegment {
  int32_t slot = 0, position = 0, rows = 0;
  std::vector<int32_t> pages;
};

// `entries` page numbers above 0, in no order that a kernel could guess; different ones for each stream.
inline std::vector<int32_t> scattered_pages(int32_t entries, int32_t stream = 0, int32_t streams = 1) {
  std::vector<int32_t> pages;
  for (int32_t i = 0; i < entries; ++i)
    pages.push_back(1 + stream + streams * ((i % 2 == 0) ? entries - 1 - i / 2 : i / 2));
  return pages;
}

class GpuStep {
 public:
  explicit GpuStep(const std::vector<PagedTestSegment>& segments) : host_segments(segments) {
    std::vector<int32_t> counts(step_counts, 0), tokens, page_tables;
    std::vector<SegmentView> views;
    for (const PagedTestSegment& s : segments) {
      SegmentView v{};
      v.slot = s.slot;
      v.page_table = static_cast<int32_t>(page_tables.size());
      v.first_row = rows;
      v.rows = v.certain_rows = s.rows;
      v.position = s.position;
      page_tables.insert(page_tables.end(), s.pages.begin(), s.pages.end());
      for (int32_t i = 0; i < s.rows; ++i) {
        positions.push_back(s.position + i);
        segment_of_row.push_back(static_cast<int32_t>(views.size()));
      }
      rows += s.rows;
      views.push_back(v);
    }
    counts[step_rows] = rows;
    counts[step_segments] = static_cast<int32_t>(views.size());
    tokens.assign(static_cast<size_t>(rows), 0);
    memory_.push_back(device::on_gpu(counts));
    memory_.push_back(device::on_gpu(tokens));
    memory_.push_back(device::on_gpu(positions));
    memory_.push_back(device::on_gpu(segment_of_row));
    memory_.push_back(device::on_gpu(views));
    memory_.push_back(device::on_gpu(page_tables));
    view = {memory_[0].as<int32_t>(),
            memory_[1].as<int32_t>(),
            memory_[2].as<int32_t>(),
            memory_[3].as<int32_t>(),
            memory_[4].as<SegmentView>(),
            memory_[5].as<int32_t>(),
            nullptr};
  }

  std::vector<PagedTestSegment> host_segments;
  std::vector<int32_t> positions, segment_of_row;
  int32_t rows = 0;
  StepView view{};

 private:
  std::vector<device::GpuMemory> memory_;
};

// A plane with `pages` pages, filled with 0xff: NaNs in every format.
class TestPlane {
 public:
  TestPlane(quant::RecordKind kind, int64_t width, int64_t rows_of_page, int64_t pages, float outer_scale = 0.0f)
      : record_(quant::cache_record(kind, width)) {
    const int64_t rows = pages * rows_of_page;
    data.assign(static_cast<size_t>(rows * record_.plane_bytes[0]), 0xff);
    scales.assign(static_cast<size_t>(rows * record_.plane_bytes[1]), 0xff);
    view.kind = static_cast<int32_t>(kind);
    view.width = static_cast<int32_t>(width);
    view.row_bytes = static_cast<int32_t>(record_.plane_bytes[0]);
    view.rows_of_page = static_cast<int32_t>(rows_of_page);
    view.outer_scale = outer_scale;
    view.ranks = 1;
  }
  // The CPU's view of the host bytes.
  PagedPlane host(const std::vector<int32_t>& page_table) {
    PagedPlane plane;
    plane.data = reinterpret_cast<std::byte*>(data.data());
    plane.page_table = page_table.data();
    plane.rows_of_page = view.rows_of_page;
    plane.width = view.width;
    plane.element = static_cast<quant::RecordKind>(view.kind);
    plane.scales = reinterpret_cast<std::byte*>(scales.data());
    plane.outer_scale = view.outer_scale;
    plane.rank = view.rank;
    plane.ranks = view.ranks;
    return plane;
  }
  // Copies the host bytes to the device.
  void upload() {
    data_memory_ = device::on_gpu(data);
    view.data = data_memory_.as<uint8_t>();
    if (scales.empty()) return;
    scale_memory_ = device::on_gpu(scales);
    view.scales = scale_memory_.as<uint8_t>();
  }
  std::vector<uint8_t> device_data() const {
    return device::from_gpu<uint8_t>(view.data, static_cast<int64_t>(data.size()));
  }
  std::vector<uint8_t> device_scales() const {
    return scales.empty() ? std::vector<uint8_t>{}
                          : device::from_gpu<uint8_t>(view.scales, static_cast<int64_t>(scales.size()));
  }

  std::vector<uint8_t> data, scales;
  PlaneView view{};

 private:
  quant::CacheRecord record_;
  device::GpuMemory data_memory_, scale_memory_;
};

}  // namespace tandem::ops::test
