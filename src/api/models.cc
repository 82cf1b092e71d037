// The model list: vLLM's row with the context length under the names that other clients read.
#include "api/models.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "api/random.h"

namespace tandem::api {

using Json = nlohmann::ordered_json;

namespace {

struct NameEnding {
  std::string_view text;
  ModelPreset preset;
};
constexpr std::array endings = std::to_array<NameEnding>({
    {"-nothink", ModelPreset::no_thinking},
    {"-low", ModelPreset::low_effort},
    {"-high", ModelPreset::high_effort},
});

bool is_plain_name(const ServedModel& model, std::string_view name) {
  return std::find(model.names.begin(), model.names.end(), name) != model.names.end();
}

Json permission_json(int64_t created) {
  Json json;
  json["id"] = "modelperm-" + random_hex(16);
  json["object"] = "model_permission";
  json["created"] = created;
  json["allow_create_engine"] = false;
  json["allow_sampling"] = true;
  json["allow_logprobs"] = true;
  json["allow_search_indices"] = false;
  json["allow_view"] = true;
  json["allow_fine_tuning"] = false;
  json["organization"] = "*";
  json["group"] = nullptr;
  json["is_blocking"] = false;
  return json;
}

Json row_json(const ServedModel& model, const std::string& name, int64_t created) {
  Json json;
  json["id"] = name;
  json["object"] = "model";
  json["created"] = created;
  json["owned_by"] = "vllm";
  json["root"] = model.names.front();
  json["parent"] = nullptr;
  json["max_model_len"] = model.max_model_len;
  json["context_length"] = model.max_model_len;
  json["max_context_length"] = model.max_model_len;
  json["permission"] = Json::array({permission_json(created)});
  return json;
}

}  // namespace

std::vector<std::string> all_names(const ServedModel& model) {
  std::vector<std::string> names;
  const auto add = [&names](std::string name) {  // a served name may itself end like a preset
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(std::move(name));
  };
  for (const std::string& name : model.names) {
    add(name);
    for (const NameEnding& ending : endings) add(fmt::format("{}{}", name, ending.text));
  }
  return names;
}

ModelPreset preset_of(const ServedModel& model, std::string_view name) {
  if (is_plain_name(model, name)) return ModelPreset::none;
  for (const NameEnding& ending : endings) {
    if (name.ends_with(ending.text) && is_plain_name(model, name.substr(0, name.size() - ending.text.size()))) {
      return ending.preset;
    }
  }
  return ModelPreset::none;
}

bool is_served(const ServedModel& model, std::string_view name) {
  return is_plain_name(model, name) || preset_of(model, name) != ModelPreset::none;
}

ApiError model_not_found(std::string_view name) {
  return {404, "not_found_error", fmt::format("The model '{}' does not exist.", name), "model", "model_not_found"};
}

std::string model_row(const ServedModel& model, const std::string& name, int64_t created) {
  return row_json(model, name, created).dump();
}

std::string model_list(const ServedModel& model, int64_t created) {
  Json json;
  json["object"] = "list";
  json["data"] = Json::array();
  for (const std::string& name : all_names(model)) json["data"].push_back(row_json(model, name, created));
  json["models"] = Json::array();  // Codex reads this key; an empty list is enough
  return json.dump();
}

}  // namespace tandem::api
