// Sizes and addresses of the pool's planes.
#include "cache/token_pool.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/error.h"

namespace tandem::cache {

TokenPool::TokenPool(const model::Shape& shape, int64_t planes, int64_t pages, int64_t page_rows,
                     ops::CacheElement element)
    : planes_(planes),
      pages_(pages),
      page_rows_(page_rows),
      kpool_(shape.index_kpool),
      latent_width_(shape.kv_lora_rank),
      index_width_(shape.index_head_dim),
      pools_of_page_(page_rows / shape.index_kpool),
      element_(element) {
  if (page_rows < 1 || page_rows > ops::page_rows || page_rows % kpool_ != 0) {
    throw Error(ErrorCode::usage, "page rows", fmt::format("{}", page_rows),
                fmt::format("a multiple of index_kpool {} up to {}", kpool_, ops::page_rows));
  }
  const int64_t rows = ops::element_bytes(element) * planes * pages;
  latent_ = device::HostMemory(rows * page_rows * latent_width_, "latent pages", "a smaller --kv-cache-memory");
  pooled_ = device::HostMemory(rows * pools_of_page_ * index_width_, "index pages", "a smaller --kv-cache-memory");
}

int64_t TokenPool::bytes(const model::Shape& shape, int64_t planes, int64_t pages, int64_t page_rows,
                         ops::CacheElement element) {
  const int64_t pools = page_rows / shape.index_kpool;
  return ops::element_bytes(element) * planes * pages * (page_rows * shape.kv_lora_rank + pools * shape.index_head_dim);
}

ops::PagedPlane TokenPool::latent(int64_t layer, const int32_t* page_table) {
  ops::PagedPlane plane{nullptr, page_table, page_rows_, latent_width_, element_};
  plane.data = latent_.data() + layer * pages_ * page_rows_ * plane.row_bytes();
  return plane;
}

ops::PagedPlane TokenPool::pooled(int64_t layer, const int32_t* page_table) {
  ops::PagedPlane plane{nullptr, page_table, pools_of_page_, index_width_, element_};
  plane.data = pooled_.data() + layer * pages_ * pools_of_page_ * plane.row_bytes();
  return plane;
}

void TokenPool::copy_page(int64_t from, int64_t to, int64_t rows) {
  const int64_t pools = (rows + kpool_ - 1) / kpool_;
  const auto copy = [from, to](const ops::PagedPlane& plane, int64_t count) {
    const int64_t page = plane.rows_of_page * plane.row_bytes();
    std::copy_n(plane.data + from * page, count * plane.row_bytes(), plane.data + to * page);
  };
  for (int64_t layer = 0; layer < planes_; ++layer) {
    copy(latent(layer, nullptr), rows);
    copy(pooled(layer, nullptr), pools);
  }
}

}  // namespace tandem::cache
