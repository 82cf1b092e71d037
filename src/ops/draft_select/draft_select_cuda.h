// Candidates and edges on a GPU; draft_select.h has the formulas. A row's largest logit (greedy choice) is its first
// candidate.
#pragma once

#include <string>
#include <vector>

#include "device/gpu.h"
#include "device/kernel_cost.h"
#include "ops/draft_select/draft_select_args.h"

namespace tandem::ops {

class CudaDraftSelect {
 public:
  static constexpr int64_t most_top = 32, most_edges = 16;

  CudaDraftSelect(device::Gpu& gpu, const std::vector<std::string>& defines);

  static int64_t scratch_bytes(int64_t max_rows, int64_t vocab_size, int64_t count);
  // For each of the first *args.rows rows its `count` ≤ 32 largest, value descending, ties to the smaller id; a NaN
  // counts as −infinity. pieces, piece_ids and piece_keys are filled in here. Slots beyond
  // vocab_size get id −1 and −infinity.
  void top_candidates(TopCandidatesArgs args, int64_t max_rows, void* scratch) const;
  // top_k ≤ 16.
  void edges(const SelectorEdgesArgs& args, int64_t max_streams) const;
  static device::KernelCost top_candidates_cost(int64_t rows, int64_t vocab_size, int64_t count);
  static device::KernelCost edges_cost(int64_t streams, int64_t rows, int64_t top_k, int64_t rank);

 private:
  device::Gpu& gpu_;
  device::Kernel pieces_, merge_, edges_;
};

}  // namespace tandem::ops
