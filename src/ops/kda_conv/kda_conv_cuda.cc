// Launches of kda_conv.cu and kda_output.cu.
#include "ops/kda_conv/kda_conv_cuda.h"

#include <fmt/core.h>

#include "base/error.h"

namespace tandem::ops {
namespace {

// A step of few rows spreads them over the device; one of many keeps a head's taps in registers for several rows.
int32_t rows_of_warp(int64_t max_rows) { return max_rows <= 64 ? 1 : 8; }

uint32_t blocks_for(int64_t a, int64_t b) { return static_cast<uint32_t>((a + b - 1) / b); }

}  // namespace

void check_kda_conv(const KdaConvArgs& args) {
  if (args.kernel >= 1 && args.kernel <= kda_max_taps) return;
  throw Error(ErrorCode::internal, "kda_conv", fmt::format("a kernel of {} rows", args.kernel),
              fmt::format("1 to {}", kda_max_taps));
}

void store_kda_rings(device::Gpu& gpu, device::Kernel ring, const KdaConvArgs& args, int64_t max_rows) {
  if (max_rows <= kda_ring_rows - (kda_max_taps - 1)) return;  // no segment can be that long
  device::Launch launch{ring};
  launch.threads = 128;
  launch.grid[0] = static_cast<uint32_t>(max_rows);
  gpu.launch(launch, args);
}

CudaKdaConv::CudaKdaConv(device::Gpu& gpu, const std::vector<std::string>& defines, int64_t dim)
    : gpu_(gpu),
      rows_(gpu.load({"ops/kda_conv/kda_conv.cu", "kda_conv_rows", defines})),
      ring_(gpu.load({"ops/kda_conv/kda_conv.cu", "kda_conv_ring", defines})),
      dim_(dim) {}

void CudaKdaConv::run(const KdaConvArgs& given, int64_t max_rows) const {
  check_kda_conv(given);
  if (max_rows == 0 || given.heads == 0) return;
  KdaConvArgs args = given;
  args.rows_of_warp = rows_of_warp(max_rows);
  device::Launch launch{rows_};
  launch.threads = 128;
  launch.grid[0] = blocks_for(max_rows, args.rows_of_warp);
  launch.grid[1] = blocks_for(args.heads, launch.threads / 32);
  gpu_.launch(launch, args);
  store_kda_rings(gpu_, ring_, args, max_rows);
}

device::KernelCost CudaKdaConv::cost(int64_t heads, int64_t kernel, int64_t rows) const {
  const int64_t width = heads * dim_;
  // Raw rows, f, q, k, g, v and the raw row's copy; of a channel the taps, SiLU, the norm and the gate.
  return {rows * (width * (3 * 2 + 2 + 3 * 4 + 2 + 3 * 2) + heads * (2 + 4)) + 4 * width * (3 * kernel + 1),
          rows * width * (3 * 2 * kernel + 3 * 5 + 2 * 3 + 6)};
}

CudaKdaOutput::CudaKdaOutput(device::Gpu& gpu, const std::vector<std::string>& defines, int64_t dim)
    : gpu_(gpu), kernel_(gpu.load({"ops/kda_conv/kda_output.cu", "kda_output_rows", defines})), dim_(dim) {}

void CudaKdaOutput::run(const KdaOutputArgs& args, int64_t max_rows) const {
  if (max_rows == 0 || args.heads == 0) return;
  device::Launch launch{kernel_};
  launch.threads = 256;
  launch.grid[0] = static_cast<uint32_t>(max_rows);
  launch.grid[1] = blocks_for(args.heads, launch.threads / 32);
  gpu_.launch(launch, args);
}

device::KernelCost CudaKdaOutput::cost(int64_t heads, int64_t rows) const {
  return {rows * heads * dim_ * 3 * 2 + 4 * dim_, rows * heads * dim_ * 10};
}

}  // namespace tandem::ops
