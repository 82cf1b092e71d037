// What two ranks gave, put together on a GPU (leaves_args.h).
#pragma once

#include <string>
#include <vector>

#include "device/gpu.h"
#include "device/kernel_cost.h"
#include "ops/leaves/leaves_args.h"

namespace tandem::ops {

class CudaLeaves {
 public:
  CudaLeaves(device::Gpu& gpu, const std::vector<std::string>& defines);
  // Each over the first *args.rows (device memory) of max_rows rows; the others are left alone. Error(internal) for
  // widths that leaves_args.h rules out, or a sum of no leaf.
  void add(const AddLeavesArgs& args, int64_t max_rows) const;
  void join_embeddings(const JoinEmbeddingsArgs& args, int64_t max_rows) const;
  void join_columns(const JoinColumnsArgs& args, int64_t max_rows) const;

  // Of a sum of two leaves.
  static device::KernelCost cost(int64_t rows, int64_t width) { return {rows * width * (4 + 4 + 2), rows * width}; }

 private:
  device::Gpu& gpu_;
  device::Kernel add_, join_embeddings_, join_columns_;
};

}  // namespace tandem::ops
