// Checks and launches of matrix products: how the blocks of a launch are dealt out to its calls.
#include "ops/linear/linear_cuda.h"

#include <fmt/format.h>

#include "base/error.h"

namespace tandem::ops {
namespace {

bool aligned(const void* pointer, uintptr_t bytes) { return reinterpret_cast<uintptr_t>(pointer) % bytes == 0; }

void check(const CudaLinearCall& call) {
  const CudaMatrix& w = call.matrix;
  if (w.leaf_columns < 0 || w.leaf_columns > w.in_features || w.row_stride < w.in_features || call.batch < 1)
    throw Error(ErrorCode::internal, "CudaLinear",
                fmt::format("leaf of {} columns, stride {}, batch {} of a [{}, {}] weight", w.leaf_columns,
                            w.row_stride, call.batch, w.out_features, w.in_features));
  const int64_t values[] = {w.in_features, w.row_stride,        w.leaf_columns,
                            call.x_stride, call.w_batch_stride, call.x_batch_stride};
  for (const int64_t value : values) {
    if (value % 8 != 0)
      throw Error(ErrorCode::internal, "CudaLinear", fmt::format("{} values", value), "a multiple of 8");
  }
  if (!aligned(w.data, 16) || !aligned(call.x, 16))
    throw Error(ErrorCode::internal, "CudaLinear", "a weight or rows between two 16-byte borders");
}

bool wide_stores(const CudaLinearCall& call) {
  return call.matrix.out_features % 4 == 0 && call.y_stride % 4 == 0 && call.y_batch_stride % 4 == 0 &&
         aligned(call.y, call.y_is_fp32 ? 16 : 8);
}

}  // namespace

CudaLinear::CudaLinear(device::Gpu& gpu, const std::vector<std::string>& defines) : gpu_(gpu) {
  for (int32_t i = 0; i < linear_tile_count; ++i)
    kernels_.push_back(gpu.load({linear_tile(i).source, linear_tile(i).kernel, defines}));
}

void CudaLinear::run(std::span<const CudaLinearCall> calls, const int32_t* rows, int64_t max_rows) const {
  int64_t outputs = 0;
  for (const CudaLinearCall& call : calls) outputs += int64_t{call.matrix.out_features} * call.batch;
  const device::GpuProperties& gpu = gpu_.properties();
  run_with(choose_linear_tile(max_rows, outputs, gpu.target, gpu.multiprocessors, gpu.shared_bytes), calls, rows,
           max_rows);
}

void CudaLinear::run_with(int32_t index, std::span<const CudaLinearCall> calls, const int32_t* rows,
                          int64_t max_rows) const {
  if (calls.size() > LinearArgs::max_calls)
    throw Error(ErrorCode::internal, "CudaLinear", fmt::format("{} calls", calls.size()),
                fmt::format("at most {}", LinearArgs::max_calls));
  if (max_rows == 0) return;
  const LinearTile& tile = linear_tile(index);
  if (tile.by_slices && max_rows > tile.rows)
    throw Error(ErrorCode::internal, "CudaLinear", fmt::format("{} rows for {}", max_rows, tile.kernel));
  LinearArgs args{};
  args.rows = rows;
  args.row_tiles = static_cast<int32_t>((max_rows + tile.rows - 1) / tile.rows);
  int32_t blocks = 0;
  for (const CudaLinearCall& call : calls) {
    check(call);
    if (call.matrix.out_features == 0) continue;
    LinearArgs::Part& part = args.parts[args.parts_used++];
    part.call = call;
    part.first_block = blocks;
    part.split = warps_of_linear_tile(call.matrix.in_features, call.matrix.leaf_columns, tile.threads / 32);
    const int32_t outputs_of_block = tile.by_slices ? tile.outputs * (tile.threads / 32 / part.split) : tile.outputs;
    part.tiles = (call.matrix.out_features + outputs_of_block - 1) / outputs_of_block;
    part.wide_stores = wide_stores(call);
    blocks += part.tiles * call.batch * args.row_tiles;
  }
  if (blocks == 0) return;
  device::Launch launch{kernels_[static_cast<size_t>(index)]};
  launch.grid[0] = static_cast<uint32_t>(blocks);
  launch.threads = static_cast<uint32_t>(tile.threads);
  launch.shared_bytes = tile.shared_bytes;
  gpu_.launch(launch, args);
}

device::KernelCost CudaLinear::cost(std::span<const CudaLinearCall> calls, int64_t rows) {
  device::KernelCost cost;
  for (const CudaLinearCall& call : calls) {
    const int64_t out = call.matrix.out_features, in = call.matrix.in_features;
    cost.bytes += call.batch * (out * in * 2 + rows * in * 2 + rows * out * (call.y_is_fp32 ? 4 : 2));
    cost.operations += call.batch * 2 * rows * out * in;
  }
  return cost;
}

}  // namespace tandem::ops
