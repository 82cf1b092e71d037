// Drafter and vision tower against the counts of their published checkpoints.
#include "engine/plan_extras.h"

#include "base/error.h"

namespace tandem::engine::plan_extras_test {
namespace {

std::string drafter_config(const std::string& change = "", const std::string& to = "") {
  std::string config = R"({"architectures": ["DFlash2DraftModel"], "model_type": "qwen3", "vocab_size": 2048,
    "hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 3, "num_target_layers": 8,
    "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 128, "rms_norm_eps": 1e-05, "sliding_window": 512,
    "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention"],
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}, "dflash_config": {"block_size": 8,
    "conv_kernel_size": 2, "conv_group_size": 16, "selector_rank": 256, "selector_top_k": 16, "mask_token_id": 2024,
    "target_layer_ids": [1, 3, 6]}})";
  if (!change.empty()) config.replace(config.find(change), change.size(), to);
  return config;
}

TEST(PlanExtras, ThePublishedDrafter) {
  const DrafterShape drafter;
  EXPECT_EQ(drafter.parameters(), 1'171'080'448);  // spec/speculation.md 0
  EXPECT_EQ(drafter.row_bytes(1), 20 << 10);
  EXPECT_EQ(drafter.kept_rows(), 2047);
  EXPECT_EQ(drafter.ring_rows(), 2063);
  // 20 MiB of a kept state with half of the heads (spec/runtime.md b.4).
  EXPECT_NEAR(static_cast<double>(drafter.row_bytes(2) * drafter.kept_rows()) / (1 << 20), 20.0, 0.02);
  EXPECT_LT(drafter.parameters_of_rank(2), drafter.parameters());
  EXPECT_GT(2 * drafter.parameters_of_rank(2), drafter.parameters());
}

TEST(PlanExtras, ADraftersConfig) {
  const DrafterShape d = parse_drafter(drafter_config(), "config.json");
  EXPECT_EQ(d.taps(), 3);
  EXPECT_EQ(d.row_bytes(1), 3 * 2 * 128 * 2);
  EXPECT_EQ(d.row_bytes(2), d.row_bytes(1));  // one head cannot be halved
  EXPECT_EQ(d.ring_rows(), 527);
  EXPECT_THROW(parse_drafter("{}", "config.json"), Error);
  EXPECT_THROW(parse_drafter(drafter_config("\"head_dim\": 128", "\"head_dim\": 0"), "c"), Error);
  EXPECT_THROW(parse_drafter(drafter_config("[1, 3, 6]", "[]"), "c"), Error);
  EXPECT_THROW(parse_drafter(drafter_config("\"block_size\": 8", "\"block_size\": -8"), "c"), Error);
}

TEST(PlanExtras, TheVisionTower) {
  EXPECT_EQ(vision_parameters(R"({"vision_config": {"depth": 24, "hidden_size": 1024, "num_heads": 16,
    "intermediate_size": 4096, "patch_size": 14, "temporal_patch_size": 2, "spatial_merge_size": 2, "in_channels": 3,
    "out_hidden_size": 4096, "projection_intermediate_size": 10240}})",
                              "c"),
            563'627'008);  // spec/frontend.md A.2
  EXPECT_EQ(vision_parameters("{}", "c"), std::nullopt);
  EXPECT_THROW(vision_parameters(R"({"vision_config": {"depth": 2}})", "c"), Error);
}

}  // namespace
}  // namespace tandem::engine::plan_extras_test
