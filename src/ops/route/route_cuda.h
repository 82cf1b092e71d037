// The router on a GPU; route.h has the formula.
#pragma once

#include <string>
#include <vector>

#include "device/gpu.h"
#include "device/kernel_cost.h"
#include "ops/route/route_args.h"

namespace tandem::ops {

class CudaRoute {
 public:
  static constexpr int64_t most_experts = 1024, most_per_token = 32;

  CudaRoute(device::Gpu& gpu, const std::vector<std::string>& defines);
  // The first *args.rows (device memory) of max_rows rows. Throws Error(internal) for more experts than the kernel
  // has room for.
  void run(const RouteArgs& args, int64_t max_rows) const;
  static device::KernelCost cost(int64_t rows, int64_t experts, int64_t per_token);

 private:
  device::Gpu& gpu_;
  device::Kernel kernel_;
};

}  // namespace tandem::ops
