// The vision tower's parameter count from the tensor list of spec/frontend.md A.2.
#include "engine/plan_extras.h"

#include "base/error.h"
#include "model/json_reader.h"

namespace tandem::engine {
namespace {

constexpr model::IntegerRange dimension{1, int64_t{1} << 24};

}  // namespace

std::optional<int64_t> vision_parameters(std::string_view config_json, const std::string& where) {
  const model::JsonDocument document(config_json, where);
  if (!document.root().has("vision_config")) return std::nullopt;
  const model::JsonObject vision = document.root().object("vision_config");
  const auto read = [&](const char* key) { return vision.integer(key, dimension); };
  const int64_t h = read("hidden_size"), mlp = read("intermediate_size"), out = read("out_hidden_size");
  const int64_t heads = read("num_heads"), patch = read("patch_size"), merge = read("spatial_merge_size");
  const int64_t projection = read("projection_intermediate_size");
  const int64_t patch_embed = h * read("in_channels") * read("temporal_patch_size") * patch * patch + h;
  const int64_t attention = 3 * h * h + 3 * h + 2 * (h / heads) + h * h + h;
  const int64_t block = 2 * h + attention + 2 * (mlp * h + mlp) + h * mlp + h;
  const int64_t downsample = out * h * merge * merge + out;
  const int64_t merger = out * out + 2 * out + 3 * projection * out;
  return patch_embed + read("depth") * block + h + downsample + merger;
}

}  // namespace tandem::engine
