// The model list: vLLM's row with the context length under the names that other clients read.
#include "api/models.h"

#include <nlohmann/json.hpp>

#include "api/random.h"

namespace tandem::api {

using Json = nlohmann::ordered_json;

namespace {

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

std::string model_row(const ServedModel& model, const std::string& name, int64_t created) {
  return row_json(model, name, created).dump();
}

std::string model_list(const ServedModel& model, int64_t created) {
  Json json;
  json["object"] = "list";
  json["data"] = Json::array();
  for (const std::string& name : model.names) json["data"].push_back(row_json(model, name, created));
  json["models"] = Json::array();  // Codex reads this key; an empty list is enough
  return json.dump();
}

}  // namespace tandem::api
