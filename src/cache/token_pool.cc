// Sizes and addresses of the pool's planes.
#include "cache/token_pool.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/error.h"

namespace tandem::cache {

TokenPool::TokenPool(const model::Shape& shape, int64_t planes, int64_t pages, int64_t page_rows)
    : planes_(planes),
      pages_(pages),
      page_rows_(page_rows),
      kpool_(shape.index_kpool),
      latent_width_(shape.kv_lora_rank),
      index_width_(shape.index_head_dim),
      pools_of_page_(page_rows / shape.index_kpool) {
  if (page_rows < 1 || page_rows > ops::page_rows || page_rows % kpool_ != 0) {
    throw Error(ErrorCode::usage, "page rows", fmt::format("{}", page_rows),
                fmt::format("a multiple of index_kpool {} up to {}", kpool_, ops::page_rows));
  }
  latent_ =
      device::HostMemory(4 * planes * pages * page_rows * latent_width_, "latent pages", "a smaller --kv-cache-memory");
  pooled_ = device::HostMemory(4 * planes * pages * pools_of_page_ * index_width_, "index pages",
                               "a smaller --kv-cache-memory");
}

int64_t TokenPool::bytes(const model::Shape& shape, int64_t planes, int64_t pages, int64_t page_rows) {
  const int64_t pools = page_rows / shape.index_kpool;
  return 4 * planes * pages * (page_rows * shape.kv_lora_rank + pools * shape.index_head_dim);
}

ops::PagedPlane TokenPool::latent(int64_t layer, const int32_t* page_table) {
  return {latent_.data() + 4 * layer * pages_ * page_rows_ * latent_width_, page_table, page_rows_, latent_width_};
}

ops::PagedPlane TokenPool::pooled(int64_t layer, const int32_t* page_table) {
  return {pooled_.data() + 4 * layer * pages_ * pools_of_page_ * index_width_, page_table, pools_of_page_,
          index_width_};
}

void TokenPool::copy_page(int64_t from, int64_t to, int64_t rows) {
  const int64_t pools = (rows + kpool_ - 1) / kpool_;
  for (int64_t plane = 0; plane < planes_; ++plane) {
    float* latent = latent_.floats() + plane * pages_ * page_rows_ * latent_width_;
    std::copy_n(latent + from * page_rows_ * latent_width_, rows * latent_width_,
                latent + to * page_rows_ * latent_width_);
    float* pooled = pooled_.floats() + plane * pages_ * pools_of_page_ * index_width_;
    std::copy_n(pooled + from * pools_of_page_ * index_width_, pools * index_width_,
                pooled + to * pools_of_page_ * index_width_);
  }
}

}  // namespace tandem::cache
