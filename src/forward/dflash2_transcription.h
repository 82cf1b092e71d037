// For tests: spec/speculation.md 1.3 to 1.6 written down line by line in double precision, slow and without a cache.
#pragma once

#include <cmath>
#include <cstring>
#include <map>
#include <numeric>
#include <vector>

#include "forward/dflash2_test_streams.h"
#include "forward/probe.h"

namespace tandem::forward {

using Values = std::vector<double>;

struct DenseMatrix {
  int64_t out = 0, in = 0;
  Values values;
  explicit DenseMatrix(const ops::Matrix& m) : out(m.out_features), in(m.in_features) {
    for (int64_t i = 0; i < out * in; ++i) {
      uint16_t half = 0;
      std::memcpy(&half, m.data + 2 * i, 2);
      values.push_back(std::bit_cast<float>(static_cast<uint32_t>(half) << 16));
    }
  }
  Values operator*(const Values& x) const {
    Values y(static_cast<size_t>(out));
    for (int64_t o = 0; o < out; ++o)
      y[static_cast<size_t>(o)] = std::inner_product(x.begin(), x.end(), values.begin() + o * in, 0.0);
    return y;
  }
  Values row(int64_t o) const { return {values.begin() + o * in, values.begin() + (o + 1) * in}; }
};

// The taps of every position that a run passes, as the text model's streams give them.
class TapRecorder : public Probe {
 public:
  explicit TapRecorder(const model::DrafterShape& shape) : s_(shape) {}
  void begin(int64_t position) { position_ = position; }  // of the first row of the next run
  void streams(int64_t layer, int64_t rows, const float* values) override {
    const auto found = std::find(s_.target_layer_ids.begin(), s_.target_layer_ids.end(), layer);
    if (found == s_.target_layer_ids.end()) return;
    for (int64_t r = 0; r < rows; ++r) {
      Values& tap = taps_[position_ + r];
      tap.resize(static_cast<size_t>(s_.taps() * s_.hidden_size));
      for (int64_t d = 0; d < s_.hidden_size; ++d) {
        const float* x = values + r * 4 * s_.hidden_size + d;
        const float mean = (x[0] + x[s_.hidden_size] + x[2 * s_.hidden_size] + x[3 * s_.hidden_size]) / 4.0f;
        const auto bits = std::bit_cast<uint32_t>(mean);
        const float rounded = std::bit_cast<float>((bits + 0x7fffu + (bits >> 16 & 1u)) & 0xffff0000u);
        tap[static_cast<size_t>((found - s_.target_layer_ids.begin()) * s_.hidden_size + d)] = rounded;
      }
    }
  }
  const Values& at(int64_t position) const { return taps_.at(position); }

 private:
  const model::DrafterShape& s_;
  int64_t position_ = 0;
  std::map<int64_t, Values> taps_;
};

class Transcription {
 public:
  // plain: DFlash without the convolutions.
  Transcription(const model::DrafterShape& shape, const model::DrafterWeights& weights, const TapRecorder& taps,
                bool plain = false)
      : s_(shape), w_(weights), taps_(taps), plain_(plain) {}

  struct Result {
    std::vector<int32_t> ids;
    Values unary, edges;
  };

