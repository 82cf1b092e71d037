// The feed-forward on a GPU: routed experts with the shared one, or a dense MLP; experts.h has the formula and the
// order of the sums.
//
// Rounding (docs/internals/arithmetic.md): gate and up are not rounded, the activation is bf16, down's outputs and
// their sum are fp32, y is rounded once. Every product is a sum of slices of 512 columns, counted from the leaf's first
// column and added in ascending order, each an ascending chain of mma.m16n8k16 from zero. So the kernel for few rows
// and those for many give the same bits.
//
// Floor: the bytes of the experts that have rows once, 6·hidden·width of each, and 6·hidden·width operations a pair:
// at GLM-5.3-Flash 50.3 MB (11.4 µs at 4.4 TB/s) an expert; 8,192 rows of 8 experts 3.3 TFLOP (4.1 ms at 800 TFLOP/s).
#pragma once

#include <string>
#include <vector>

#include "device/gpu.h"
#include "device/kernel_cost.h"
#include "ops/experts/experts_args.h"

namespace tandem::ops {

// What a layer is; does not change from step to step.
struct ExpertShape {
  int64_t hidden = 0;
  int64_t experts = 0, per_token = 0;          // of the whole layer; 0: dense
  int64_t first_routed = 0, routed_count = 0;  // the experts that are here: all, or those of one leaf
  int64_t width = 0;                           // of a routed expert
  int64_t shared_width = 0;                    // of the shared expert or the dense MLP, as far as it is here; 0: none
  int64_t shared_leaf = 0;                     // its columns [0, shared_leaf) are leaf 0; a rank with one leaf: all
  float swiglu_limit = 0.0f;                   // infinity: no clamp
};

struct ExpertRows {
  const int32_t* rows = nullptr;           // device memory: how many there are
  const int32_t* chosen = nullptr;         // [rows, per_token] ascending
  const float* weights = nullptr;          // [rows, per_token]
  const ExpertPointers* routed = nullptr;  // [routed_count] in device memory
  ExpertPointers shared{};
  const device::bf16* x = nullptr;  // [rows, hidden] at x_stride
  int64_t x_stride = 0;
  // Both leaves and y = bf16(leaf 0 + leaf 1), or one leaf and its fp32 sum. A row for which the leaf has nothing gets
  // −0, so that leaf 0 + leaf 1 skips an empty leaf by itself.
  int32_t leaf = -1;          // −1: both
  device::bf16* y = nullptr;  // [rows, hidden] at y_stride; may not be x
  float* leaf_sum = nullptr;  // [rows, hidden] at y_stride
  int64_t y_stride = 0;
  void* scratch = nullptr;  // scratch_bytes(), 256-byte aligned
};

// Which kernels: by rows of a step and the GPU's target where not said. The bits are the same. warpgroups: many rows by
// experts_warpgroup.cu, for targets that have its instruction; elsewhere it is slower than many_rows.
enum class ExpertKernels { by_rows, few_rows, many_rows, warpgroups };

// gate+up and down by each kind of block.
struct ExpertProducts {
  struct Pair {
    device::Kernel gate_up, down;
  };
  Pair rows_8, rows_32, tiles_32, tiles_128, warpgroup;
};

class CudaExperts {
 public:
  CudaExperts(device::Gpu& gpu, const std::vector<std::string>& defines);

  static int64_t scratch_bytes(const ExpertShape& shape, int64_t max_rows);
  // The first *rows.rows of max_rows rows: one sort, then gate+up, down and the sum.
  // Throws Error(internal) for sizes that the kernels do not have.
  void run(const ExpertShape& shape, const ExpertRows& rows, int64_t max_rows,
           ExpertKernels kernels = ExpertKernels::by_rows) const;
  // distinct: experts with rows; pairs: of rows and experts that are here.
  static device::KernelCost cost(const ExpertShape& shape, int64_t rows, int64_t pairs, int64_t distinct);

 private:
  struct Lists {
    int32_t *row_of, *place_of;
    ExpertTile* tiles;
    int32_t* tile_count;
  };
  struct Outputs {
    const int32_t* place_of;
    const float *routed, *shared;
  };
  void sort(const ExpertShape& shape, const ExpertRows& rows, const Lists& lists, int64_t tile_rows,
            int64_t max_rows) const;
  void combine(const ExpertShape& shape, const ExpertRows& rows, const Outputs& outputs_of, int64_t first_output,
               int64_t outputs, int64_t max_rows) const;

  device::Gpu& gpu_;
  device::Kernel sort_, combine_;
  ExpertProducts products_;
};

}  // namespace tandem::ops
