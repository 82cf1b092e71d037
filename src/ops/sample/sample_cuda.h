// A token for every row of logits on a GPU: the whole rule of engine::Sampler::select, bit for bit, so that a device
// and a host that look at the same logits choose the same token (spec/speculation.md 3.5, 3.6).
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "device/gpu.h"
#include "device/kernel_cost.h"
#include "ops/sample/sample_args.h"

namespace tandem::ops {

class CudaSample {
 public:
  CudaSample(device::Gpu& gpu, const std::vector<std::string>& defines);
  // The first *args.rows (device memory) of max_rows rows. `scratch`: scratch_bytes(max_rows) or more, aligned to 8
  // bytes; the arguments that lie there need not be set.
  void run(SampleArgs args, std::byte* scratch, int64_t max_rows) const;
  static int64_t scratch_bytes(int64_t max_rows);
  // passes: over a row's logits; 1 where it is greedy, 2 without top_k and top_p, with one of them mostly 4, with
  // both 6.
  static device::KernelCost cost(int64_t rows, int64_t vocab_size, int64_t passes);

 private:
  device::Gpu& gpu_;
  device::Kernel best_, weigh_, rows_;
};

}  // namespace tandem::ops
