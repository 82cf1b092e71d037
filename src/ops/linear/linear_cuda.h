// Matrix products of bf16 rows on a GPU: y = W x for several weights that read the same step's rows, in one launch.
//
// One arithmetic (design.md 1): every output of a row is the same chain of operations whatever kernel runs it. Slices
// of 512 columns, counted from the leaf's first one; inside a slice mma.sync.m16n8k16 on ascending k from a zero
// accumulator, weights as the M operand, zeros past the slice's end up to a multiple of 64; slices are added in
// ascending order in fp32, then leaf 0 + leaf 1, then one rounding. linear_tiles.h says which kernel runs how many
// rows.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "device/gpu.h"
#include "device/kernel_cost.h"
#include "ops/linear/linear_args.h"
#include "ops/linear/linear_tiles.h"

namespace tandem::ops {

class CudaLinear {
 public:
  CudaLinear(device::Gpu& gpu, const std::vector<std::string>& defines);

  // At most LinearArgs::max_calls calls, each over the first *rows (device memory) of max_rows rows, in one launch.
  // Rows of y beyond *rows are left alone. max_rows chooses the kernel and changes no bits. Error(internal) for what
  // linear_args.h rules out.
  void run(std::span<const CudaLinearCall> calls, const int32_t* rows, int64_t max_rows) const;

  // The same with a given tile (linear_tiles.h), for tests and benchmarks.
  void run_with(int32_t tile, std::span<const CudaLinearCall> calls, const int32_t* rows, int64_t max_rows) const;

  // Of a run over `rows` rows.
  static device::KernelCost cost(std::span<const CudaLinearCall> calls, int64_t rows);

 private:
  device::Gpu& gpu_;
  std::vector<device::Kernel> kernels_;  // by tile
};

}  // namespace tandem::ops
