// Manifold-constrained hyper-connections: the four residual streams around every sub-layer (spec/model.md 2.3).
#pragma once

#include <cstdint>

#include "device/threads.h"
#include "ops/linear/matrix.h"
#include "ops/rounding.h"

namespace tandem::ops {

constexpr int64_t max_streams = 8;  // hc_mult

// Mapping, collapse and the sub-layer's input norm:
// (pre, post, comb) = mapping(streams); x = RMSNorm(Σ_s pre[s]·streams[s]; norm).
struct MhcEnter {
  const Matrix* fn = nullptr;    // [(2+n)·n, n·hidden]
  const float* base = nullptr;   // [(2+n)·n]
  const float* scale = nullptr;  // [3]: pre, post, comb
  const float* norm = nullptr;   // [hidden]
  int64_t n = 4, hidden = 0, sinkhorn_iters = 20;
  float hc_eps = 1e-6f, rms_norm_eps = 1e-5f;
  const float* streams = nullptr;  // [rows, n, hidden]
  int64_t rows = 0;
  float* mapping = nullptr;        // scratch [rows, (2+n)·n]
  float* post = nullptr;           // out [rows, n]
  float* comb = nullptr;           // out [rows, n (source), n (destination)]
  float* x = nullptr;              // out [rows, hidden]
  Compute compute = Compute::f32;  // rounds Σ_s pre[s]·streams[s], then x
};
void mhc_enter(device::Threads& threads, const MhcEnter& args);

// streams[j] ← post[j]·y + Σ_i comb[i][j]·streams[i], i ascending, y first.
struct MhcLeave {
  int64_t n = 4, hidden = 0;
  float* streams = nullptr;     // [rows, n, hidden]
  const float* y = nullptr;     // [rows, hidden]
  const float* post = nullptr;  // [rows, n]
  const float* comb = nullptr;  // [rows, n, n]
  int64_t rows = 0;
  Compute compute = Compute::f32;  // rounds the streams
};
void mhc_leave(device::Threads& threads, const MhcLeave& args);

// The mapping's fp32 numbers from m = r·(fn·f), steps 3-6; m [(2+n)·n] is overwritten. pre [n], post [n], comb [n·n].
void mhc_mapping(const MhcEnter& args, float* m, float* pre, float* post, float* comb);

}  // namespace tandem::ops
