// Sampling and the two rounds of spec/quantization.md 2.5.
#include "quant/exl3_scale.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <vector>

#include "quant/exl3_ldlq.h"

namespace tandem::quant {
namespace {

class Sample {
 public:
  Sample(const float* weights, int64_t in, int64_t out) {
    const int64_t rows = in / exl3_tile, columns = out / exl3_tile, tiles = rows * columns;
    const int64_t longest = std::max(rows, columns);
    const auto take = [&](int64_t tile) {
      const size_t at = weights_.size();
      weights_.resize(at + exl3_tile_weights);
      exl3_cut_tile(weights + tile / columns * exl3_tile * out + tile % columns * exl3_tile, out, &weights_[at]);
    };
    for (int64_t i = 0; i < longest; ++i)
      for (int64_t w = 0; w < 3; ++w) take(i % rows * columns + (i + w) % columns);

    std::vector<double> energy(static_cast<size_t>(tiles));
    for (int64_t k = 0; k < in; ++k)
      for (int64_t n = 0; n < out; ++n) {
        const double w = weights[k * out + n];
        energy[static_cast<size_t>(k / exl3_tile * columns + n / exl3_tile)] += w * w;
      }
    std::vector<int64_t> order(static_cast<size_t>(tiles));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&energy](int64_t a, int64_t b) {
      return energy[static_cast<size_t>(a)] < energy[static_cast<size_t>(b)];
    });
    const int64_t extremes = std::min(std::max<int64_t>(8, 3 * longest / 16), (tiles + 1) / 2);
    for (int64_t i = 0; i < extremes; ++i) take(order[static_cast<size_t>(tiles - 1 - i)]);
    for (int64_t i = 0; i < extremes; ++i) take(order[static_cast<size_t>(i)]);
  }

  // Mean of (Q(g·w)/g − w)² for each g, over every `step`th tile.
  std::vector<double> costs(std::span<const double> scales, int64_t step, Exl3TileEncoder& encoder) const {
    const auto tiles = static_cast<int64_t>(weights_.size()) / exl3_tile_weights;
    const int64_t used = (tiles + step - 1) / step, each = used * exl3_tile_weights;
    std::vector<float> scaled(scales.size() * static_cast<size_t>(each));
    for (size_t s = 0; s < scales.size(); ++s) {
      const auto g = static_cast<float>(scales[s]);
      for (int64_t i = 0; i < each; ++i) {
        const int64_t at = i / exl3_tile_weights * step * exl3_tile_weights + i % exl3_tile_weights;
        scaled[s * static_cast<size_t>(each) + static_cast<size_t>(i)] = g * weights_[static_cast<size_t>(at)];
      }
    }
    std::vector<uint16_t> states(scaled.size());
    encoder.encode(scaled.data(), static_cast<int64_t>(scales.size()) * used, states.data());
    const float* values = exl3_values(encoder.codebook());
    std::vector<double> costs;
    for (size_t s = 0; s < scales.size(); ++s) {
      double sum = 0;
      for (size_t i = s * static_cast<size_t>(each); i < (s + 1) * static_cast<size_t>(each); ++i) {
        const double d = static_cast<double>(values[states[i]]) - scaled[i];
        sum += d * d;
      }
      const auto g = static_cast<double>(static_cast<float>(scales[s]));
      costs.push_back(sum / (g * g) / static_cast<double>(each));
    }
    return costs;
  }

 private:
  std::vector<float> weights_;  // tiles in packed order
};

size_t best_of(const std::vector<double>& costs) {
  return static_cast<size_t>(std::min_element(costs.begin(), costs.end()) - costs.begin());
}

constexpr double fine_step = 0.075;

// Five points about `centre`, and the vertex of the parabola through the best and its neighbours.
struct Fine {
  double scale;
  bool interior;
};
Fine fine_search(const Sample& sample, double centre, int64_t step, Exl3TileEncoder& encoder) {
  std::vector<double> scales;
  for (int i = -2; i <= 2; ++i) scales.push_back(std::max(0.01, centre + fine_step * i));
  const std::vector<double> y = sample.costs(scales, step, encoder);
  const size_t best = best_of(y);
  if (best == 0 || best == y.size() - 1) return {scales[best], false};
  const double bend = y[best - 1] - 2 * y[best] + y[best + 1];
  const double offset = bend > 0 ? std::clamp(0.5 * (y[best - 1] - y[best + 1]) / bend, -0.5, 0.5) : 0;
  return {std::max(0.01, scales[best] + fine_step * offset), true};
}

}  // namespace

double exl3_table_scale(Exl3Codebook codebook, int bits) {
  constexpr double scales[3][exl3_max_bits] = {{1.170, 0.967, 0.918, 0.911, 0.911, 0.861, 0.849, 0.838},
                                               {1.109, 1.002, 0.899, 0.948, 0.880, 0.880, 0.849, 0.842},
                                               {0.901, 0.803, 0.732, 0.738, 0.708, 0.668, 0.698, 0.674}};
  return scales[static_cast<int>(codebook)][bits - 1];
}

double exl3_search_scale(const float* weights, int64_t in, int64_t out, Exl3ScaleSearch search,
                         Exl3TileEncoder& encoder) {
  double centre = exl3_table_scale(encoder.codebook(), encoder.bits());
  if (search == Exl3ScaleSearch::none) return centre;
  const Sample sample(weights, in, out);
  if (search == Exl3ScaleSearch::full) {
    std::vector<double> coarse;
    for (int i = 0; i < 10; ++i) coarse.push_back(0.1 + 0.2 * i);
    centre = coarse[best_of(sample.costs(coarse, 3, encoder))];
    return fine_search(sample, centre, 1, encoder).scale;
  }
  constexpr int moves = 4;  // of the window, where the best is at its end
  Fine found{centre, false};
  for (int i = 0; i < moves && !found.interior; ++i) found = fine_search(sample, found.scale, 3, encoder);
  return found.scale;
}

}  // namespace tandem::quant
