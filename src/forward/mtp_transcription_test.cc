// Chains where a row no longer attends to everything, against the formulas written down once more, slowly and in double
// precision: MTP rows (spec/model.md 6.1), the indexer (4.5), and the selection that a chain's rows share (6.4): what
// the last absorbed row selected, then the rows of the chain.
#include <algorithm>
#include <cmath>

#include "forward/mtp_test_streams.h"

namespace tandem::forward::mtp_transcription_test {
namespace {

using Vec = std::vector<double>;

double value_at(const model::Matrix& m, int64_t row, int64_t column) {
  const int64_t at = row * m.stride() + column;
  float value;
  if (m.format == ops::WeightFormat::f32) {
    std::memcpy(&value, m.data + at * 4, 4);
  } else {
    uint16_t half;
    std::memcpy(&half, m.data + at * 2, 2);
    const uint32_t bits = static_cast<uint32_t>(half) << 16;
    std::memcpy(&value, &bits, 4);
  }
  return value;
}

Vec multiply(const model::Matrix& m, const Vec& x) {
  Vec y(static_cast<size_t>(m.out_features));
  for (size_t r = 0; r < y.size(); ++r) {
    for (size_t c = 0; c < x.size(); ++c) y[r] += value_at(m, static_cast<int64_t>(r), static_cast<int64_t>(c)) * x[c];
  }
  return y;
}

double dot(const Vec& a, const Vec& b, size_t at_a = 0, size_t at_b = 0, size_t count = 0) {
  double sum = 0;
  for (size_t i = 0; i < (count == 0 ? a.size() : count); ++i) sum += a[at_a + i] * b[at_b + i];
  return sum;
}

Vec rms_norm(const Vec& x, const model::Vector& weight, double eps) {
  const double scale = 1 / std::sqrt(dot(x, x) / static_cast<double>(x.size()) + eps);
  Vec y(x.size());
  for (size_t i = 0; i < x.size(); ++i) y[i] = x[i] * scale * weight[i];
  return y;
}

Vec layer_norm(const Vec& x, const model::Vector& weight, const model::Vector& bias) {
  double mean = 0, variance = 0;
  for (const double value : x) mean += value / static_cast<double>(x.size());
  for (const double value : x) variance += (value - mean) * (value - mean) / static_cast<double>(x.size());
  Vec y(x.size());
  for (size_t i = 0; i < x.size(); ++i) y[i] = (x[i] - mean) / std::sqrt(variance + 1e-6) * weight[i] + bias[i];
  return y;
}

void softmax(Vec& scores) {
  const double largest = *std::max_element(scores.begin(), scores.end());
  double sum = 0;
  for (double& score : scores) sum += score = std::exp(score - largest);
  for (double& score : scores) score /= sum;
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// One stream's MTP layer.
class SlowMtp {
 public:
  SlowMtp(const model::Shape& shape, const model::TextWeights& weights)
      : s_(shape), weights_(weights), w_(*weights.mtp), dsa_(*w_.layer.dsa), moe_(*w_.layer.moe) {}

  // A row with the text model's hidden (absorb), or a chain's with the hidden that the row before it left. Returns m,
  // which of a row that is only stored nobody needs.
  enum class Kind { store, absorb, chain };
  Vec row(size_t position, int32_t token, const Vec& hidden, Kind kind) {
    Vec input(hidden.size());
    if (position > 0) {
      for (size_t i = 0; i < input.size(); ++i)
        input[i] = value_at(weights_.embed_tokens, token, static_cast<int64_t>(i));
    }
    input = rms_norm(input, w_.enorm, s_.rms_norm_eps);
    const Vec second = rms_norm(hidden, w_.hnorm, s_.rms_norm_eps);
    input.insert(input.end(), second.begin(), second.end());
    Vec u = multiply(w_.eh_proj, input);
    const Vec x = rms_norm(u, w_.layer.input_layernorm, s_.rms_norm_eps);
    store(position, x);
    if (kind == Kind::store) return {};
    add(u, attention(position, x, kind == Kind::chain));
    add(u, experts(rms_norm(u, w_.layer.post_attention_layernorm, s_.rms_norm_eps)));
    return rms_norm(u, w_.shared_head_norm, s_.rms_norm_eps);
  }
  Vec logits(const Vec& m) const { return multiply(weights_.lm_head, m); }
  const std::vector<size_t>& selected() const { return selected_; }

 private:
  static void add(Vec& x, const Vec& y) {
    for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
  }
  static size_t size(int64_t n) { return static_cast<size_t>(n); }

  void store(size_t t, const Vec& x) {
    for (auto* rows : {&kv_, &index_key_, &gate_}) rows->resize(t + 1);
    kv_[t] = multiply(dsa_.kv_b_proj, rms_norm(multiply(dsa_.kv_a_proj, x), dsa_.kv_a_layernorm, s_.rms_norm_eps));
    index_key_[t] = layer_norm(multiply(dsa_.indexer.wk, x), dsa_.indexer.k_norm_weight, dsa_.indexer.k_norm_bias);
    gate_[t] = multiply(dsa_.indexer.compress_gate, x);
  }

  Vec attention(size_t t, const Vec& x, bool chain) {
    const Vec a = rms_norm(multiply(dsa_.q_a_proj, x), dsa_.q_a_layernorm, s_.rms_norm_eps);
    if (chain) {
      selected_.push_back(t);
    } else {
      select(t, multiply(dsa_.indexer.wq_b, a), multiply(dsa_.indexer.weights_proj, x));
    }
    const Vec q = multiply(dsa_.q_b_proj, a);
    const size_t key = size(s_.qk_nope_head_dim), value = size(s_.v_head_dim);
    Vec all;
    for (size_t head = 0; head < size(s_.num_attention_heads); ++head) {
      const size_t first = head * (key + value);
      Vec scores, o(value);
      for (const size_t j : selected_)
        scores.push_back(dot(q, kv_[j], head * key, first, key) / std::sqrt(static_cast<double>(key)));
      softmax(scores);
      for (size_t i = 0; i < scores.size(); ++i) {
        for (size_t d = 0; d < value; ++d) o[d] += scores[i] * kv_[selected_[i]][first + key + d];
      }
      all.insert(all.end(), o.begin(), o.end());
    }
    return multiply(dsa_.o_proj, all);
  }

  Vec pool_key(size_t pool) const {
    const size_t kpool = size(s_.index_kpool), dim = size(s_.index_head_dim);
    Vec key(dim);
    for (size_t d = 0; d < dim; ++d) {
      Vec share(kpool);
      for (size_t j = 0; j < kpool; ++j) share[j] = gate_[pool * kpool + j][d] + dsa_.indexer.compress_ape[j * dim + d];
      softmax(share);
      for (size_t j = 0; j < kpool; ++j) key[d] += share[j] * index_key_[pool * kpool + j][d];
    }
    return key;
  }

  void select(size_t t, const Vec& q, const Vec& weights) {
    const size_t kpool = size(s_.index_kpool), dim = size(s_.index_head_dim), pools = (t + 1) / kpool;
    std::vector<std::pair<double, size_t>> best;
    for (size_t pool = 0; pool < pools; ++pool) {
      const Vec key = pool_key(pool);
      double score = 0;
      for (size_t head = 0; head < weights.size(); ++head)
        score += weights[head] * std::max(0.0, dot(q, key, head * dim, 0, dim));
      best.emplace_back(-score, pool);  // the positive factors do not change the order
    }
    std::sort(best.begin(), best.end());
    best.resize(std::min(pools, size(s_.pool_budget())));
    selected_.clear();
    for (const auto& [score, pool] : best) {
      for (size_t j = 0; j < kpool; ++j) selected_.push_back(pool * kpool + j);
    }
    for (size_t p = pools * kpool; p <= t; ++p) selected_.push_back(p);
    std::sort(selected_.begin(), selected_.end());
  }

  Vec mlp(const model::MlpWeights& w, const Vec& x) const {
    Vec a = multiply(w.gate_proj, x);
    const Vec b = multiply(w.up_proj, x);
    const double limit = s_.swiglu_limit;
    for (size_t i = 0; i < a.size(); ++i) {
      const double gate = std::min(a[i], limit);
      a[i] = gate * sigmoid(gate) * std::clamp(b[i], -limit, limit);
    }
    return multiply(w.down_proj, a);
  }

  Vec experts(const Vec& x) const {
    Vec share = multiply(moe_.gate, x);
    std::vector<std::pair<double, size_t>> order;
    for (size_t e = 0; e < share.size(); ++e) {
      share[e] = sigmoid(share[e]);
      order.emplace_back(-(share[e] + moe_.e_score_correction_bias[e]), e);
    }
    std::sort(order.begin(), order.end());
    order.resize(size(s_.num_experts_per_tok));
    double sum = 0;
    for (const auto& [score, e] : order) sum += share[e];
    Vec y = mlp(moe_.shared, x);
    for (const auto& [score, e] : order) {
      const double scale = s_.routed_scaling_factor * share[e] / (s_.norm_topk_prob ? sum : 1.0);
      const Vec of = mlp(moe_.experts[e], x);
      for (size_t i = 0; i < y.size(); ++i) y[i] += scale * of[i];
    }
    return y;
  }

  const model::Shape& s_;
  const model::TextWeights& weights_;
  const model::MtpWeights& w_;
  const model::DsaWeights& dsa_;
  const model::MoeWeights& moe_;
  std::vector<Vec> kv_, index_key_, gate_;  // by position; kv: keys and values of all heads
  std::vector<size_t> selected_;            // of the last row
};

// What the MTP layer's rows of a step selected.
struct Selections : Probe {
  std::vector<size_t> last;

  void selection(int64_t /*layer*/, int64_t first_row, int64_t rows, const int32_t* selected, int64_t max_selected,
                 const int32_t* counts, const float* /*gaps*/) override {
    EXPECT_EQ(first_row, 0);
    const int32_t* row = selected + (rows - 1) * max_selected;
    last.assign(row, row + counts[rows - 1]);
  }
};

void expect_near(const Vec& expected, const float* found, const std::string& what) {
  double largest = 0, difference = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    largest = std::max(largest, std::abs(expected[i]));
    difference = std::max(difference, std::abs(expected[i] - found[i]));
  }
  EXPECT_LE(difference, 3e-5 * largest) << what;
}

struct TranscriptionCase {
  const char *model, *name;
  std::vector<int64_t> lengths;
};

class Transcription : public ::testing::TestWithParam<TranscriptionCase> {};

TEST_P(Transcription, ChainsShareTheSelectionOfTheLastAbsorbedRow) {
  const Ids ids = mtp_ids(GetParam().model, GetParam().name);
  MtpStreams s(GetParam().model);
  const auto width = static_cast<size_t>(s.shape().hidden_size);
  s.text(ids, 0, std::ssize(ids));
  const HiddenRows hidden(s.model().hidden().begin(), s.model().hidden().end());
  SlowMtp slow(s.shape(), s.weights());
  int64_t absorbed = 0, sparse = 0;
  for (const int64_t length : GetParam().lengths) {
    Vec m;
    for (; absorbed < length; ++absorbed) {
      const auto at = static_cast<size_t>(absorbed);
      const auto begin = hidden.begin() + static_cast<std::ptrdiff_t>(at * width);
      m = slow.row(at, ids[at + 1], Vec(begin, begin + static_cast<std::ptrdiff_t>(width)),
                   absorbed + 1 == length ? SlowMtp::Kind::absorb : SlowMtp::Kind::store);
    }
    Selections selections;
    s.text(ids, 0, length);
    HiddenRows found = mtp_row(s.shape(), s.absorb(0, ids, 0, length, &selections), length, length - 1);
    EXPECT_EQ(selections.last, slow.selected()) << length;
    expect_near(m, found.data(), "absorbed " + std::to_string(length));
    SlowMtp chain = slow;
    for (int64_t i = 0; i < 5; ++i) {  // across the end of a pool
      const int32_t draft = some_token(s.shape(), length + i);
      const std::string what = std::to_string(length) + " rows, chain row " + std::to_string(i);
      m = chain.row(static_cast<size_t>(length + i), draft, m, SlowMtp::Kind::chain);
      found = s.chain(0, draft, length + i, &selections);
      EXPECT_EQ(selections.last, chain.selected()) << what;
      expect_near(m, found.data(), what);
      expect_near(chain.logits(m), found.data() + width, what);
      sparse += std::ssize(selections.last) < length + i + 1 ? 1 : 0;
    }
  }
  EXPECT_GT(sparse, 0) << "rows that do not attend to everything";
}

INSTANTIATE_TEST_SUITE_P(Models, Transcription,
                         ::testing::Values(
                             TranscriptionCase{
                                 "tinyA", "case_T67", {1, 4, 10, 12, 13, 14, 15, 16, 17, 18, 19, 20, 33, 47, 60}},
                             TranscriptionCase{"nano", "case_T700", {3, 257, 260, 263, 301}}));

}  // namespace
}  // namespace tandem::forward::mtp_transcription_test
