// Embedding rows of bf16 values on a GPU (spec/model.md 2.1, steps 1 and 2).
#pragma once

#include <string>
#include <vector>

#include "device/gpu.h"
#include "device/kernel_cost.h"
#include "ops/embed/embed_args.h"

namespace tandem::ops {

class CudaEmbed {
 public:
  CudaEmbed(device::Gpu& gpu, const std::vector<std::string>& defines);
  // Rows of tokens outside [first_token, first_token + token_count) are left alone: another rank has them.
  void embed(const EmbedArgs& args, int64_t max_rows) const;

  // Of `rows` rows of `width` values, each read once and written `copies` times.
  static device::KernelCost cost(int64_t rows, int64_t width, int64_t copies);

 private:
  device::Gpu& gpu_;
  device::Kernel embed_;
};

}  // namespace tandem::ops
