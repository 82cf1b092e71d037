// Launches mhc.cu: how many blocks walk over the rows, and what each sub-layer border needs.
#include "ops/mhc/mhc_cuda.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "ops/divide_up.h"

namespace tandem::ops {
namespace {

constexpr int64_t rows_of_tile = 8;  // of mhc_map; also rows of a block that computes post and comb
constexpr int64_t map_blocks_of_multiprocessor = 4;

int64_t mhc_pieces_of(int64_t hidden) { return divide_up(hidden, mhc_piece); }

}  // namespace

CudaMhc::CudaMhc(device::Gpu& gpu, const std::vector<std::string>& defines, int64_t hc_mult, int64_t hidden,
                 int64_t sinkhorn_iters, float hc_eps, float rms_norm_eps)
    : gpu_(gpu),
      map_(gpu.load({"ops/mhc/mhc.cu", "mhc_map", defines})),
      enter_(gpu.load({"ops/mhc/mhc.cu", "mhc_enter", defines})),
      mean_(gpu.load({"ops/mhc/mhc.cu", "mhc_mean", defines})),
      hidden_(static_cast<int32_t>(hidden)),
      sinkhorn_iters_(static_cast<int32_t>(sinkhorn_iters)),
      hc_eps_(hc_eps),
      rms_norm_eps_(rms_norm_eps) {
  if (hc_mult != cuda_streams)
    throw Error(ErrorCode::internal, "config.json: text_config.hc_mult", fmt::format("{}", hc_mult),
                fmt::format("{} on a GPU", cuda_streams));
  if (hidden % 8 != 0)
    throw Error(ErrorCode::internal, "config.json: text_config.hidden_size", fmt::format("{}", hidden),
                "a multiple of 8 on a GPU");
}

int64_t CudaMhc::scratch_bytes(int64_t hidden, int64_t max_rows) {
  return max_rows * mhc_pieces_of(hidden) * mhc_partials * static_cast<int64_t>(sizeof(float));
}

void CudaMhc::map(const CudaMhcRows& at, const device::bf16* y, int64_t y_stride, const device::bf16* fn,
                  int64_t max_rows) const {
  const int64_t pieces = mhc_pieces_of(hidden_);
  // Enough blocks to fill the GPU; each keeps its part of fn for all its rows.
  const int64_t fill = divide_up(map_blocks_of_multiprocessor * gpu_.properties().multiprocessors, pieces);
  device::Launch launch{map_};
  launch.grid[0] = static_cast<uint32_t>(pieces);
  launch.grid[1] = static_cast<uint32_t>(std::min(divide_up(max_rows, rows_of_tile), fill));
  launch.threads = 128;
  const int64_t row_bytes = 2 * cuda_streams * mhc_piece;  // of fn and of a tile of streams
  launch.shared_bytes =
      (mhc_outputs + rows_of_tile) * row_bytes + int64_t{cuda_streams} * rows_of_tile * (mhc_outputs + 4) * 4;
  gpu_.launch(launch, MhcMapArgs{at, fn, y, y_stride, hidden_});
}

void CudaMhc::finish(const CudaMhcRows& at, const CudaMhcSite& site, device::bf16* x, int64_t x_stride,
                     int64_t max_rows) const {
  const auto mix_blocks = static_cast<int32_t>(divide_up(max_rows, 8));
  device::Launch launch{enter_};
  launch.grid[0] = static_cast<uint32_t>(mix_blocks + max_rows);
  launch.threads = 256;
  launch.shared_bytes = int64_t{hidden_} * 2;
  gpu_.launch(launch,
              MhcEnterArgs{at, site, x, x_stride, hidden_, sinkhorn_iters_, mix_blocks, hc_eps_, rms_norm_eps_});
}

void CudaMhc::enter(const CudaMhcRows& at, const CudaMhcSite& site, device::bf16* x, int64_t x_stride,
                    int64_t max_rows) const {
  if (max_rows == 0) return;
  map(at, nullptr, 0, site.fn, max_rows);
  finish(at, site, x, x_stride, max_rows);
}

void CudaMhc::leave_and_enter(const CudaMhcRows& at, const device::bf16* y, int64_t y_stride, const CudaMhcSite& next,
                              device::bf16* x, int64_t x_stride, int64_t max_rows) const {
  if (max_rows == 0) return;
  map(at, y, y_stride, next.fn, max_rows);
  finish(at, next, x, x_stride, max_rows);
}

void CudaMhc::leave(const CudaMhcRows& at, const device::bf16* y, int64_t y_stride, int64_t max_rows) const {
  if (max_rows > 0) map(at, y, y_stride, nullptr, max_rows);
}

void CudaMhc::collapse(const device::bf16* streams, const float* norm, const int32_t* row_list, const int32_t* rows,
                       device::bf16* out, int64_t out_stride, int64_t max_rows) const {
  if (max_rows == 0) return;
  device::Launch launch{mean_};
  launch.grid[0] = static_cast<uint32_t>(max_rows);
  launch.threads = 256;
  launch.shared_bytes = int64_t{hidden_} * 4;
  gpu_.launch(launch, MhcMeanArgs{rows, row_list, streams, norm, out, out_stride, hidden_, rms_norm_eps_});
}

device::KernelCost CudaMhc::cost(int64_t rows) const {
  const int64_t n = cuda_streams, hidden = hidden_, width = n * hidden;
  device::KernelCost cost;
  // Streams read, written and read; y and x; fn.
  cost.bytes = rows * (3 * width + 2 * hidden) * 2 + int64_t{mhc_outputs} * width * 2;
  // Mapping, squares, mixing (y and n streams into n), collapse.
  cost.operations = 2 * rows * (width * mhc_outputs + width + width * (n + 1) + width);
  return cost;
}

}  // namespace tandem::ops
