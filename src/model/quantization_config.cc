// Checks of quantization_config; quantization_config.h says why.
#include "model/quantization_config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <system_error>

#include "base/mapped_file.h"
#include "quant/exl3_matrix.h"

namespace tandem::model {
namespace fs = std::filesystem;
namespace {

constexpr std::array<std::string_view, 4> methods = {"exl3", "fp8", "compressed-tensors", "modelopt"};

void check_exl3(const JsonObject& config, const std::string& where) {
  for (const char* key : {"codebook", "scope", "tile_order", "rotation_layout", "tensor_schema"})
    if (config.has(key)) quant::check_exl3_setting(where, key, config.text(key));
}

std::unique_ptr<JsonDocument> read_if_there(const fs::path& path) {
  std::error_code error;
  if (!fs::exists(path, error)) return nullptr;
  const MappedFile file = MappedFile::open(path);
  return std::make_unique<JsonDocument>(file.text(), path.string());
}

}  // namespace

void check_quantization(const JsonObject& config, const std::string& where) {
  const std::string method = config.optional_text("quant_method").value_or("");
  if (!method.empty() && std::find(methods.begin(), methods.end(), method) == methods.end())
    config.refuse("quant_method", R"("exl3", "fp8", "compressed-tensors" or "modelopt")");
  if (config.has("weight_block_size") &&
      config.integers("weight_block_size", {1, 1 << 16}) != std::vector<int64_t>{128, 128})
    config.refuse("weight_block_size", "[128, 128]");
  if (config.has("tile_order") || method == "exl3") check_exl3(config, where);
  if (config.has("hybrid_tr3_tail"))
    config.refuse("hybrid_tr3_tail", "no such key: matrices cut by rank before they were encoded are not supported");
  if (config.has("r7_routed_experts")) {
    const JsonObject routed = config.object("r7_routed_experts");
    if (routed.text("schema") != "r7-complete-v2-checkpoint-v1")
      routed.refuse("schema", "\"r7-complete-v2-checkpoint-v1\"");
    check_exl3(routed, where);
  }
}

StatedWidths::StatedWidths(const fs::path& folder)
    : config_where_((folder / "config.json").string()),
      storage_where_((folder / "quantization_config.json").string()),
      config_(read_if_there(folder / "config.json")),
      storage_(read_if_there(folder / "quantization_config.json")) {
  if (storage_ != nullptr) check_quantization(storage_->root(), storage_where_);
}

void StatedWidths::check(const std::string& module, int64_t layer, bool expert, int bits) const {
  if (config_ != nullptr && expert && config_->root().has("quantization_config")) {
    const JsonObject config = config_->root().object("quantization_config");
    const std::string number = std::to_string(layer);
    if (config.has("layer_bits") && config.object("layer_bits").has(number))
      quant::check_exl3_stated_bits(config_where_ + ": quantization_config.layer_bits." + number, bits,
                                    config.object("layer_bits").number(number));
  }
  if (storage_ == nullptr || !storage_->root().has("tensor_storage")) return;
  const JsonObject storage = storage_->root().object("tensor_storage");
  if (!storage.has(module)) return;
  const JsonObject stated = storage.object(module);
  const std::string where = storage_where_ + ": tensor_storage." + module;
  // Some writers add the scales: 4.012 still speaks of 4.
  if (stated.has("bits_per_weight"))
    quant::check_exl3_stated_bits(where + ".bits_per_weight", bits, std::round(stated.number("bits_per_weight")));
  if (!stated.has("stored_tensors")) return;
  const JsonObject tensors = stated.object("stored_tensors");
  const std::string trellis = module + ".trellis";
  if (!tensors.has(trellis) || !tensors.object(trellis).has("shape")) return;
  const std::vector<int64_t> shape = tensors.object(trellis).integers("shape", {});
  if (!shape.empty())
    quant::check_exl3_stated_bits(where + ".stored_tensors", bits, static_cast<double>(shape.back()) / 16);
}

}  // namespace tandem::model
