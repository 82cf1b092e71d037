// The paged pool of token rows: latent rows and pooled index keys of every DSA layer (design.md 5). A page holds
// `page_rows` token rows in every plane; page 0 is the null page. Who holds which page is PageAllocator's business.
#pragma once

#include <cstdint>

#include "device/host_memory.h"
#include "model/shape.h"
#include "ops/latent/pages.h"

namespace tandem::cache {

class TokenPool {
 public:
  // `planes` layers with caches: the DSA layers in order, then the MTP layer.
  TokenPool(const model::Shape& shape, int64_t planes, int64_t pages, int64_t page_rows,
            ops::CacheElement element = ops::CacheElement::f32);
  static int64_t bytes(const model::Shape& shape, int64_t planes, int64_t pages, int64_t page_rows,
                       ops::CacheElement element = ops::CacheElement::f32);

  int64_t pages() const { return pages_; }
  // Views of plane `layer` through a stream's page table.
  ops::PagedPlane latent(int64_t layer, const int32_t* page_table);
  ops::PagedPlane pooled(int64_t layer, const int32_t* page_table);

  // The first `rows` token rows of a page, and the pools that begin in them, to another page in every plane.
  void copy_page(int64_t from, int64_t to, int64_t rows);

 private:
  int64_t planes_, pages_, page_rows_, kpool_, latent_width_, index_width_, pools_of_page_;
  ops::CacheElement element_;
  device::HostMemory latent_, pooled_;  // [planes, pages, rows of a page, width] of the element
};

}  // namespace tandem::cache
