// Sizes and addresses of the pool's planes.
#include "cache/token_pool.h"

namespace tandem::cache {

TokenPool::TokenPool(const model::Shape& shape, int64_t planes, int64_t pages)
    : pages_(pages),
      latent_width_(shape.kv_lora_rank),
      index_width_(shape.index_head_dim),
      pools_of_page_(ops::page_rows / shape.index_kpool) {
  latent_ = device::HostMemory(4 * planes * pages * ops::page_rows * latent_width_, "latent pages",
                               "a smaller --kv-cache-memory");
  pooled_ = device::HostMemory(4 * planes * pages * pools_of_page_ * index_width_, "index pages",
                               "a smaller --kv-cache-memory");
}

int64_t TokenPool::bytes(const model::Shape& shape, int64_t planes, int64_t pages) {
  const int64_t pools = ops::page_rows / shape.index_kpool;
  return 4 * planes * pages * (ops::page_rows * shape.kv_lora_rank + pools * shape.index_head_dim);
}

ops::PagedPlane TokenPool::latent(int64_t layer, const int32_t* page_table) {
  return {latent_.floats() + layer * pages_ * ops::page_rows * latent_width_, page_table, ops::page_rows,
          latent_width_};
}

ops::PagedPlane TokenPool::pooled(int64_t layer, const int32_t* page_table) {
  return {pooled_.floats() + layer * pages_ * pools_of_page_ * index_width_, page_table, pools_of_page_, index_width_};
}

}  // namespace tandem::cache
