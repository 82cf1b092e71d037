// Counts bytes and multiply-adds of each part of the model.
#include "forward/cost.h"

#include <algorithm>
#include <initializer_list>

#include "model/split.h"
#include "ops/attend/sparse_attend.h"
#include "ops/index/index_select.h"
#include "ops/kda_block/kda_block.h"

namespace tandem::forward {
namespace {

int64_t bytes_of(const model::Matrix& m) {
  const int64_t values = m.out_features * m.in_features;
  switch (m.format) {
    case ops::WeightFormat::f32: return 4 * values;
    case ops::WeightFormat::bf16: return 2 * values;
    case ops::WeightFormat::fp8_block:
      return values +
             quant::fp8_scale_bytes(m.scale_format) * ((m.out_features + 127) / 128) * ((m.in_features + 127) / 128);
    case ops::WeightFormat::nvfp4: return values / 2 + values / 16;
    case ops::WeightFormat::exl3: {
      const int64_t in = (m.in_features + 127) / 128 * 128, out = (m.out_features + 127) / 128 * 128;
      return in * out * m.exl3.bits / 8 + in * (m.exl3.suh_is_signs ? 1 : 16) / 8 +
             out * (m.exl3.svh_is_signs ? 1 : 16) / 8;
    }
  }
  return 0;
}

class Counter {
 public:
  Counter(const model::Shape& shape, int64_t position, int64_t rows, int64_t streams)
      : s_(shape), position_(position), own_rows_(rows), streams_(streams), rows_(rows * streams) {}

  Cost cost;

  void matrices(std::initializer_list<const model::Matrix*> list, int64_t rows) {
    for (const model::Matrix* m : list) {
      cost.weight_bytes += bytes_of(*m);
      cost.multiply_adds += rows * m->out_features * m->in_features;
    }
  }

  void mhc(const model::MhcWeights& w) {
    matrices({&w.fn}, rows_);
    cost.multiply_adds += rows_ * s_.hidden_size * s_.hc_mult * (s_.hc_mult + 2);  // collapse, post and mix
  }

  void kda(const model::KdaWeights& w) {
    matrices(
        {&w.q_proj, &w.k_proj, &w.v_proj, &w.f_a_proj, &w.g_a_proj, &w.f_b_proj, &w.g_b_proj, &w.b_proj, &w.o_proj},
        rows_);
    const int64_t width = s_.kda_width(), dim = s_.kda_head_dim,
                  earlier = (ops::kda_block_rows - 1) / 2;  // rows before one in its block
    cost.multiply_adds += rows_ * width * (3 * s_.short_conv_kernel_size + 2 * dim + dim + 4 * earlier);
    // The state for every block of rows; once a segment the log of its first block (k, G, δ of the rows before it) and
    // the raw rows that the convolution looks back to.
    const int64_t blocks = (own_rows_ + ops::kda_block_rows - 1) / ops::kda_block_rows;
    cost.state_bytes += streams_ * 4 * width * (blocks * dim + 3 * earlier + 3 * (s_.short_conv_kernel_size - 1));
  }

  void dsa(const model::DsaWeights& w) {
    matrices({&w.q_a_proj, &w.q_b_proj, &w.kv_a_proj, &w.kv_b_proj, &w.o_proj, &w.indexer.wq_b, &w.indexer.wk,
              &w.indexer.weights_proj, &w.indexer.compress_gate},
             rows_);
    for (int64_t t = position_; t < position_ + own_rows_; ++t) {
      const int64_t pools = (t + 1) / s_.index_kpool;
      const int64_t selected = std::min(t + 1, s_.pool_budget() * s_.index_kpool + (t + 1) % s_.index_kpool);
      cost.multiply_adds += streams_ * 2 * selected * s_.num_attention_heads * s_.kv_lora_rank;
      cost.state_bytes += streams_ * 4 * selected * s_.kv_lora_rank;
      if (pools > s_.pool_budget()) {
        cost.multiply_adds += streams_ * pools * s_.index_n_heads * s_.index_head_dim;
        cost.state_bytes += streams_ * 4 * pools * s_.index_head_dim;
      }
    }
  }

  void mlp(const model::MlpWeights& w, int64_t rows) { matrices({&w.gate_proj, &w.up_proj, &w.down_proj}, rows); }

  void moe(const model::MoeWeights& w) {
    matrices({&w.gate}, rows_);
    mlp(w.shared, rows_);
    const int64_t places = rows_ * s_.num_experts_per_tok, read = std::min(s_.n_routed_experts, places);
    const model::MlpWeights& one = w.experts.front();
    const int64_t values = 3 * one.gate_proj.out_features * one.gate_proj.in_features;
    cost.multiply_adds += places * values;
    cost.weight_bytes += read * (bytes_of(one.gate_proj) + bytes_of(one.up_proj) + bytes_of(one.down_proj));
  }

 private:
  const model::Shape& s_;
  int64_t position_, own_rows_, streams_, rows_;  // rows of each stream, of all
};

}  // namespace

Cost step_cost(const model::Shape& shape, const model::TextWeights& weights, int64_t position, int64_t rows,
               int64_t logit_rows, int64_t streams) {
  Counter counter(shape, position, rows, streams);
  for (const model::LayerWeights& layer : weights.layers) {
    counter.mhc(*layer.hc_attn);
    counter.mhc(*layer.hc_ffn);
    if (layer.kda) counter.kda(*layer.kda);
    if (layer.dsa) counter.dsa(*layer.dsa);
    if (layer.mlp) counter.mlp(*layer.mlp, rows * streams);
    if (layer.moe) counter.moe(*layer.moe);
  }
  if (logit_rows > 0) counter.matrices({&weights.lm_head}, logit_rows * streams);
  return counter.cost;
}

ExchangeCost exchange_cost(const model::Shape& shape, const Ranks& ranks, int64_t position, int64_t rows,
                           int64_t logit_rows) {
  ExchangeCost cost;
  if (ranks.tensor_parallel_size == 1) return cost;
  const auto add = [&cost](int64_t times, int64_t values) {
    cost.exchanges += times;
    cost.bytes += 4 * times * values;
  };
  const model::RankParts first = model::parts_of_rank(shape, 0, ranks.tensor_parallel_size);
  add(1 + 2 * shape.num_hidden_layers, rows * shape.hidden_size);  // embedding; both sums of every layer
  if (logit_rows > 0) add(1, logit_rows * first.vocabulary.count);
  if (ranks.decode_context_parallel_size == 1) return cost;
  const auto dsa = std::count(shape.layer_types.begin(), shape.layer_types.end(), model::AttentionKind::dsa);
  const int64_t heads = first.attention_heads.count;
  if ((position + rows) / shape.index_kpool > shape.pool_budget())
    add(dsa, rows * ops::index_candidates_size(shape.pool_budget()));
  add(dsa, rows * heads * shape.kv_lora_rank);  // queries; then both ranks' heads of a leaf
  add(dsa, rows * 2 * ops::attend_leaf_size(heads, shape.kv_lora_rank));
  return cost;
}

}  // namespace tandem::forward
