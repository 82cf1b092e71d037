// Latent rows of a step into the paged pool on a GPU, as quant/cache_records.h says they are stored.
#pragma once

#include <string>
#include <vector>

#include "device/gpu.h"
#include "device/kernel_cost.h"
#include "ops/latent/latent_args.h"

namespace tandem::ops {

class CudaLatentStore {
 public:
  CudaLatentStore(device::Gpu& gpu, const std::vector<std::string>& defines);
  // All rows of the step (at most max_rows), each to its own stream's page; rows of pages that another rank holds are
  // left out. A row that is not finite is stored as NaN codes, so that what reads it shows the fault. Throws
  // Error(internal) for an f32 plane: a GPU's caches are bf16 or coded.
  void run(const LatentStoreArgs& args, int64_t max_rows) const;
  static device::KernelCost cost(const PlaneView& plane, int64_t rows);

 private:
  device::Gpu& gpu_;
  device::Kernel kernel_;
};

}  // namespace tandem::ops
