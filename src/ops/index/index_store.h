// Index keys: raw rows of the unfinished pool in a ring, pooled keys in pages (spec/model.md 4.5, 4.7).
#pragma once

#include <cstdint>

#include "device/threads.h"
#include "ops/latent/pages.h"

namespace tandem::ops {

constexpr int64_t max_kpool = 64;

// One segment. key and gate are this step's rows of kI (after its LayerNorm) and of the compress gate s.
struct IndexStore {
  int64_t dim = 0, kpool = 0;
  int64_t position = 0, rows = 0;
  const float* key = nullptr;   // [rows, dim]
  const float* gate = nullptr;  // [rows, dim]
  const float* ape = nullptr;   // [kpool, dim]
  float* ring_key = nullptr;    // [ring_rows, dim] by position mod ring_rows; the last rows are added
  float* ring_gate = nullptr;
  int64_t ring_rows = 0;  // power of two ≥ kpool − 1 + the rows that a roll-back may drop
  PagedPlane pooled;      // out: row p = key of pool p for every pool that these rows complete
                          // and whose page lies here
};
void index_store(device::Threads& threads, const IndexStore& args);

// kI = LayerNorm(wk x) with weight and bias, eps 1e-6 whatever rms_norm_eps is (spec/model.md 4.4); all [dim], y may be
// x.
void index_key_norm(const float* x, const float* weight, const float* bias, int64_t dim, float* y);

// Σ_j softmax_j(gates[j] + ape[j])·keys[j] for each channel; keys and gates [kpool] rows of [dim].
void pool_keys(const float* const* keys, const float* const* gates, const float* ape, int64_t kpool, int64_t dim,
               float* out);

}  // namespace tandem::ops
