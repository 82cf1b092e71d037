// The launch of norms and rotations of heads.
#include "ops/rope/rope_cuda.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace tandem::ops {

CudaRope::CudaRope(device::Gpu& gpu, const std::vector<std::string>& defines)
    : gpu_(gpu), kernel_(gpu.load({"ops/rope/rope.cu", "turn_heads", defines})) {}

void CudaRope::run(RopeArgs args, std::span<const RopePart> parts, int64_t max_rows) const {
  if (std::ssize(parts) > RopeArgs::max_parts)
    throw Error(ErrorCode::internal, "rope", fmt::format("{} parts", parts.size()),
                fmt::format("at most {}", RopeArgs::max_parts));
  if (parts.empty() || max_rows == 0) return;
  std::copy(parts.begin(), parts.end(), args.parts);
  const auto most_heads = std::max_element(parts.begin(), parts.end(), [](const RopePart& a, const RopePart& b) {
                            return a.heads < b.heads;
                          })->heads;
  device::Launch launch{kernel_};
  launch.grid[0] = static_cast<uint32_t>(max_rows);
  launch.grid[1] = static_cast<uint32_t>(parts.size());
  launch.threads = static_cast<uint32_t>(32 * std::clamp(most_heads, 1, 8));
  gpu_.launch(launch, args);
}

device::KernelCost CudaRope::cost(std::span<const RopePart> parts, int64_t head_dim, int64_t rows) {
  device::KernelCost cost;
  for (const RopePart& part : parts) {
    cost.bytes += 2 * 2 * rows * part.heads * head_dim;
    cost.operations += part.norm == nullptr ? 0 : 6 * rows * part.heads * head_dim;
  }
  return cost;
}

}  // namespace tandem::ops
