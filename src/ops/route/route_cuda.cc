// The router's launch.
#include "ops/route/route_cuda.h"

#include <fmt/format.h>

#include "base/error.h"

namespace tandem::ops {

CudaRoute::CudaRoute(device::Gpu& gpu, const std::vector<std::string>& defines)
    : gpu_(gpu), kernel_(gpu.load({"ops/route/route.cu", "route_rows", defines})) {}

void CudaRoute::run(const RouteArgs& args, int64_t max_rows) const {
  if (args.experts > most_experts || args.per_token > most_per_token || args.per_token > args.experts) {
    throw Error(ErrorCode::internal, "router", fmt::format("{} of {} experts", args.per_token, args.experts),
                fmt::format("at most {} of {}", most_per_token, most_experts));
  }
  if (max_rows == 0) return;
  constexpr int64_t rows_of_block = 4;
  device::Launch launch{kernel_};
  launch.grid[0] = static_cast<uint32_t>((max_rows + rows_of_block - 1) / rows_of_block);
  launch.threads = 32 * rows_of_block;
  gpu_.launch(launch, args);
}

device::KernelCost CudaRoute::cost(int64_t rows, int64_t experts, int64_t per_token) {
  return {4 * (rows * experts + experts + 2 * rows * per_token), 0};
}

}  // namespace tandem::ops