  // Context of positions in [valid_from, anchor.position).
  Result block(const Anchor& anchor, int64_t valid_from = 0) const {
    const model::TextWeights& target = loaded("nano").weights;
    const DenseMatrix embedding(target.embed_tokens), head(target.lm_head);
    std::vector<Values> x;
    for (int64_t r = 0; r < s_.block_size; ++r) x.push_back(embedding.row(r == 0 ? anchor.pending : s_.mask_token_id));
    for (const model::DrafterLayer& layer : w_.layers) {
      attention(layer, anchor.position, valid_from, x);
      mlp(layer, x);
    }
    Result result;
    std::vector<Values> gates;
    for (int64_t r = 1; r < s_.block_size; ++r) {
      const Values h = norm(x[static_cast<size_t>(r)], w_.norm), logits = head * h;
      std::vector<int32_t> order(logits.size());
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
        return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
      });
      for (int64_t c = 0; c < s_.selector_top_k; ++c) {
        result.ids.push_back(order[static_cast<size_t>(c)]);
        result.unary.push_back(logits[static_cast<size_t>(result.ids.back())]);
      }
      gates.push_back(DenseMatrix(w_.hidden_projection) * h);
    }
    edges(anchor, gates, result);
    return result;
  }

 private:
  Values norm(const Values& x, const std::vector<float>& weight) const {
    const double mean = std::inner_product(x.begin(), x.end(), x.begin(), 0.0) / static_cast<double>(x.size());
    Values y(x.size());
    for (size_t i = 0; i < x.size(); ++i)
      y[i] = x[i] / std::sqrt(mean + static_cast<double>(s_.rms_norm_eps)) * weight[i];
    return y;
  }

  // RMSNorm and rotation of each head.
  Values turned(const Values& heads, const std::vector<float>& weight, int64_t position) const {
    Values out;
    const auto dim = static_cast<size_t>(s_.head_dim);
    for (size_t begin = 0; begin < heads.size(); begin += dim) {
      const Values head =
          norm(Values(heads.begin() + static_cast<int64_t>(begin), heads.begin() + static_cast<int64_t>(begin + dim)),
               weight);
      for (size_t d = 0; d < dim; ++d) {
        const size_t j = d % (dim / 2);
        const double phase = static_cast<double>(position) *
                             std::pow(s_.rope_theta, -2.0 * static_cast<double>(j) / static_cast<double>(dim));
        const double other = d < dim / 2 ? -head[j + dim / 2] : head[j];
        out.push_back(head[d] * std::cos(phase) + other * std::sin(phase));
      }
    }
    return out;
  }

  // `side` 0 or 1; n: the sub-layer's input, from which the coefficients come.
  std::vector<Values> convolution(const model::DrafterConvolution& conv, size_t side, const std::vector<Values>& n,
                                  const std::vector<Values>& in) const {
    if (plain_) return in;
    const DenseMatrix projection(conv.kernel_projection);
    const auto hidden = static_cast<size_t>(s_.hidden_size), groups = static_cast<size_t>(s_.groups());
    std::vector<Values> out;
    for (size_t r = 0; r < in.size(); ++r) {
      const Values delta = projection * n[r];
      Values row(hidden);
      for (size_t c = 0; c < hidden; ++c) {
        const auto tap = [&](size_t t) {
          return static_cast<double>(conv.base_kernel[(side * 2 + t) * hidden + c]) +
                 delta[side * 2 * groups + t * groups + c / static_cast<size_t>(s_.conv_group_size)];
        };
        row[c] = tap(0) * in[r][c] + (r == 0 ? 0.0 : tap(1) * in[r - 1][c]);
      }
      out.push_back(row);
    }
    return out;
  }

  void attention(const model::DrafterLayer& w, int64_t s, int64_t valid_from, std::vector<Values>& x) const {
    const DenseMatrix wq(w.q_proj), wk(w.k_proj), wv(w.v_proj), wo(w.o_proj), fc(w_.fc);
    std::map<int64_t, Values> keys, values;
    for (int64_t p = std::max(valid_from, s - (s_.sliding_window - 1)); p < s; ++p) {
      if (p < 0) continue;
      const Values c = norm(fc * taps_.at(p), w_.hidden_norm);
      keys[p] = turned(wk * c, w.k_norm, p);
      values[p] = wv * c;
    }
    std::vector<Values> n, queries, y;
    for (const Values& row : x) n.push_back(norm(row, w.input_layernorm));
    const std::vector<Values> a = convolution(w.attention_conv, 0, n, n);
    for (size_t r = 0; r < a.size(); ++r) {
      const int64_t p = s + static_cast<int64_t>(r);
      queries.push_back(turned(wq * a[r], w.q_norm, p));
      keys[p] = turned(wk * a[r], w.k_norm, p);
      values[p] = wv * a[r];
    }
    const int64_t dim = s_.head_dim, group = s_.num_attention_heads / s_.num_key_value_heads;
    for (size_t r = 0; r < a.size(); ++r) {
      Values attended;
      for (int64_t head = 0; head < s_.num_attention_heads; ++head) {
        const int64_t kv = head / group * dim;
        Values sum(static_cast<size_t>(dim));
        double total = 0;
        for (const auto& [p, key] : keys) {
          if (p < s && s + static_cast<int64_t>(r) - p > s_.sliding_window - 1) continue;
          const double score =
              std::inner_product(key.begin() + kv, key.begin() + kv + dim, queries[r].begin() + head * dim, 0.0);
          const double weight = std::exp(score / std::sqrt(static_cast<double>(dim)));
          total += weight;
          for (int64_t d = 0; d < dim; ++d)
            sum[static_cast<size_t>(d)] += weight * values[p][static_cast<size_t>(kv + d)];
        }
        for (const double value : sum) attended.push_back(value / total);
      }
      y.push_back(wo * attended);
    }
    add(convolution(w.attention_conv, 1, n, y), x);
  }

  void mlp(const model::DrafterLayer& w, std::vector<Values>& x) const {
    const DenseMatrix gate(w.gate_proj), up(w.up_proj), down(w.down_proj);
    std::vector<Values> n, y;
    for (const Values& row : x) n.push_back(norm(row, w.post_attention_layernorm));
    for (const Values& m : convolution(w.mlp_conv, 0, n, n)) {
      Values g = gate * m;
      const Values u = up * m;
      for (size_t i = 0; i < g.size(); ++i) g[i] = g[i] / (1.0 + std::exp(-g[i])) * u[i];
      y.push_back(down * g);
    }
    add(convolution(w.mlp_conv, 1, n, y), x);
  }

  static void add(const std::vector<Values>& y, std::vector<Values>& x) {
    for (size_t r = 0; r < x.size(); ++r) {
      for (size_t i = 0; i < x[r].size(); ++i) x[r][i] += y[r][i];
    }
  }

  void edges(const Anchor& anchor, const std::vector<Values>& gates, Result& result) const {
    const DenseMatrix a(w_.predecessor_codebook), b(w_.successor_codebook);
    const auto k = static_cast<size_t>(s_.selector_top_k), rank = static_cast<size_t>(s_.selector_rank);
    for (size_t r = 0; r < gates.size(); ++r) {
      for (size_t p = 0; p < k; ++p) {
        const Values previous = a.row(r == 0 ? anchor.pending : result.ids[(r - 1) * k + p]);
        for (size_t c = 0; c < k; ++c) {
          const Values next = b.row(result.ids[r * k + c]);
          double sum = 0;
          for (size_t j = 0; j < rank; ++j) sum += previous[j] * gates[r][j] * next[j];
          result.edges.push_back(sum);
        }
      }
    }
  }

  const model::DrafterShape& s_;
  const model::DrafterWeights& w_;
  const TapRecorder& taps_;
  bool plain_;
};

}  // namespace tandem::forward
