// Index keys of a step on a GPU: raw rows into the rings, finished pools into pages; index_store.h has the formula.
#pragma once

#include <string>
#include <vector>

#include "device/gpu.h"
#include "device/kernel_cost.h"
#include "ops/index/index_store_args.h"

namespace tandem::ops {

class CudaIndexStore {
 public:
  // The kernels are compiled for TANDEM_INDEX_HEAD_DIM and TANDEM_INDEX_KPOOL of `defines`.
  CudaIndexStore(device::Gpu& gpu, const std::vector<std::string>& defines);
  // Throws Error(internal) for a plane that is neither bf16 nor index_fp8.
  void run(const IndexStoreArgs& args, int64_t max_rows) const;
  static device::KernelCost cost(const IndexStoreArgs& args, int64_t rows);

 private:
  device::Gpu& gpu_;
  device::Kernel kernel_;
};

}  // namespace tandem::ops
