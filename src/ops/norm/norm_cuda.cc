// Launches norm.cu.
#include "ops/norm/norm_cuda.h"

#include <algorithm>

namespace tandem::ops {

CudaNorm::CudaNorm(device::Gpu& gpu, const std::vector<std::string>& defines)
    : gpu_(gpu), kernel_(gpu.load({"ops/norm/norm.cu", "norm_rows", defines})) {}

void CudaNorm::run(std::span<const NormPart> parts, const int32_t* rows, int64_t max_rows) const {
  if (parts.empty() || max_rows == 0) return;
  NormArgs args{};
  args.rows = rows;
  std::copy(parts.begin(), parts.end(), args.parts);
  device::Launch launch{kernel_};
  launch.grid[0] = static_cast<uint32_t>(max_rows);
  launch.grid[1] = static_cast<uint32_t>(parts.size());
  launch.threads = 256;
  gpu_.launch(launch, args);
}

device::KernelCost CudaNorm::cost(std::span<const NormPart> parts, int64_t rows) {
  device::KernelCost cost;
  for (const NormPart& part : parts) {
    const int64_t vectors = (part.weight != nullptr ? 1 : 0) + (part.bias != nullptr ? 1 : 0);
    cost.bytes += rows * part.width * 4 + vectors * part.width * 4;
    cost.operations += rows * part.width * (part.bias != nullptr ? 7 : 4);  // statistics, scale, weight and bias
  }
  return cost;
}

}  // namespace tandem::ops
