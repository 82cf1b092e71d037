// The paged pool of token rows in device memory: cache/token_pool.h has the rules.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "cache/gpu_moves_args.h"
#include "device/gpu.h"
#include "model/cache_bytes.h"
#include "model/shape.h"
#include "ops/step_view.h"

namespace tandem::cache {

class GpuPool {
 public:
  // As TokenPool's, with its errors, and Error(does_not_fit). No allocation after this.
  GpuPool(device::Gpu& gpu, const std::vector<std::string>& defines, const model::Shape& shape, int64_t planes,
          int64_t pages, int64_t page_rows, model::CacheType type, std::vector<float> outer_scales = {});

  int64_t pages() const { return pages_; }
  // Plane `layer` of this rank's pool; the caller sets rank and ranks under decode-context parallelism.
  ops::PlaneView latent(int64_t layer) const;
  ops::PlaneView pooled(int64_t layer) const;

  // The first `rows` token rows of a page, and the pools that begin in them, to another page in every plane: one
  // launch, outside of graphs.
  void copy_page(int64_t from, int64_t to, int64_t rows) const;

 private:
  struct Rows {
    quant::CacheRecord record;
    int64_t of_page = 0;
    std::array<device::GpuMemory, 2> planes;  // the second is empty for most records
  };
  Rows rows_of(const quant::CacheRecord& record, int64_t of_page, const std::string& what) const;
  ops::PlaneView plane(const Rows& rows, int64_t layer) const;

  device::Gpu& gpu_;
  device::Kernel copy_;
  int64_t planes_, pages_, page_rows_, kpool_;
  std::vector<float> outer_scales_;  // [planes] or empty
  Rows latent_, pooled_;
};

}  // namespace tandem::cache
