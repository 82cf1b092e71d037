// Puts the parts of the description together: what several request bodies share and several paths mean is written once.
#include "api/openapi.h"

#include <array>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "api/embedded.h"

namespace tandem::api {

using Json = nlohmann::ordered_json;

namespace {

// Paths that mean the same as another one. Ids of operations are unique, so these get an ending.
struct PathAlias {
  std::string_view path, of, ending;
};
constexpr std::array path_aliases = std::to_array<PathAlias>({
    {"/v1/tokenize", "/tokenize", "V1"},
    {"/v1/detokenize", "/detokenize", "V1"},
    {"/v1/apply-template", "/apply-template", "V1"},
    {"/v1/metrics", "/metrics", "V1"},
    {"/v1/health", "/health", "V1"},
    {"/healthz", "/health", "Z"},
    {"/ping", "/health", "Ping"},
});

Json renamed(Json path_item, std::string_view ending) {
  for (Json& operation : path_item)
    operation["operationId"] = operation["operationId"].get<std::string>().append(ending);
  return path_item;
}

void add_aliases(Json& paths) {
  for (const PathAlias& alias : path_aliases)
    paths[std::string(alias.path)] = renamed(paths.at(std::string(alias.of)), alias.ending);
  paths["/ping"]["post"] = renamed(paths.at("/health"), "PingPost").at("get");
}

// "x-with" names groups of properties that a body has beside its own, which come first.
Json expanded(const Json& written, const Json& parts) {
  if (!written.contains("x-with")) return written;
  Json schema;
  for (const auto& [key, value] : written.items()) {
    if (key != "x-with") schema[key] = value;
  }
  Json& properties = schema["properties"];
  for (const Json& name : written.at("x-with")) {
    for (const auto& [field, property] : parts.at(name.get<std::string>()).at("properties").items()) {
      if (!properties.contains(field)) properties[field] = property;
    }
  }
  return schema;
}

// The empty requirement says that a request without a key is answered, too.
void describe_access(const ApiAccess& access, Json& document) {
  if (!access.needs_key) document["security"].push_back(Json::object());
  if (access.metrics_are_open) document["paths"]["/metrics"]["get"]["security"] = Json::array();
}

}  // namespace

std::string openapi_document(const ApiAccess& access) {
  Json document = Json::parse(embedded_file("openapi/paths.json"));
  describe_access(access, document);
  document["info"]["version"] = TANDEM_VERSION;
  add_aliases(document["paths"]);
  Json& schemas = document["components"]["schemas"];
  for (const auto* file : {"openapi/requests.json", "openapi/replies.json"}) {
    const Json part = Json::parse(embedded_file(file));
    const Json parts = part.value("parts", Json::object());
    for (const auto& [name, schema] : part.at("schemas").items()) schemas[name] = expanded(schema, parts);
  }
  return document.dump();
}

}  // namespace tandem::api
