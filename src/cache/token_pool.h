// The paged pool of token rows: latent rows and pooled index keys of every DSA layer (design.md 5). A page holds
// `page_rows` token rows in every plane; page 0 is the null page. Who holds which page is PageAllocator's business.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "device/host_memory.h"
#include "model/cache_bytes.h"
#include "model/shape.h"
#include "ops/latent/pages.h"

namespace tandem::cache {

// The rules of every pool: page_rows, or Error(usage); Error(usage) unless there are none or one for each plane.
int64_t checked_page_rows(int64_t page_rows, int64_t kpool);
void check_outer_scales(const std::vector<float>& scales, int64_t planes);

class TokenPool {
 public:
  // `planes` layers with caches: the DSA layers in order, then the MTP layer. outer_scales: of each plane, for nvfp4
  // latents with calibrated scales; none: every row has its own. Throws Error(usage) for page rows that cannot be, for
  // records that the shape cannot have (model/cache_bytes.h) and for another number of scales.
  TokenPool(const model::Shape& shape, int64_t planes, int64_t pages, int64_t page_rows,
            model::CacheType type = model::CacheType::f32, std::vector<float> outer_scales = {});
  static int64_t bytes(const model::Shape& shape, int64_t planes, int64_t pages, int64_t page_rows,
                       model::CacheType type = model::CacheType::f32);

  int64_t pages() const { return pages_; }
  // Views of plane `layer` through a stream's page table.
  ops::PagedPlane latent(int64_t layer, const int32_t* page_table);
  ops::PagedPlane pooled(int64_t layer, const int32_t* page_table);

  // The first `rows` token rows of a page, and the pools that begin in them, to another page in every plane.
  void copy_page(int64_t from, int64_t to, int64_t rows);

 private:
  // Rows of one kind: in each plane of the records [planes, pages, rows of a page, bytes].
  struct Rows {
    quant::CacheRecord record;
    int64_t of_page = 0;
    std::array<device::HostMemory, 2> planes;  // the second is empty for most records
  };
  Rows rows_of(const quant::CacheRecord& record, int64_t of_page, const char* what) const;
  ops::PagedPlane plane(Rows& rows, int64_t layer, const int32_t* page_table) const;

  int64_t planes_, pages_, page_rows_, kpool_;
  std::vector<float> outer_scales_;  // [planes] or empty
  Rows latent_, pooled_;
};

}  // namespace tandem::cache
