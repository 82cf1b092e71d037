// Convolution, normalisation and gates of KDA on the CPU.
#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"
#include "ops/kda_conv/kda_conv.h"
#include "ops/simd/kernels.h"

namespace tandem::ops {
namespace {

constexpr int64_t max_kernel = 16;

void l2_normalise(float* x, int64_t n, float factor) {
  const Kernels& k = kernels();
  k.scale(x, 1.0f / std::sqrt(k.dot(x, x, n) + kda_norm_eps) * factor, n, x);
}

void head_row(const KdaConv& a, const std::array<const float*, max_kernel>& rows, int64_t row, int64_t head) {
  const Kernels& k = kernels();
  const int64_t width = a.heads * a.dim, channel = head * a.dim;
  float* const outputs[3] = {a.q, a.k, a.v};
  for (int64_t part = 0; part < 3; ++part) {
    std::array<const float*, max_kernel> shifted{};
    for (int64_t tap = 0; tap < a.kernel; ++tap) {
      shifted[static_cast<size_t>(tap)] = rows[static_cast<size_t>(tap)] + part * width + channel;
    }
    float* out = outputs[part] + row * width + channel;
    k.convolve_silu(shifted.data(), a.taps + part * width + channel, 3 * width, a.kernel, a.dim, out);
    round_values(a.compute, RoundingPoint::kda_conv, out, a.dim);
  }
  l2_normalise(a.q + row * width + channel, a.dim, 1.0f / std::sqrt(static_cast<float>(a.dim)));
  l2_normalise(a.k + row * width + channel, a.dim, 1.0f);
  k.decay_gate(a.f + row * width + channel, a.dt_bias + channel, a.rate[head], a.gate_lower_bound, a.dim,
               a.g + row * width + channel);
}

}  // namespace

void kda_conv(device::Threads& threads, const KdaConv& a) {
  if (a.kernel > max_kernel) throw Error(ErrorCode::internal, "kda_conv", "kernel too long");
  const int64_t channels = 3 * a.heads * a.dim;
  for (int64_t p = a.position - a.kernel + 1; p < 0; ++p) {  // before the first row the inputs are zero
    std::fill_n(a.ring + (p & (a.ring_rows - 1)) * channels, channels, 0.0f);
  }
  const auto raw_row = [&](int64_t position) -> const float* {
    if (position >= a.position) return a.raw + (position - a.position) * channels;
    return a.ring + (position & (a.ring_rows - 1)) * channels;
  };
  const int64_t rows_of_task = std::max<int64_t>(1, 8192 / channels);
  threads.run((a.rows + rows_of_task - 1) / rows_of_task, [&](int64_t task) {
    const int64_t end = std::min(a.rows, (task + 1) * rows_of_task);
    for (int64_t row = task * rows_of_task; row < end; ++row) {
      std::array<const float*, max_kernel> rows{};
      for (int64_t tap = 0; tap < a.kernel; ++tap)
        rows[static_cast<size_t>(tap)] = raw_row(a.position + row - a.kernel + 1 + tap);
      for (int64_t head = 0; head < a.heads; ++head) head_row(a, rows, row, head);
      kernels().sigmoid(a.b + row * a.heads, a.heads, a.b + row * a.heads);
    }
  });
  for (int64_t row = std::max<int64_t>(0, a.rows - a.ring_rows); row < a.rows; ++row) {
    std::copy_n(a.raw + row * channels, channels, a.ring + ((a.position + row) & (a.ring_rows - 1)) * channels);
  }
}

}  // namespace tandem::ops
