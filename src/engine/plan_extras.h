// What stands beside the text model in a plan: a DFlash2 drafter (spec/speculation.md 1) and the vision tower
// (spec/frontend.md A).
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "model/drafter.h"
#include "model/shape.h"

namespace tandem::engine {

// The drafter's dimensions and counts are the model room's.
using DrafterShape = model::DrafterShape;
// config.json of a drafter's folder. Throws Error(bad_file) naming the key.
inline DrafterShape parse_drafter(std::string_view config_json, const std::string& where) {
  return model::parse_drafter_shape(config_json, where);
}

// Parameters of the vision tower that a config.json describes (vision_config); none without that key. Throws
// Error(bad_file).
std::optional<int64_t> vision_parameters(std::string_view config_json, const std::string& where);

// Memory that the published runtime gives the vision tower to work in (spec/runtime.md 0).
inline constexpr int64_t vision_workspace_bytes = int64_t{768} << 20;

}  // namespace tandem::engine
