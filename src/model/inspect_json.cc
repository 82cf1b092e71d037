// The report of `tandem inspect` as JSON for programs.
#include <cmath>
#include <nlohmann/json.hpp>

#include "model/inspect.h"

namespace tandem::model {
namespace {

using Json = nlohmann::ordered_json;

Json shape_json(const Shape& s) {
  return {{"vocab_size", s.vocab_size},
          {"hidden_size", s.hidden_size},
          {"num_hidden_layers", s.num_hidden_layers},
          {"num_nextn_predict_layers", s.num_nextn_predict_layers},
          {"max_position_embeddings", s.max_position_embeddings},
          {"rms_norm_eps", s.rms_norm_eps},
          {"intermediate_size", s.intermediate_size},
          {"moe_intermediate_size", s.moe_intermediate_size},
          {"n_routed_experts", s.n_routed_experts},
          {"num_experts_per_tok", s.num_experts_per_tok},
          {"n_shared_experts", s.n_shared_experts},
          {"norm_topk_prob", s.norm_topk_prob},
          {"routed_scaling_factor", s.routed_scaling_factor},
          {"swiglu_limit", s.swiglu_limit},
          {"num_attention_heads", s.num_attention_heads},
          {"q_lora_rank", s.q_lora_rank},
          {"kv_lora_rank", s.kv_lora_rank},
          {"qk_nope_head_dim", s.qk_nope_head_dim},
          {"v_head_dim", s.v_head_dim},
          {"index_n_heads", s.index_n_heads},
          {"index_head_dim", s.index_head_dim},
          {"index_topk", s.index_topk},
          {"index_kpool", s.index_kpool},
          {"index_share_for_mtp_iteration", s.index_share_for_mtp_iteration},
          {"hc_mult", s.hc_mult},
          {"hc_sinkhorn_iters", s.hc_sinkhorn_iters},
          {"hc_eps", s.hc_eps},
          {"kda_num_heads", s.kda_num_heads},
          {"kda_head_dim", s.kda_head_dim},
          {"short_conv_kernel_size", s.short_conv_kernel_size},
          {"gate_lower_bound", s.gate_lower_bound},
          {"eos_token_ids", s.eos_token_ids},
          {"pad_token_id", s.pad_token_id},
          {"image_token_id", s.image_token_id},
          {"video_token_id", s.video_token_id}};
}

Json schedule_json(const Shape& shape) {
  Json layers = Json::array();
  for (size_t i = 0; i < shape.layer_types.size(); ++i) {
    layers.push_back({{"layer", i},
                      {"attention", shape.layer_types[i] == AttentionKind::kda ? "kda" : "dsa"},
                      {"feed_forward", shape.mlp_layer_types[i] == FeedForwardKind::dense ? "dense" : "moe"},
                      {"mtp", false}});
  }
  if (shape.num_nextn_predict_layers == 1) {
    layers.push_back(
        {{"layer", shape.num_hidden_layers}, {"attention", "dsa"}, {"feed_forward", "moe"}, {"mtp", true}});
  }
  return layers;
}

Json rows_json(const std::vector<ParameterRow>& rows) {
  Json result = Json::array();
  for (const ParameterRow& row : rows) {
    result.push_back({{"component", component_name(row.component)},
                      {"per_unit", row.per_unit},
                      {"units", row.units},
                      {"total", row.total()}});
  }
  return result;
}

Json parameters_json(const Inventory& inventory) {
  return {{"components", rows_json(inventory.main_rows)},
          {"text_without_mtp", inventory.main_parameters},
          {"mtp_components", rows_json(inventory.mtp_rows)},
          {"mtp", inventory.mtp_parameters},
          {"text_with_mtp", inventory.main_parameters + inventory.mtp_parameters},
          {"active_per_token", inventory.active_parameters},
          {"expected_tensors", inventory.main.size() + inventory.mtp.size()}};
}

Json cache_json(const CacheBytes& cache, int64_t context) {
  Json formats = Json::array();
  for (const CacheRow& row : cache.rows) {
    formats.push_back({{"format", row.format},
                       {"latent_bytes_per_token_layer", row.latent_bytes},
                       {"index_bytes_per_pool_layer", row.pool_bytes},
                       {"bytes_per_token", cache.bytes_per_token(row, false)},
                       {"bytes_per_token_with_mtp", cache.bytes_per_token(row, true)},
                       {"bytes_for_context", cache.bytes_for(row, context, false)},
                       {"bytes_for_context_with_mtp", cache.bytes_for(row, context, true)}});
  }
  return {{"context", context},
          {"formats", formats},
          {"kda_state_bytes_per_sequence", cache.kda_state_bytes},
          {"conv_bf16_bytes_per_sequence", cache.conv_bf16_bytes},
          {"conv_f32_bytes_per_sequence", cache.conv_f32_bytes}};
}

Json formats_json(const std::vector<FormatRow>& rows, const Shape& shape) {
  Json formats = Json::array();
  for (const FormatRow& row : rows)
    formats.push_back({{"component", component_name(row.component)},
                       {"mtp", row.mtp},
                       {"format", row.format},
                       {"weights", row.weights},
                       {"parameters", row.parameters},
                       {"bytes", row.bytes},
                       {"bits", row.bits()},
                       {"bytes_per_token", std::llround(bytes_per_token(row, shape))}});
  return formats;
}

Json stated_json(const ModelReport& report) {
  int64_t bytes = 0;
  double of_token = 0;
  for (const FormatRow& row : report.stated) {
    bytes += row.bytes;
    of_token += bytes_per_token(row, report.shape);
  }
  return {{"format", report.stated_format},
          {"bytes", bytes},
          {"bytes_per_token", std::llround(of_token)},
          {"formats", formats_json(report.stated, report.shape)}};
}

Json floor_json(const Floor& floor) {
  Json steps = Json::array();
  for (const StepBytes& step : floor.steps) {
    const double seconds = floor.seconds(step);
    steps.push_back({{"rows", step.rows},
                     {"distinct_experts", step.distinct_experts},
                     {"dense_bytes", step.dense},
                     {"expert_bytes", step.experts},
                     {"state_bytes", step.states},
                     {"latent_bytes", step.latents},
                     {"index_bytes", step.index_keys},
                     {"bytes", step.total()},
                     {"ms", 1e3 * seconds},
                     {"rows_per_s", static_cast<double>(step.rows) / seconds}});
  }
  const double seconds = floor.seconds(floor.steps.front());
  return {{"gb_per_s", floor.settings.gb_per_s},
          {"context", floor.settings.context},
          {"cache_format", floor.settings.cache.format},
          {"bytes_per_token", floor.steps.front().total()},
          {"ms_per_token", 1e3 * seconds},
          {"tokens_per_s", 1 / seconds},
          {"steps", steps}};
}

Json weights_json(const Comparison& weights, const Shape& shape) {
  Json dtypes = Json::array();
  for (const DTypeCount& count : weights.dtypes) {
    dtypes.push_back({{"dtype", dtype_name(count.dtype)},
                      {"tensors", count.tensors},
                      {"elements", count.elements},
                      {"bytes", count.bytes}});
  }
  return {{"bytes", weights.bytes},
          {"text_tensors", weights.text_tensors},
          {"vision_tensors", weights.vision_tensors},
          {"vision_parameters", weights.vision_parameters},
          {"has_mtp", weights.has_mtp},
          {"complete", weights.complete()},
          {"dtypes", dtypes},
          {"formats", formats_json(weights.formats, shape)},
          {"bytes_per_token", weights.bytes_per_token},
          {"exl3_shared_rotations",
           {{"layers", weights.rotations.layers},
            {"gate_up_suh", weights.rotations.inputs},
            {"down_svh", weights.rotations.outputs}}},
          {"warnings", weights.warnings},
          {"missing", weights.missing},
          {"wrong", weights.wrong},
          {"unknown", weights.unknown}};
}

}  // namespace

std::string report_json(const ModelReport& report) {
  Json json;
  json["schema"] = "tandem.inspect/1";
  json["path"] = report.path;
  json["model_type"] = report.shape.model_type;
  json["shape"] = shape_json(report.shape);
  json["layers"] = schedule_json(report.shape);
  json["parameters"] = parameters_json(report.inventory);
  json["cache"] = cache_json(report.cache, report.shape.max_position_embeddings);
  json["weights"] = report.weights ? weights_json(*report.weights, report.shape) : Json();
  json["stated_weights"] = report.weights || report.stated_format.empty() ? Json() : stated_json(report);
  json["floor"] = report.floor ? floor_json(*report.floor) : Json();
  // A path need not be UTF-8.
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace tandem::model
