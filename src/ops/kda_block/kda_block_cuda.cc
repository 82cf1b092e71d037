// Launches of kda_block.cu and the memory between them.
#include "ops/kda_block/kda_block_cuda.h"

#include <fmt/core.h>

#include "base/error.h"
#include "ops/kda_block/kda_block.h"
#include "ops/kda_conv/kda_conv_cuda.h"

namespace tandem::ops {
namespace {

// As in kda_block_steps.h, which only kernels can include.
constexpr int64_t rows = kda_rows_of_block, walk_columns = 32, walk_warps = 4, warp_columns = 8;
static_assert(rows == kda_block_rows);

int64_t handover_values(int64_t dim) { return (3 * rows + 1) * dim + 2 * rows * rows + rows; }
int64_t max_tasks(int64_t max_rows, int64_t max_segments) {
  return max_rows / rows + kda_tasks_of_segment * max_segments;
}

}  // namespace

CudaKdaBlock::CudaKdaBlock(device::Gpu& gpu, const std::vector<std::string>& defines, int64_t dim)
    : gpu_(gpu),
      prepare_(gpu.load({"ops/kda_block/kda_block.cu", "kda_block_prepare", defines})),
      conv_prepare_(gpu.load({"ops/kda_block/kda_block.cu", "kda_conv_prepare", defines})),
      ring_(gpu.load({"ops/kda_conv/kda_conv.cu", "kda_conv_ring", defines})),
      walk_(gpu.load({"ops/kda_block/kda_block.cu", "kda_block_walk", defines})),
      dim_(dim) {
  if (dim < 32 || dim > 128 || dim % 32 != 0)
    throw Error(ErrorCode::internal, "kda_block", fmt::format("heads of {}", dim), "32, 64, 96 or 128");
}

int64_t CudaKdaBlock::scratch_bytes(int64_t heads, int64_t dim, int64_t max_rows, int64_t max_segments) {
  return 4 * max_tasks(max_rows, max_segments) * heads * handover_values(dim);
}

void CudaKdaBlock::run(const KdaBlockArgs& args, int64_t max_rows, int64_t max_segments) const {
  if (max_rows == 0 || max_segments == 0 || args.heads == 0) return;
  device::Launch launch{prepare_};
  launch.grid[0] = static_cast<uint32_t>(max_tasks(max_rows, max_segments));
  launch.grid[1] = static_cast<uint32_t>(args.heads);
  launch.threads = 256;
  gpu_.launch(launch, args);
  walk(args, max_segments);
}

void CudaKdaBlock::run_with_conv(const KdaConvArgs& conv, const KdaBlockArgs& block, int64_t max_rows,
                                 int64_t max_segments) const {
  check_kda_conv(conv);
  if (max_rows == 0 || max_segments == 0 || block.heads == 0) return;
  device::Launch launch{conv_prepare_};
  launch.grid[0] = static_cast<uint32_t>(max_tasks(max_rows, max_segments));
  launch.grid[1] = static_cast<uint32_t>(block.heads);
  launch.threads = 256;
  gpu_.launch(launch, KdaConvBlockArgs{conv, block});
  store_kda_rings(gpu_, ring_, conv, max_rows);
  walk(block, max_segments);
}

void CudaKdaBlock::walk(const KdaBlockArgs& args, int64_t max_segments) const {
  device::Launch launch{walk_};
  launch.grid[0] = static_cast<uint32_t>(dim_ / walk_columns);
  launch.grid[1] = static_cast<uint32_t>(args.heads);
  launch.grid[2] = static_cast<uint32_t>(max_segments);
  launch.threads = 32 * walk_warps;
  launch.shared_bytes =
      4 * (2 * handover_values(dim_) + walk_warps * 3 * rows * warp_columns) + 2 * 2 * rows * walk_columns;
  gpu_.launch(launch, args);
}

device::KernelCost CudaKdaBlock::cost(int64_t heads, int64_t step_rows, int64_t segments) const {
  // Of a row and head: q, k, g, v in, o out, what the launches hand over. Of a segment: S₀ and half a block of logs.
  const int64_t row = 3 * 4 * dim_ + 2 * 2 * dim_ + 2 * 4 * handover_values(dim_) / rows;
  const int64_t segment = 4 * dim_ * dim_ + 3 * 4 * dim_ * rows / 2;
  // Products with S₀ and its advance, half of a and b (with an exponential a term), δ and o.
  const int64_t operations = 2 * (3 * dim_ * dim_ + rows * dim_) + rows / 2 * 6 * dim_;
  return {heads * (step_rows * row + segments * segment), heads * step_rows * operations};
}

device::KernelCost CudaKdaBlock::cost_with_conv(int64_t heads, int64_t kernel, int64_t step_rows,
                                                int64_t segments) const {
  const device::KernelCost recurrence = cost(heads, step_rows, segments);
  // Raw rows, f and b in and the ring out come in; q, k, g and beta (12 bytes a channel) never leave the chip.
  const int64_t row = dim_ * (3 * 2 + 2 + 2 + 3 * 2 - 3 * 4) + 2;
  return {recurrence.bytes + heads * (step_rows * row + 4 * dim_ * (3 * kernel + 1)),
          recurrence.operations + heads * step_rows * dim_ * (3 * 2 * kernel + 3 * 5 + 2 * 3 + 6)};
}

}  // namespace tandem::ops
