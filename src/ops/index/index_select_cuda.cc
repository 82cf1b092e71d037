// Launches index_score.cu and index_choose.cu batch by batch, and selection_share.cu.
#include "ops/index/index_select_cuda.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "base/error.h"
#include "quant/cache_records.h"

namespace tandem::ops {

namespace {

constexpr int64_t rows_of_unit = 32;   // 8 KiB of queries a row against 64 KiB of keys a tile
constexpr int64_t heads_of_block = 8;  // index_queries
constexpr int64_t score_stages = 4, score_threads = 256;

int64_t aligned(int64_t bytes) { return (bytes + 255) / 256 * 256; }

// What a launch's largest case comes to.
struct Sizes {
  int64_t rows, chunks;  // of a batch, of a row
  int64_t scores, candidates;

  Sizes(int64_t max_rows, int64_t max_pools, int64_t budget, int64_t score_bytes) {
    const int64_t pools = std::max<int64_t>(max_pools, 1);
    rows = std::clamp<int64_t>(score_bytes / (pools * 4), 1, std::max<int64_t>(max_rows, 1));
    if (rows < max_rows && rows > rows_of_unit) rows -= rows % rows_of_unit;
    chunks = (pools + index_chunk - 1) / index_chunk;
    scores = aligned(rows * pools * 4);
    candidates = chunks == 1 ? 0 : aligned(rows * chunks * (budget + 1) * 4);
  }
};

}  // namespace

CudaIndexSelect::CudaIndexSelect(device::Gpu& gpu, const std::vector<std::string>& defines, int64_t score_bytes)
    : gpu_(gpu),
      score_bytes_(score_bytes),
      queries_(gpu.load({"ops/index/index_score.cu", "index_queries", defines})),
      score_(gpu.load({"ops/index/index_score.cu", "index_score", defines})),
      chunks_(gpu.load({"ops/index/index_choose.cu", "index_chunks", defines})),
      choose_(gpu.load({"ops/index/index_choose.cu", "index_choose", defines})) {}

int64_t CudaIndexSelect::scratch_bytes(int64_t max_rows, int64_t max_pools, int64_t budget, int64_t score_bytes) {
  const Sizes sizes(max_rows, max_pools, budget, score_bytes);
  return sizes.scores + 2 * sizes.candidates;
}

void CudaIndexSelect::run(const IndexSelectArgs& args, int64_t max_rows, std::byte* scratch) const {
  const auto kind = static_cast<quant::RecordKind>(args.pooled.kind);
  if (kind != quant::RecordKind::bf16 && kind != quant::RecordKind::index_fp8)
    throw Error(ErrorCode::internal, "index selection", std::string(quant::name_of(kind)), "bf16 or index_fp8");
  if (args.heads < 1 || args.heads > index_max_heads)
    throw Error(ErrorCode::internal, "index selection", fmt::format("{} heads", args.heads),
                fmt::format("1 to {}", index_max_heads));
  const Sizes sizes(max_rows, args.max_pools, args.budget, score_bytes_);
  if (args.budget < 1 || args.budget >= index_chunk || sizes.chunks * (args.budget + 1) > index_chunk)
    throw Error(ErrorCode::internal, "index selection", fmt::format("{} of {} pools", args.budget, args.max_pools),
                fmt::format("at most {} candidates of all chunks", index_chunk));
  if (max_rows == 0) return;
  IndexBatch batch{};
  batch.select = args;
  batch.rows_of_unit = rows_of_unit;
  batch.max_chunks = static_cast<int32_t>(sizes.chunks);
  batch.scores = reinterpret_cast<float*>(scratch);
  batch.candidate_keys = reinterpret_cast<uint32_t*>(scratch + sizes.scores);
  batch.candidate_pools = reinterpret_cast<int32_t*>(scratch + sizes.scores + sizes.candidates);
  batch.weight_factor =
      1.0f / std::sqrt(static_cast<float>(args.heads)) / std::sqrt(static_cast<float>(args.pooled.width));
  device::Launch launch;
  const bool scores = args.max_pools > args.budget;
  if (scores && kind == quant::RecordKind::index_fp8) {
    launch.kernel = queries_;
    launch.grid[0] = static_cast<uint32_t>((max_rows * args.heads + heads_of_block - 1) / heads_of_block);
    launch.threads = heads_of_block * 32;
    gpu_.launch(launch, batch);
  }
  const int64_t padded_heads = (args.heads + 15) / 16 * 16;
  for (int64_t first = 0; first < max_rows; first += sizes.rows) {
    batch.first_row = static_cast<int32_t>(first);
    batch.rows = static_cast<int32_t>(std::min(sizes.rows, max_rows - first));
    if (scores) {
      launch = {score_};
      launch.grid[0] = static_cast<uint32_t>(2 * gpu_.properties().multiprocessors);
      launch.threads = score_threads;
      launch.shared_bytes = score_stages * padded_heads * (2 * args.pooled.width + 4);
      gpu_.launch(launch, batch);
    }
    if (sizes.chunks > 1) {
      launch = {chunks_};
      launch.grid[0] = static_cast<uint32_t>(sizes.chunks);
      launch.grid[1] = static_cast<uint32_t>(batch.rows);
      launch.threads = 1024;
      gpu_.launch(launch, batch);
    }
    launch = {choose_};
    launch.grid[0] = static_cast<uint32_t>(batch.rows);
    launch.threads = 1024;
    gpu_.launch(launch, batch);
  }
}

device::KernelCost CudaIndexSelect::cost(const IndexSelectArgs& args, int64_t rows, int64_t pools) {
  if (pools <= args.budget) return {rows * args.max_selected * 4, 0};
  const int64_t key = args.pooled.row_bytes + (args.pooled.scales != nullptr ? 4 : 0);
  const int64_t query = args.heads * (2 * int64_t{args.pooled.width} + 4);
  return {pools * key + rows * (query + 2 * pools * 4 + args.max_selected * 4),
          rows * pools * args.heads * 2 * (args.pooled.width + 1)};
}

CudaSelectionShare::CudaSelectionShare(device::Gpu& gpu, const std::vector<std::string>& defines)
    : gpu_(gpu),
      leave_(gpu.load({"ops/index/selection_share.cu", "selection_leave", defines})),
      reuse_(gpu.load({"ops/index/selection_share.cu", "selection_reuse", defines})) {}

void CudaSelectionShare::leave(const SelectionShareArgs& args, int64_t max_segments) const {
  if (max_segments == 0) return;
  device::Launch launch{leave_};
  launch.grid[0] = static_cast<uint32_t>(max_segments);
  launch.threads = 256;
  gpu_.launch(launch, args);
}

void CudaSelectionShare::reuse(const SelectionShareArgs& args, int64_t max_segments) const {
  if (max_segments == 0) return;
  device::Launch launch{reuse_};
  launch.grid[0] = static_cast<uint32_t>(max_segments);
  launch.threads = 256;
  gpu_.launch(launch, args);
}

}  // namespace tandem::ops
