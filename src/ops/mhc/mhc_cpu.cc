// Hyper-connections on the CPU: mapping, Sinkhorn, collapse and write-back.
#include <algorithm>
#include <cmath>

#include "ops/linear/linear.h"
#include "ops/mhc/mhc.h"
#include "ops/norm/norm.h"
#include "ops/row_tasks.h"
#include "ops/simd/kernels.h"

namespace tandem::ops {
namespace {

constexpr int64_t rows_of_task = 8;

// 20 column steps and 19 row steps, the last a column step: C is normalised towards a doubly stochastic matrix.
void sinkhorn(float* c, int64_t n, int64_t iterations, float eps) {
  for (int64_t step = 0; step < 2 * iterations - 1; ++step) {
    const int64_t line = step % 2 == 0 ? 1 : n, along = step % 2 == 0 ? n : 1;  // even: columns (sum over rows)
    for (int64_t a = 0; a < n; ++a) {
      float sum = 0.0f;
      for (int64_t b = 0; b < n; ++b) sum += c[a * line + b * along];
      sum += eps;
      for (int64_t b = 0; b < n; ++b) c[a * line + b * along] /= sum;
    }
  }
}

void row_softmax(float* c, int64_t n) {
  const Kernels& k = kernels();
  for (int64_t i = 0; i < n; ++i) {
    float* row = c + i * n;
    k.exp_minus(row, *std::max_element(row, row + n), n, row);
    const float sum = k.sum(row, n);
    for (int64_t j = 0; j < n; ++j) row[j] /= sum;
  }
}

void enter_row(const MhcEnter& a, int64_t row) {
  const Kernels& k = kernels();
  const float* streams = a.streams + row * a.n * a.hidden;
  float* m = a.mapping + row * (2 + a.n) * a.n;
  const int64_t width = a.n * a.hidden;
  const float r = 1.0f / std::sqrt(k.dot(streams, streams, width) / static_cast<float>(width) + a.rms_norm_eps);
  k.scale(m, r, (2 + a.n) * a.n, m);
  float pre[max_streams];
  mhc_mapping(a, m, pre, a.post + row * a.n, a.comb + row * a.n * a.n);
  float* x = a.x + row * a.hidden;
  CombineRows collapse;
  collapse.base = reinterpret_cast<const std::byte*>(streams);
  collapse.base_stride = a.hidden * 4;
  collapse.count = a.n;
  collapse.dims = a.hidden;
  collapse.x = pre;
  collapse.rows = 1;
  collapse.out = x;
  k.combine_rows(collapse);
  round_values(a.compute, RoundingPoint::collapsed, x, a.hidden);
  rms_norm(x, a.norm, a.rms_norm_eps, a.hidden, x);
  round_values(a.compute, RoundingPoint::norm, x, a.hidden);
}

void leave_row(const MhcLeave& args, int64_t row) {
  const Kernels& k = kernels();
  constexpr int64_t piece = 256;  // columns at a time, so that the old streams fit a small copy
  float old[max_streams * piece];
  float* streams = args.streams + row * args.n * args.hidden;
  for (int64_t d = 0; d < args.hidden; d += piece) {
    const int64_t n = std::min(piece, args.hidden - d);
    for (int64_t s = 0; s < args.n; ++s) {
      std::copy(streams + s * args.hidden + d, streams + s * args.hidden + d + n, old + s * piece);
      k.scale(args.y + row * args.hidden + d, args.post[row * args.n + s], n, streams + s * args.hidden + d);
    }
    CombineRows mix;  // destination j = row of the result, source i = list
    mix.base = reinterpret_cast<const std::byte*>(old);
    mix.base_stride = piece * 4;
    mix.count = args.n;
    mix.dims = n;
    mix.x = args.comb + row * args.n * args.n;
    mix.x_stride = 1;
    mix.x_step = args.n;
    mix.rows = args.n;
    mix.init = streams + d;
    mix.init_stride = args.hidden;
    mix.out = streams + d;
    mix.out_stride = args.hidden;
    k.combine_rows(mix);
    for (int64_t s = 0; s < args.n; ++s)
      round_values(args.compute, RoundingPoint::stream, streams + s * args.hidden + d, n);
  }
}

}  // namespace

void mhc_mapping(const MhcEnter& a, float* m, float* pre, float* post, float* comb) {
  const Kernels& k = kernels();
  const int64_t n = a.n, values = (2 + n) * n;
  for (int64_t i = 0; i < values; ++i) m[i] = m[i] * a.scale[i < n ? 0 : i < 2 * n ? 1 : 2] + a.base[i];
  k.sigmoid(m, n, pre);
  k.sigmoid(m + n, n, post);
  for (int64_t s = 0; s < n; ++s) {
    pre[s] += a.hc_eps;
    post[s] *= 2.0f;
  }
  std::copy(m + 2 * n, m + values, comb);
  row_softmax(comb, n);
  for (int64_t i = 0; i < n * n; ++i) comb[i] += a.hc_eps;
  sinkhorn(comb, n, a.sinkhorn_iters, a.hc_eps);
}

void mhc_enter(device::Threads& threads, const MhcEnter& args) {
  const int64_t values = (2 + args.n) * args.n;
  const LinearCall call{args.fn, args.streams, args.n * args.hidden, args.mapping, values};
  linear(threads, std::span(&call, 1), args.rows);
  for_rows(threads, args.rows, rows_of_task, [&args](int64_t row) { enter_row(args, row); });
}

void mhc_leave(device::Threads& threads, const MhcLeave& args) {
  for_rows(threads, args.rows, rows_of_task, [&args](int64_t row) { leave_row(args, row); });
}

}  // namespace tandem::ops
