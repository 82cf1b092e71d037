// Sizes and addresses of the pool's planes.
#include "cache/token_pool.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace tandem::cache {

int64_t checked_page_rows(int64_t page_rows, int64_t kpool) {
  if (page_rows >= 1 && page_rows <= ops::page_rows && page_rows % kpool == 0) return page_rows;
  throw Error(ErrorCode::usage, "page rows", fmt::format("{}", page_rows),
              fmt::format("a multiple of index_kpool {} up to {}", kpool, ops::page_rows));
}

void check_outer_scales(const std::vector<float>& scales, int64_t planes) {
  if (scales.empty() || std::ssize(scales) == planes) return;
  throw Error(ErrorCode::usage, "scales of latent rows", fmt::format("{}", scales.size()),
              fmt::format("{}, one for each layer with a cache", planes));
}

TokenPool::TokenPool(const model::Shape& shape, int64_t planes, int64_t pages, int64_t page_rows, model::CacheType type,
                     std::vector<float> outer_scales)
    : planes_(planes),
      pages_(pages),
      page_rows_(checked_page_rows(page_rows, shape.index_kpool)),
      kpool_(shape.index_kpool),
      outer_scales_(std::move(outer_scales)) {
  check_outer_scales(outer_scales_, planes);
  const model::CacheRecords records = model::cache_records(shape, type);
  latent_ = rows_of(records.latent, page_rows_, "latent pages");
  pooled_ = rows_of(records.pooled, page_rows_ / kpool_, "index pages");
}

TokenPool::Rows TokenPool::rows_of(const quant::CacheRecord& record, int64_t of_page, const char* what) const {
  Rows rows{record, of_page, {}};
  for (int plane = 0; plane < 2; ++plane) {
    const int64_t bytes = planes_ * pages_ * of_page * record.plane_bytes[plane];
    if (bytes > 0) rows.planes[plane] = device::HostMemory(bytes, what, "a smaller --kv-cache-memory");
  }
  return rows;
}

int64_t TokenPool::bytes(const model::Shape& shape, int64_t planes, int64_t pages, int64_t page_rows,
                         model::CacheType type) {
  return pages * model::page_bytes(planes, model::cache_row(shape, type), shape.index_kpool, page_rows);
}

ops::PagedPlane TokenPool::plane(Rows& rows, int64_t layer, const int32_t* page_table) const {
  ops::PagedPlane plane{nullptr, page_table, rows.of_page, rows.record.width, rows.record.kind};
  const int64_t first = layer * pages_ * rows.of_page;
  plane.data = rows.planes[0].data() + first * rows.record.plane_bytes[0];
  if (rows.record.plane_bytes[1] > 0) plane.scales = rows.planes[1].data() + first * rows.record.plane_bytes[1];
  return plane;
}

ops::PagedPlane TokenPool::latent(int64_t layer, const int32_t* page_table) {
  ops::PagedPlane latent = plane(latent_, layer, page_table);
  if (!outer_scales_.empty()) latent.outer_scale = outer_scales_[static_cast<size_t>(layer)];
  return latent;
}

ops::PagedPlane TokenPool::pooled(int64_t layer, const int32_t* page_table) {
  return plane(pooled_, layer, page_table);
}

void TokenPool::copy_page(int64_t from, int64_t to, int64_t rows) {
  const auto copy = [&](Rows& all, int64_t count) {
    for (int plane = 0; plane < 2; ++plane) {
      const int64_t row = all.record.plane_bytes[plane], page = all.of_page * row;
      if (row == 0) continue;
      for (int64_t layer = 0; layer < planes_; ++layer) {
        std::byte* pages = all.planes[plane].data() + layer * pages_ * page;
        std::copy_n(pages + from * page, count * row, pages + to * page);
      }
    }
  };
  copy(latent_, rows);
  copy(pooled_, (rows + kpool_ - 1) / kpool_);
}

}  // namespace tandem::cache
