// Scores of pools and the exact choice of the best on a GPU; index_select.h has the rule.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "device/gpu.h"
#include "device/kernel_cost.h"
#include "ops/index/index_select_args.h"

namespace tandem::ops {

// Scores that a batch of rows may take; more only for a single row's.
constexpr int64_t index_score_bytes = int64_t{128} << 20;

class CudaIndexSelect {
 public:
  // The kernels are compiled for TANDEM_INDEX_HEAD_DIM and TANDEM_INDEX_KPOOL of `defines`.
  CudaIndexSelect(device::Gpu& gpu, const std::vector<std::string>& defines, int64_t score_bytes = index_score_bytes);
  // Bytes of device memory that run() works in: the scores of a batch, and what chunks of long rows leave.
  static int64_t scratch_bytes(int64_t max_rows, int64_t max_pools, int64_t budget,
                               int64_t score_bytes = index_score_bytes);
  // Selections of all rows of the step (at most max_rows). Throws Error(internal) for a plane that is neither bf16 nor
  // index_fp8, more than index_max_heads heads, or more pools and budget than the last choice holds (524,288 pools with
  // a budget of 511).
  void run(const IndexSelectArgs& args, int64_t max_rows, std::byte* scratch) const;
  // Of rows that each see `pools` pools of one stream.
  static device::KernelCost cost(const IndexSelectArgs& args, int64_t rows, int64_t pools);

 private:
  device::Gpu& gpu_;
  int64_t score_bytes_;
  device::Kernel queries_, score_, chunks_, choose_;
};

// MTP's shared selection.
class CudaSelectionShare {
 public:
  CudaSelectionShare(device::Gpu& gpu, const std::vector<std::string>& defines);
  // After the selection of an MTP step: each segment's last row's is kept for its slot.
  void leave(const SelectionShareArgs& args, int64_t max_segments) const;
  // A chain's row (one a segment) attends to what is kept and to itself, and is added to it.
  void reuse(const SelectionShareArgs& args, int64_t max_segments) const;

 private:
  device::Gpu& gpu_;
  device::Kernel leave_, reuse_;
};

}  // namespace tandem::ops
