// Rotary embedding on the CPU.
#include <cmath>

#include "ops/rope/rope.h"

namespace tandem::ops {

void rope_frequencies(double theta, int64_t head_dim, float* frequencies) {
  for (int64_t j = 0; j < head_dim / 2; ++j)
    frequencies[j] = static_cast<float>(std::pow(theta, -2.0 * static_cast<double>(j) / static_cast<double>(head_dim)));
}

void rope_turns(std::span<const int64_t> positions, const float* frequencies, int64_t head_dim, float* turns) {
  const int64_t half = head_dim / 2;
  for (const int64_t position : positions) {
    for (int64_t j = 0; j < half; ++j) {
      const float phase = static_cast<float>(position) * frequencies[j];
      turns[j] = static_cast<float>(std::cos(static_cast<double>(phase)));
      turns[half + j] = static_cast<float>(std::sin(static_cast<double>(phase)));
    }
    turns += head_dim;
  }
}

void rope(const float* turn, int64_t head_dim, float* x) {
  const int64_t half = head_dim / 2;
  const float *cosine = turn, *sine = turn + half;
  for (int64_t j = 0; j < half; ++j) {
    const float a = x[j], b = x[half + j];
    x[j] = a * cosine[j] - b * sine[j];
    x[half + j] = b * cosine[j] + a * sine[j];
  }
}

}  // namespace tandem::ops
