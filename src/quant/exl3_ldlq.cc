// Feedback products are blocked: within a span of 128 rows strip by strip, and a finished span's errors at once for
// all rows above. Each target is one chain of fp32 additions in a fixed order, whatever the threads.
#include "quant/exl3_ldlq.h"

#include <algorithm>

#include "quant/exl3_viterbi_levels.h"

namespace tandem::quant {
namespace {

constexpr int64_t span = 128;
constexpr int64_t ldlq_chunk = 256;  // columns of one task

}  // namespace

void exl3_cut_tile(const float* corner, int64_t stride, float* tile) {
  for (int t = 0; t < exl3_tile_weights; ++t) tile[t] = corner[exl3_row(t) * stride + exl3_column(t)];
}

Exl3Coded exl3_ldlq(const std::vector<float>& weights, int64_t in, int64_t out, const Exl3Factor& factor,
                    Exl3TileEncoder& encoder) {
  const Exl3Kernels& kernels = exl3_kernels();
  const float* const codes = exl3_values(encoder.codebook());
  const int64_t tiles = out / exl3_tile, bytes = exl3_tile_bytes(encoder.bits()),
                chunks = (out + ldlq_chunk - 1) / ldlq_chunk;
  const bool feeds_back = !factor.fallback();
  Exl3Coded coded;
  coded.trellis.resize(static_cast<size_t>(in / exl3_tile * tiles * bytes));
  coded.values.resize(weights.size());
  std::vector<float> target = weights;                         // grows by the feedback as errors become known
  std::vector<float> errors(static_cast<size_t>(span * out));  // of the span at hand
  std::vector<float> cut(static_cast<size_t>(exl3_tile * out));
  std::vector<uint16_t> states(cut.size());

  // target rows [first, first + rows) += feedback of the errors of inputs [from, to), all in the span that starts at
  // `base`.
  const auto add_feedback = [&](int64_t first, int64_t rows, int64_t from, int64_t to, int64_t base) {
    const int64_t groups = rows / exl3_tile;
    encoder.threads().run(groups * chunks, [&](int64_t task) {
      const int64_t left = task % chunks * ldlq_chunk, width = std::min(ldlq_chunk, out - left);
      const int64_t top = first + task / chunks * exl3_tile;
      for (int64_t r = top; r < top + exl3_tile; ++r) {
        kernels.add_rows(factor.feedback.data() + r * in + from, 1, errors.data() + (from - base) * out + left, out,
                         to - from, target.data() + r * out + left, width);
      }
    });
  };

  for (int64_t base = in - span; base >= 0; base -= span) {
    for (int64_t row = base + span - exl3_tile; row >= base; row -= exl3_tile) {
      const int64_t known = row + exl3_tile;
      if (feeds_back && known < base + span) add_feedback(row, exl3_tile, known, base + span, base);
      for (int64_t tn = 0; tn < tiles; ++tn)
        exl3_cut_tile(target.data() + row * out + tn * exl3_tile, out, cut.data() + tn * exl3_tile_weights);
      encoder.encode(cut.data(), tiles, states.data());
      for (int64_t tn = 0; tn < tiles; ++tn) {
        const uint16_t* tile = states.data() + tn * exl3_tile_weights;
        exl3_pack(tile, encoder.bits(), coded.trellis.data() + (row / exl3_tile * tiles + tn) * bytes);
        for (int t = 0; t < exl3_tile_weights; ++t) {
          const int64_t at = (row + exl3_row(t)) * out + tn * exl3_tile + exl3_column(t);
          const float value = codes[tile[t]];
          coded.values[static_cast<size_t>(at)] = value;
          errors[static_cast<size_t>(at - base * out)] = weights[static_cast<size_t>(at)] - value;
        }
      }
    }
    if (feeds_back) add_feedback(0, base, base, base + span, base);
  }
  return coded;
}

double exl3_proxy_error(const std::vector<float>& weights, const std::vector<float>& values, int64_t in, int64_t out,
                        const Exl3Factor& factor, device::Threads& threads) {
  std::vector<float> errors(weights.size());
  for (size_t i = 0; i < errors.size(); ++i) errors[i] = weights[i] - values[i];
  // Σ over rows r of m[r]·(H·m)[r], in blocks that stay in the caches.
  constexpr int64_t height = 32, depth = 64;
  const int64_t blocks = in / height, chunks = (out + ldlq_chunk - 1) / ldlq_chunk;
  const auto trace = [&](const std::vector<float>& m) {
    std::vector<double> sums(static_cast<size_t>(blocks * chunks));
    threads.run(blocks * chunks, [&](int64_t task) {
      const int64_t top = task / chunks * height, left = task % chunks * ldlq_chunk,
                    width = std::min(ldlq_chunk, out - left);
      std::vector<float> products(static_cast<size_t>(height * ldlq_chunk));
      const auto own = [&](int64_t r) { return m.data() + (top + r) * out + left; };
      const auto product = [&](int64_t r) { return products.data() + r * ldlq_chunk; };
      if (factor.fallback()) {
        for (int64_t r = 0; r < height; ++r) std::copy_n(own(r), width, product(r));
      } else {
        for (int64_t k = 0; k < in; k += depth)
          for (int64_t r = 0; r < height; ++r)
            exl3_kernels().add_rows(factor.hessian.data() + (top + r) * in + k, 1, m.data() + k * out + left, out,
                                    depth, product(r), width);
      }
      double sum = 0;
      for (int64_t r = 0; r < height; ++r)
        for (int64_t n = 0; n < width; ++n) sum += static_cast<double>(own(r)[n]) * product(r)[n];
      sums[static_cast<size_t>(task)] = sum;
    });
    double sum = 0;
    for (const double one : sums) sum += one;
    return sum;
  };
  const double error = trace(errors), total = trace(weights);
  return error / std::max(total, 1e-8);
}

}  // namespace tandem::quant
