// A token for every row of logits on a GPU: the whole rule of engine::Sampler::select, bit for bit, so that a device
// and a host that look at the same logits choose the same token (spec/speculation.md 3.5, 3.6).
#pragma once

#include <string>
#include <vector>

#include "device/gpu.h"
#include "device/kernel_cost.h"
#include "ops/sample/sample_args.h"

namespace tandem::ops {

class CudaSample {
 public:
  CudaSample(device::Gpu& gpu, const std::vector<std::string>& defines);
  // The first *args.rows (device memory) of max_rows rows.
  void run(const SampleArgs& args, int64_t max_rows) const;
  // passes: over a row's logits; 1 where it is greedy, 2 without top_k and top_p, else mostly 4 and at most 20.
  static device::KernelCost cost(int64_t rows, int64_t vocab_size, int64_t passes);

 private:
  device::Gpu& gpu_;
  device::Kernel kernel_;
};

}  // namespace tandem::ops
