// Served names with their presets, and the JSON of GET /v1/models and /v1/models/{id} (spec/frontend.md D.1, D.14).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "api/errors.h"
#include "api/served_model.h"

namespace tandem::api {

// What the ending of a model's name asks for where a client cannot send the field: NAME-nothink, NAME-low, NAME-high.
enum class ModelPreset { none, no_thinking, low_effort, high_effort };

// The served names, each followed by its three presets.
std::vector<std::string> all_names(const ServedModel& model);
bool is_served(const ServedModel& model, std::string_view name);
// Of a name of all_names(); any other has none.
ModelPreset preset_of(const ServedModel& model, std::string_view name);

// 404, code model_not_found.
ApiError model_not_found(std::string_view name);

// `created`: Unix time, seconds.
std::string model_list(const ServedModel& model, int64_t created);
std::string model_row(const ServedModel& model, const std::string& name, int64_t created);

}  // namespace tandem::api
