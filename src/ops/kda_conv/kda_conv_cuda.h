// What stands before and after the KDA recurrence, on a GPU; kda_conv.h and kda_output.h have the formulas.
#pragma once

#include <string>
#include <vector>

#include "device/gpu.h"
#include "device/kernel_cost.h"
#include "ops/kda_conv/kda_conv_args.h"

namespace tandem::ops {

// Throws Error(internal) for a kernel longer than kda_max_taps.
void check_kda_conv(const KdaConvArgs& args);
// The launch of kda_conv_ring that stores the last rows of long segments, where a step of max_rows can have one.
void store_kda_rings(device::Gpu& gpu, device::Kernel ring, const KdaConvArgs& args, int64_t max_rows);

class CudaKdaConv {
 public:
  // dim: that of the defines.
  CudaKdaConv(device::Gpu& gpu, const std::vector<std::string>& defines, int64_t dim);
  // max_rows bounds the step's rows. Throws what check_kda_conv() does.
  void run(const KdaConvArgs& args, int64_t max_rows) const;
  device::KernelCost cost(int64_t heads, int64_t kernel, int64_t rows) const;

 private:
  device::Gpu& gpu_;
  device::Kernel rows_, ring_;
  int64_t dim_;
};

class CudaKdaOutput {
 public:
  CudaKdaOutput(device::Gpu& gpu, const std::vector<std::string>& defines, int64_t dim);
  void run(const KdaOutputArgs& args, int64_t max_rows) const;
  device::KernelCost cost(int64_t heads, int64_t rows) const;

 private:
  device::Gpu& gpu_;
  device::Kernel kernel_;
  int64_t dim_;
};

}  // namespace tandem::ops
