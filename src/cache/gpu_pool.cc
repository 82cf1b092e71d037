// Sizes and addresses of the pool's planes in device memory.
#include "cache/gpu_pool.h"

#include <utility>

#include "cache/token_pool.h"

namespace tandem::cache {

GpuPool::GpuPool(device::Gpu& gpu, const std::vector<std::string>& defines, const model::Shape& shape, int64_t planes,
                 int64_t pages, int64_t page_rows, model::CacheType type, std::vector<float> outer_scales)
    : gpu_(gpu),
      copy_(gpu.load({"cache/gpu_moves.cu", "copy_page", defines})),
      planes_(planes),
      pages_(pages),
      page_rows_(checked_page_rows(page_rows, shape.index_kpool)),
      kpool_(shape.index_kpool),
      outer_scales_(std::move(outer_scales)) {
  check_outer_scales(outer_scales_, planes);
  const model::CacheRecords records = model::cache_records(shape, type);
  latent_ = rows_of(records.latent, page_rows_, "latent pages");
  pooled_ = rows_of(records.pooled, page_rows_ / kpool_, "index pages");
}

GpuPool::Rows GpuPool::rows_of(const quant::CacheRecord& record, int64_t of_page, const std::string& what) const {
  Rows rows{record, of_page, {}};
  for (int plane = 0; plane < 2; ++plane) {
    const int64_t bytes = planes_ * pages_ * of_page * record.plane_bytes[plane];
    if (bytes == 0) continue;
    rows.planes[plane] = gpu_.allocate(bytes, what);
    gpu_.fill(rows.planes[plane].data(), 0, bytes);  // what a kernel reads and masks away must not be NaN
  }
  return rows;
}

ops::PlaneView GpuPool::plane(const Rows& rows, int64_t layer) const {
  ops::PlaneView view{};
  const int64_t first = layer * pages_ * rows.of_page;
  view.data = rows.planes[0].as<uint8_t>() + first * rows.record.plane_bytes[0];
  if (rows.record.plane_bytes[1] > 0) view.scales = rows.planes[1].as<uint8_t>() + first * rows.record.plane_bytes[1];
  view.kind = static_cast<int32_t>(rows.record.kind);
  view.width = static_cast<int32_t>(rows.record.width);
  view.row_bytes = static_cast<int32_t>(rows.record.plane_bytes[0]);
  view.rows_of_page = static_cast<int32_t>(rows.of_page);
  view.rank = 0;
  view.ranks = 1;
  return view;
}

ops::PlaneView GpuPool::latent(int64_t layer) const {
  ops::PlaneView view = plane(latent_, layer);
  if (!outer_scales_.empty()) view.outer_scale = outer_scales_[static_cast<size_t>(layer)];
  return view;
}

ops::PlaneView GpuPool::pooled(int64_t layer) const { return plane(pooled_, layer); }

void GpuPool::copy_page(int64_t from, int64_t to, int64_t rows) const {
  if (rows == 0 || planes_ == 0) return;
  CopyPageArgs args{};
  int64_t parts = 0;
  const auto add = [&](const Rows& all, int64_t count) {
    for (int plane = 0; plane < 2; ++plane) {
      const int64_t row = all.record.plane_bytes[plane], page = all.of_page * row;
      args.parts[parts++] = {all.planes[plane].as<uint8_t>(), page, pages_ * page, count * row};
    }
  };
  add(latent_, rows);
  add(pooled_, (rows + kpool_ - 1) / kpool_);
  args.from = static_cast<int32_t>(from);
  args.to = static_cast<int32_t>(to);
  device::Launch launch{copy_};
  launch.threads = 256;
  launch.grid[0] = 16;
  launch.grid[1] = static_cast<uint32_t>(planes_);
  launch.grid[2] = CopyPageArgs::max_parts;
  gpu_.launch(launch, args);
}

}  // namespace tandem::cache
