// Sums in fp64, one thread for each band of the triangle.
#include "eval/input_moments.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "ops/linear/linear.h"
#include "ops/simd/kernels.h"

namespace tandem::eval {

std::string name_of(const InputKey& key) {
  switch (key.site) {
    case InputSite::attention: return "attention";
    case InputSite::query: return "query";
    case InputSite::attention_output: return "attention output";
    case InputSite::mlp: return "mlp";
    case InputSite::mlp_down: return "mlp down";
    case InputSite::expert: return fmt::format("expert {}", key.expert);
    case InputSite::expert_down: return fmt::format("expert {} down", key.expert);
    case InputSite::head: return "head";
  }
  return {};
}

void add_rows(quant::Exl3Moments& moments, const float* x, int64_t rows, const float* weights,
              device::Threads& threads) {
  const int64_t n = moments.features;
  moments.sums.resize(static_cast<size_t>(n * n));
  std::vector<double> values, scaled;  // [rows that count, n]; scaled: times the row's weight
  for (int64_t row = 0; row < rows; ++row) {
    const float* from = x + row * n;
    const double weight = weights == nullptr ? 1 : weights[row];
    if (!std::isfinite(weight) || !std::all_of(from, from + n, [](float v) { return std::isfinite(v); })) {
      ++moments.dropped_rows;
      continue;
    }
    for (int64_t i = 0; i < n; ++i) {
      values.push_back(from[i]);
      scaled.push_back(weight * from[i]);
    }
    moments.weight += weight;
    ++moments.rows;
  }
  if (n == 0) return;
  const int64_t count = std::ssize(values) / n;
  constexpr int64_t band = 16;
  threads.run((n + band - 1) / band, [&](int64_t task) {
    // The widest bands first, so that no thread ends with one.
    const int64_t end = n - task * band, begin = std::max<int64_t>(0, end - band);
    for (int64_t i = begin; i < end; ++i) {
      double* sums = moments.sums.data() + i * n;
      int64_t row = 0;
      for (; row + 4 <= count; row += 4) {  // a sum is loaded once for four rows; the order of its additions stays
        const double* a = scaled.data() + row * n + i;
        const double* b = values.data() + row * n;
        const double a0 = a[0], a1 = a[n], a2 = a[2 * n], a3 = a[3 * n];
        for (int64_t j = 0; j <= i; ++j)
          sums[j] = sums[j] + a0 * b[j] + a1 * b[n + j] + a2 * b[2 * n + j] + a3 * b[3 * n + j];
      }
      for (; row < count; ++row) {
        const double a = scaled[static_cast<size_t>(row * n + i)];
        const double* b = values.data() + row * n;
        for (int64_t j = 0; j <= i; ++j) sums[j] += a * b[j];
      }
    }
  });
}

MomentProbe::MomentProbe(int64_t layer, const model::LayerWeights& weights, const model::Shape& shape, RowWeight weight,
                         std::map<InputKey, quant::Exl3Moments>& moments, device::Threads& threads)
    : layer_(layer), weights_(weights), shape_(shape), weight_(weight), moments_(moments), threads_(threads) {}

quant::Exl3Moments* MomentProbe::wanted(InputKey key) {
  const auto found = moments_.find(key);
  return found == moments_.end() ? nullptr : &found->second;
}

void MomentProbe::inputs(int64_t layer, forward::LinearInput which, int64_t rows, int64_t /*width*/, const float* x) {
  if (layer != layer_) return;
  const auto add = [&](InputSite site) {
    if (quant::Exl3Moments* const moments = wanted({site})) add_rows(*moments, x, rows, nullptr, threads_);
  };
  switch (which) {
    case forward::LinearInput::attention: return add(InputSite::attention);
    case forward::LinearInput::query: return add(InputSite::query);
    case forward::LinearInput::attention_output: return add(InputSite::attention_output);
    case forward::LinearInput::feed_forward: break;
  }
  x_ = x;
  add_mlp(weights_.moe ? weights_.moe->shared : *weights_.mlp, {InputSite::mlp}, {InputSite::mlp_down}, x, rows,
          nullptr);
}

void MomentProbe::routing(int64_t layer, int64_t rows, int64_t per_token, const int32_t* chosen, const float* weights,
                          const float* /*gaps*/) {
  if (layer != layer_) return;
  const int64_t hidden = shape_.hidden_size;
  for (size_t expert = 0; expert < weights_.moe->experts.size(); ++expert) {
    const auto number = static_cast<int64_t>(expert);
    if (wanted({InputSite::expert, number}) == nullptr && wanted({InputSite::expert_down, number}) == nullptr) continue;
    packed_.clear();
    row_weights_.clear();
    for (int64_t i = 0; i < rows * per_token; ++i) {
      if (chosen[i] != number) continue;
      const float* row = x_ + i / per_token * hidden;
      packed_.insert(packed_.end(), row, row + hidden);
      row_weights_.push_back(weight_ == RowWeight::one ? 1.0f : weights[i] * weights[i]);
    }
    add_mlp(weights_.moe->experts[expert], {InputSite::expert, number}, {InputSite::expert_down, number},
            packed_.data(), std::ssize(row_weights_), row_weights_.data());
  }
}

void MomentProbe::add_mlp(const model::MlpWeights& mlp, InputKey in, InputKey down, const float* x, int64_t rows,
                          const float* weights) {
  if (rows == 0) return;
  if (quant::Exl3Moments* const moments = wanted(in)) add_rows(*moments, x, rows, weights, threads_);
  quant::Exl3Moments* const moments = wanted(down);
  if (moments == nullptr) return;
  const int64_t width = mlp.gate_proj.out_features;
  gate_.resize(static_cast<size_t>(rows * width));
  up_.resize(gate_.size());
  ops::linear(threads_, mlp.gate_proj, x, gate_.data(), rows);
  ops::linear(threads_, mlp.up_proj, x, up_.data(), rows);
  ops::kernels().clamped_swiglu(gate_.data(), up_.data(), shape_.swiglu_limit, std::ssize(gate_), gate_.data());
  add_rows(*moments, gate_.data(), rows, weights, threads_);
}

}  // namespace tandem::eval
