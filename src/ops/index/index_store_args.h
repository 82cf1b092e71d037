// What host code tells index_store.cu.
#pragma once

#include "ops/step_view.h"

namespace tandem::ops {

struct IndexStoreArgs {
  StepView step;
  const device::bf16* key;   // [rows, dim] after its LayerNorm
  const device::bf16* gate;  // [rows, dim] of the compress gate
  int64_t key_stride, gate_stride;
  const float* ape;  // [kpool, dim]
  // [ring_rows, dim] of each slot by position mod ring_rows; the last rows of the step are added.
  SlotView<device::bf16> key_ring, gate_ring;
  int32_t ring_rows;  // power of two ≥ kpool − 1 + the rows that a roll-back may drop
  int32_t reserved;
  PlaneView pooled;  // bf16 or index_fp8; row p = key of pool p for every pool that these rows complete
};

}  // namespace tandem::ops
