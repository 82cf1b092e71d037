// Attention over the selected latent rows on a GPU; sparse_attend.h has the formulas.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "device/gpu.h"
#include "device/kernel_cost.h"
#include "ops/attend/sparse_attend_args.h"

namespace tandem::ops {

// How a launch is laid out; every plan gives the same bits.
struct SparseAttendPlan {
  bool by_splits = false;  // a block for each split of a row's keys; else for each row
  int32_t head_tiles = 1;  // of 16 heads, of a block: 1 or 2
};
// For steps of at most max_rows rows: splits while rows alone would leave multiprocessors idle, and what fits
// `shared_bytes` of shared memory.
SparseAttendPlan sparse_attend_plan(int64_t max_rows, int64_t heads, int64_t kv_lora_rank, int64_t multiprocessors,
                                    int64_t shared_bytes);
// Shared memory of a block.
int64_t sparse_attend_shared_bytes(const SparseAttendPlan& plan, int64_t kv_lora_rank);

class CudaSparseAttend {
 public:
  // The kernels are compiled for TANDEM_KV_LORA_RANK of `defines`. `plan`: in place of sparse_attend_plan()'s, for
  // tests.
  CudaSparseAttend(device::Gpu& gpu, const std::vector<std::string>& defines,
                   std::optional<SparseAttendPlan> plan = std::nullopt);
  // Bytes of device memory that run() of any number of rows up to max_rows works in: few rows are cut into splits and
  // may need more than many. With this object's plan, and on a GPU with sparse_attend_plan()'s.
  int64_t scratch_bytes(int64_t max_rows, int64_t heads, int64_t kv_lora_rank, int64_t max_selected) const;
  static int64_t scratch_bytes(const device::GpuProperties& gpu, int64_t max_rows, int64_t heads, int64_t kv_lora_rank,
                               int64_t max_selected);
  // All rows of the step (at most max_rows). Throws Error(internal) for an f32 plane.
  void run(const SparseAttendArgs& args, int64_t max_rows, std::byte* scratch) const;
  // Of rows that each attend to `keys` tokens.
  static device::KernelCost cost(const SparseAttendArgs& args, int64_t rows, int64_t keys);

 private:
  SparseAttendPlan plan_for(int64_t max_rows, int64_t heads, int64_t kv_lora_rank) const;

  device::Gpu& gpu_;
  std::optional<SparseAttendPlan> plan_;
  device::Kernel splits_[2], rows_[2], join_;  // [head_tiles − 1]
};

}  // namespace tandem::ops
