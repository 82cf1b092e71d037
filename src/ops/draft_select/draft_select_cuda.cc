// The launches of the drafter's candidates and edges.
#include "ops/draft_select/draft_select_cuda.h"

#include <fmt/format.h>

#include "base/error.h"

namespace tandem::ops {
namespace {

int64_t pieces_of(int64_t vocab_size) {
  return (vocab_size + TopCandidatesArgs::piece_columns - 1) / TopCandidatesArgs::piece_columns;
}

}  // namespace

CudaDraftSelect::CudaDraftSelect(device::Gpu& gpu, const std::vector<std::string>& defines)
    : gpu_(gpu),
      pieces_(gpu.load({"ops/draft_select/draft_select.cu", "candidates_of_pieces", defines})),
      merge_(gpu.load({"ops/draft_select/draft_select.cu", "merge_candidates", defines})),
      edges_(gpu.load({"ops/draft_select/draft_select.cu", "edges_of_rows", defines})) {}

int64_t CudaDraftSelect::scratch_bytes(int64_t max_rows, int64_t vocab_size, int64_t count) {
  return 8 * max_rows * pieces_of(vocab_size) * count;
}

void CudaDraftSelect::top_candidates(TopCandidatesArgs args, int64_t max_rows, void* scratch) const {
  const int64_t pieces = pieces_of(args.vocab_size), lists = pieces * args.count;
  if (args.count < 1 || args.count > most_top || pieces > TopCandidatesArgs::most_pieces) {
    throw Error(
        ErrorCode::internal, "candidates", fmt::format("{} of {} logits", args.count, args.vocab_size),
        fmt::format("at most {} of {}", most_top, TopCandidatesArgs::most_pieces * TopCandidatesArgs::piece_columns));
  }
  if (max_rows == 0) return;
  args.pieces = static_cast<int32_t>(pieces);
  args.piece_ids = static_cast<int32_t*>(scratch);
  args.piece_keys = static_cast<uint32_t*>(scratch) + max_rows * lists;
  constexpr int64_t warps = 4;
  device::Launch launch{pieces_};
  launch.threads = 32 * warps;
  launch.grid[0] = static_cast<uint32_t>(max_rows);
  launch.grid[1] = static_cast<uint32_t>((pieces + warps - 1) / warps);
  gpu_.launch(launch, args);
  device::Launch merge{merge_};
  merge.threads = 256;
  merge.grid[0] = static_cast<uint32_t>(max_rows);
  merge.shared_bytes = 8 * lists;
  gpu_.launch(merge, args);
}

void CudaDraftSelect::edges(const SelectorEdgesArgs& args, int64_t max_streams) const {
  if (args.top_k > most_edges)
    throw Error(ErrorCode::internal, "selector", fmt::format("{} candidates", args.top_k),
                fmt::format("at most {}", most_edges));
  if (max_streams == 0 || args.rows == 0) return;
  device::Launch launch{edges_};
  launch.threads = 256;
  launch.grid[0] = static_cast<uint32_t>(args.rows);
  launch.grid[1] = static_cast<uint32_t>(max_streams);
  launch.shared_bytes = int64_t{4} * 2 * args.top_k * (args.rank + 1);
  gpu_.launch(launch, args);
}

device::KernelCost CudaDraftSelect::top_candidates_cost(int64_t rows, int64_t vocab_size, int64_t count) {
  return {4 * rows * (vocab_size + 2 * count), 0};
}

device::KernelCost CudaDraftSelect::edges_cost(int64_t streams, int64_t rows, int64_t top_k, int64_t rank) {
  const int64_t all = streams * rows;
  return {all * (2 * (2 * top_k + 1) * rank + 4 * top_k * (top_k + 1)), all * (top_k + 2 * top_k * top_k) * rank};
}

}  // namespace tandem::ops
