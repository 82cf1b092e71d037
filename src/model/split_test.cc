// The parts of two ranks: together they are every weight, each cut by its rule and between units.
#include "model/split.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <set>

#include "model/inventory.h"
#include "model/testing/checkpoint_files.h"
#include "model/weight_layout.h"

namespace tandem::model::split_test {
namespace {

std::filesystem::path golden(const std::string& name) { return testing::source_dir() / "tests/golden" / name; }

// A tensor's name without its numbers: "layers.*.mlp.experts.*.up_proj.weight".
std::string pattern(const std::string& name) {
  std::string out;
  for (size_t i = 0; i < name.size(); ++i) {
    const bool digit = name[i] >= '0' && name[i] <= '9' && i > 0 && (name[i - 1] == '.' || out.back() == '*');
    if (!digit)
      out += name[i];
    else if (out.back() != '*')
      out += '*';
  }
  return out;
}

struct Rule {
  Split split;
  int64_t unit;
};

// The table of spec/model.md 10.1 with the units of the real model; "MTP" shares the layer's names.
std::map<std::string, Rule> expected_rules() {
  const Rule whole{Split::replicated, 1}, expert{Split::experts, 1};
  std::map<std::string, Rule> rules = {
      {"embed_tokens.weight", {Split::rows, 1}},
      {"lm_head.weight", {Split::rows, 1}},
      {"norm.weight", whole},
  };
  const auto layer = [&](const std::string& name, Rule rule) { rules["layers.*." + name] = rule; };
  for (const char* name : {"hc_attn_fn", "hc_attn_base", "hc_attn_scale", "hc_ffn_fn", "hc_ffn_base", "hc_ffn_scale",
                           "input_layernorm.weight", "post_attention_layernorm.weight", "mlp.gate.weight",
                           "mlp.gate.e_score_correction_bias", "eh_proj.weight", "enorm.weight", "hnorm.weight",
                           "shared_head.norm.weight"}) {
    layer(name, whole);
  }
  for (const char* name :
       {"f_a_proj.weight", "g_a_proj.weight", "o_norm.weight", "q_a_proj.weight", "q_a_layernorm.weight",
        "kv_a_proj_with_mqa.weight", "kv_a_layernorm.weight", "indexer.wq_b.weight", "indexer.wk.weight",
        "indexer.weights_proj.weight", "indexer.index_kpool_compress_gate", "indexer.index_kpool_compress_ape",
        "indexer.k_norm.weight", "indexer.k_norm.bias"}) {
    layer(std::string("self_attn.") + name, whole);
  }
  for (const char* name : {"q_proj.weight", "k_proj.weight", "v_proj.weight", "q_conv1d.weight", "k_conv1d.weight",
                           "v_conv1d.weight", "f_b_proj.weight", "g_b_proj.weight", "dt_bias"}) {
    layer(std::string("self_attn.") + name, {Split::rows, 128});
  }
  layer("self_attn.b_proj.weight", {Split::rows, 1});
  layer("self_attn.A_log", {Split::rows, 1});
  layer("self_attn.q_b_proj.weight", {Split::rows, 256});
  layer("self_attn.kv_b_proj.weight", {Split::rows, 512});
  for (const char* mlp : {"mlp.", "mlp.shared_experts."}) {
    layer(std::string(mlp) + "gate_proj.weight", {Split::rows, 128});
    layer(std::string(mlp) + "up_proj.weight", {Split::rows, 128});
    layer(std::string(mlp) + "down_proj.weight", {Split::columns, 128});
  }
  for (const char* name : {"gate_proj.weight", "up_proj.weight", "down_proj.weight"})
    layer(std::string("mlp.experts.*.") + name, expert);
  return rules;
}

TEST(Split, EveryTensorHasItsRule) {
  const Shape shape = read_shape(golden("configs/glm-5.3-flash.json"));
  const Inventory inventory = make_inventory(shape);
  const std::map<std::string, Rule> rules = expected_rules();
  std::set<std::string> seen;
  for (const std::vector<WeightSpec>* list : {&inventory.main, &inventory.mtp}) {
    for (const WeightSpec& spec : *list) {
      const std::string name = pattern(spec.name);
      seen.insert(name);
      if (name == "layers.*.self_attn.o_proj.weight") {  // of both kinds of attention: by their heads
        EXPECT_EQ(spec.split, Split::columns);
        EXPECT_EQ(spec.split_unit, spec.component == Component::kda ? 128 : 256);
        EXPECT_EQ(spec.leaf_columns, spec.shape[1] / 2);
        continue;
      }
      const auto rule = rules.find(name);
      ASSERT_NE(rule, rules.end()) << spec.name;
      EXPECT_EQ(spec.split, rule->second.split) << spec.name;
      if (spec.split == Split::rows || spec.split == Split::columns) {
        EXPECT_EQ(spec.split_unit, rule->second.unit) << spec.name;
      }
    }
  }
  for (const auto& [name, rule] : rules) EXPECT_TRUE(seen.contains(name)) << name << " is no tensor of the model";
}

TEST(Split, HalvesOfUnits) {
  EXPECT_EQ(first_half(154'880, 1), 77'440);
  EXPECT_EQ(first_half(3 * 24, 24), 48);
  EXPECT_EQ(first_half(160, 128), 128) << "a ragged second block";
  EXPECT_EQ(first_half(80, 128), 80) << "one block: nothing for rank 1";
  EXPECT_EQ(first_half(300, 128), 256);
  EXPECT_EQ(first_half(0, 128), 0);
  const Part none = part_of(80, 128, 1, 2);
  EXPECT_EQ(none.count, 0);
  EXPECT_EQ(part_of(80, 128, 0, 1).count, 80);
  EXPECT_TRUE(part_of(5, 1, 1, 2).holds(3));
  EXPECT_FALSE(part_of(5, 1, 1, 2).holds(2));
}

TEST(Split, PartsOfUnevenModels) {
  const Shape a = read_shape(golden("tinyA")), b = read_shape(golden("tinyB"));
  const RankParts a0 = parts_of_rank(a, 0, 2), a1 = parts_of_rank(a, 1, 2), b1 = parts_of_rank(b, 1, 2);
  EXPECT_EQ(a0.kda_heads.count, 2);
  EXPECT_EQ(a1.kda_heads.count, 1);
  EXPECT_EQ(a1.kda_heads.first, 2);
  EXPECT_EQ(a1.attention_heads.first, 2);
  EXPECT_EQ(a1.mlp_width.count, 32);    // 160: 128 + 32
  EXPECT_EQ(a1.shared_width.count, 0);  // 80: one block
  EXPECT_EQ(a1.vocabulary.first, 102);  // 203: 102 + 101
  EXPECT_EQ(b1.experts.first, 3);       // 5: 3 + 2
  EXPECT_EQ(b1.experts.count, 2);
  const Shape own = shape_of_rank(a, 1, 2);
  EXPECT_EQ(own.kda_num_heads, 1);
  EXPECT_EQ(own.num_attention_heads, 1);
  EXPECT_EQ(own.intermediate_size, 32);
  EXPECT_EQ(own.n_routed_experts, a.n_routed_experts);
  EXPECT_EQ(own.vocab_size, a.vocab_size);
}

// What a matrix holds, as the bytes of its elements.
std::string element(const Matrix& m, int64_t row, int64_t column) {
  const int64_t bytes = m.format == ops::WeightFormat::f32 ? 4 : m.format == ops::WeightFormat::bf16 ? 2 : 1;
  return {reinterpret_cast<const char*>(m.data) + (row * m.stride() + column) * bytes, static_cast<size_t>(bytes)};
}

void expect_rows(const Matrix& part, const Matrix& whole, const Part& rows, const std::string& what) {
  ASSERT_EQ(part.out_features, rows.count) << what;
  ASSERT_EQ(part.in_features, whole.in_features) << what;
  EXPECT_EQ(part.leaf_columns, whole.leaf_columns) << what;
  for (int64_t r = 0; r < rows.count; ++r)
    ASSERT_EQ(element(part, r, r % part.in_features), element(whole, rows.first + r, r % part.in_features)) << what;
}

void expect_columns(const Matrix& part, const Matrix& whole, const Part& columns, const std::string& what) {
  ASSERT_EQ(part.in_features, columns.count) << what;
  ASSERT_EQ(part.out_features, whole.out_features) << what;
  EXPECT_EQ(part.leaf_columns, columns.count) << what << ": a part is one leaf";
  EXPECT_EQ(part.first_column, columns.first) << what;
  for (int64_t c = 0; c < columns.count; ++c)
    ASSERT_EQ(element(part, c % part.out_features, c), element(whole, c % part.out_features, columns.first + c))
        << what;
}

TEST(Split, ViewsAreTheRowsAndColumnsOfTheWhole) {
  const std::filesystem::path folder = golden("tinyA");
  const Shape shape = read_shape(folder);
  const Checkpoint checkpoint = Checkpoint::open(folder);
  const TextWeights whole = load_text_weights(checkpoint, shape);
  for (int rank = 0; rank < 2; ++rank) {
    const TextWeights own = split(whole, shape, rank, 2);
    const RankParts parts = parts_of_rank(shape, rank, 2);
    expect_rows(own.embed_tokens, whole.embed_tokens, parts.vocabulary, "embedding");
    expect_rows(own.lm_head, whole.lm_head, parts.vocabulary, "head");
    const KdaWeights &kda = *own.layers[0].kda, &kda_whole = *whole.layers[0].kda;
    const Part channels{parts.kda_heads.first * 32, parts.kda_heads.count * 32};
    expect_rows(kda.k_proj, kda_whole.k_proj, channels, "k_proj");
    expect_rows(kda.g_b_proj, kda_whole.g_b_proj, channels, "g_b_proj");
    expect_rows(kda.b_proj, kda_whole.b_proj, parts.kda_heads, "b_proj");
    expect_columns(kda.o_proj, kda_whole.o_proj, channels, "o_proj");
    EXPECT_EQ(kda.f_a_proj.out_features, 32);
    ASSERT_EQ(kda.conv.size(), static_cast<size_t>(3 * channels.count * 4));
    for (int64_t part = 0; part < 3; ++part) {  // q, k and v each
      for (int64_t i = 0; i < channels.count * 4; ++i) {
        ASSERT_EQ(kda.conv[static_cast<size_t>(part * channels.count * 4 + i)],
                  kda_whole.conv[static_cast<size_t>((part * 96 + channels.first) * 4 + i)]);
      }
    }
    ASSERT_EQ(kda.a_log.size(), static_cast<size_t>(parts.kda_heads.count));
    EXPECT_EQ(kda.a_log[0], kda_whole.a_log[static_cast<size_t>(parts.kda_heads.first)]);
    EXPECT_EQ(kda.dt_bias[5], kda_whole.dt_bias[static_cast<size_t>(channels.first + 5)]);
    EXPECT_EQ(kda.o_norm, kda_whole.o_norm);
    const DsaWeights &dsa = *own.layers[3].dsa, &dsa_whole = *whole.layers[3].dsa;
    const Part& heads = parts.attention_heads;
    expect_rows(dsa.q_b_proj, dsa_whole.q_b_proj, {heads.first * 40, heads.count * 40}, "q_b");
    expect_rows(dsa.kv_b_proj, dsa_whole.kv_b_proj, {heads.first * 64, heads.count * 64}, "kv_b");
    expect_columns(dsa.o_proj, dsa_whole.o_proj, {heads.first * 24, heads.count * 24}, "o_proj");
    expect_rows(own.layers[0].mlp->up_proj, whole.layers[0].mlp->up_proj, parts.mlp_width, "up");
    expect_columns(own.layers[0].mlp->down_proj, whole.layers[0].mlp->down_proj, parts.mlp_width, "down");
    for (const LayerWeights& layer : own.layers) {
      if (!layer.moe) continue;
      EXPECT_EQ(layer.moe->experts.size(), 3u);
      EXPECT_EQ(layer.moe->gate.out_features, 6);
      EXPECT_EQ(layer.moe->shared.down_proj.in_features, parts.shared_width.count);
    }
    const MoeWeights &moe = *own.mtp->layer.moe, &moe_whole = *whole.mtp->layer.moe;
    EXPECT_EQ(moe.experts[1].up_proj.data, moe_whole.experts[static_cast<size_t>(3 * rank + 1)].up_proj.data);
    EXPECT_EQ(own.norm, whole.norm);
    EXPECT_EQ(own.mtp->enorm, whole.mtp->enorm);
  }
}

TEST(Split, OneRankHasEverything) {
  const Shape shape = read_shape(golden("tinyB"));
  const Checkpoint checkpoint = Checkpoint::open(golden("tinyB"));
  const TextWeights whole = load_text_weights(checkpoint, shape);
  const TextWeights own = split(whole, shape, 0, 1);
  EXPECT_EQ(own.lm_head.out_features, shape.vocab_size);
  EXPECT_EQ(own.layers[0].kda->o_proj.leaf_columns, whole.layers[0].kda->o_proj.leaf_columns);
  EXPECT_EQ(shape_of_rank(shape, 0, 1).kda_num_heads, shape.kda_num_heads);
}

}  // namespace
}  // namespace tandem::model::split_test
