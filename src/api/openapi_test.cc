// The description against what it describes: its paths are the routes, its bodies the fields that readers read.
#include "api/openapi.h"

#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <sstream>

#include "api/service_fixture.h"

namespace tandem::api::openapi_test {
namespace {

using Json = nlohmann::json;
using Names = std::set<std::string>;

class OpenApi : public ServiceTest {
 protected:
  static Json document() { return Json::parse(openapi_document()); }
  static Json schema(const std::string& name) { return document().at("components").at("schemas").at(name); }
  static Names fields(const std::string& name) {
    Names names;
    const Json properties = schema(name).at("properties");
    for (const auto& [field, property] : properties.items()) names.insert(field);
    return names;
  }
};

TEST_F(OpenApi, PathsAreTheRoutes) {
  Setup setup;
  Names routes, described;
  for (const Route& route : setup.service.routes()) {
    std::string path = route.path;
    if (path.ends_with("/*")) path.replace(path.size() - 1, 1, "{name}");
    std::string method = route.method;
    for (char& c : method) c = static_cast<char>(std::tolower(c));
    routes.insert(method + " " + path + (route.open ? " open" : ""));
  }
  const Json paths = document().at("paths");
  for (const auto& [path, methods] : paths.items()) {
    for (const auto& [method, operation] : methods.items()) {
      const bool is_open = operation.contains("security") && operation["security"].empty();
      described.insert(method + " " + path + (is_open ? " open" : ""));
    }
  }
  EXPECT_EQ(described, routes);
}

TEST_F(OpenApi, IsServedWithoutAKey) {
  Setup setup;
  setup.service.set_model(nullptr);  // while loading, too
  const auto responder = setup.call("GET", "/openapi.json");
  ASSERT_EQ(responder->replies.size(), 1u);
  EXPECT_EQ(responder->replies[0].status, 200);
  EXPECT_EQ(responder->replies[0].body, openapi_document());
  EXPECT_EQ(document().at("openapi"), "3.1.0");
  EXPECT_EQ(document().at("info").at("version"), TANDEM_VERSION);
}

// A request without a key is part of the description exactly where it is answered.
TEST_F(OpenApi, KeysAreDescribedAsTheyAreAskedFor) {
  for (const bool needs_key : {false, true}) {
    for (const bool metrics_are_open : {false, true}) {
      const Json all = Json::parse(openapi_document({needs_key, metrics_are_open}));
      const Json& security = all.at("security");
      EXPECT_EQ(security.size(), needs_key ? 2u : 3u);
      EXPECT_EQ(std::find(security.begin(), security.end(), Json::object()) == security.end(), needs_key);
      for (const auto* path : {"/metrics", "/v1/metrics"}) {
        EXPECT_EQ(all["paths"][path]["get"].contains("security"), metrics_are_open) << path;
      }
    }
  }
  ServiceOptions options;
  options.access = {.needs_key = true, .metrics_are_open = false};
  Setup setup(options);
  EXPECT_EQ(setup.call("GET", "/openapi.json")->replies.at(0).body, openapi_document(options.access));
}

TEST_F(OpenApi, OperationsHaveIdsOfTheirOwnAndReferencesLeadSomewhere) {
  const Json all = document();
  Names ids;
  for (const auto& [path, methods] : all.at("paths").items()) {
    for (const auto& [method, operation] : methods.items()) {
      EXPECT_TRUE(ids.insert(operation.at("operationId").get<std::string>()).second) << path;
      EXPECT_TRUE(operation.at("responses").contains("default")) << path;
    }
  }
  const std::string text = openapi_document();
  EXPECT_EQ(text.find("x-with"), std::string::npos);
  const std::regex reference("\"\\$ref\":\"#([^\"]*)\"");
  size_t count = 0;
  for (auto it = std::sregex_iterator(text.begin(), text.end(), reference); it != std::sregex_iterator(); ++it) {
    EXPECT_NO_THROW(all.at(Json::json_pointer((*it)[1].str()))) << (*it)[1];
    ++count;
  }
  EXPECT_GT(count, 20u);
}

// Names that a reader asks a body for, from its source: body.boolean("x"), read_flag(body, "x"), {"x", Kind::y}.
Names read_in(const std::string& file) {
  std::ifstream stream(std::string(TANDEM_SOURCE_DIR "/src/") + file);
  EXPECT_TRUE(stream) << file;
  std::stringstream text;
  text << stream.rdbuf();
  const std::string source = text.str();
  static const std::regex call(R"(\b(?:body|fields)\.\w+\(\s*"(\w+)\"|\((?:body|fields), "(\w+)\"|\{"(\w+)\", Kind::)");
  Names names;
  for (auto it = std::sregex_iterator(source.begin(), source.end(), call); it != std::sregex_iterator(); ++it) {
    for (size_t form = 1; form < it->size(); ++form) {
      if ((*it)[form].matched) names.insert((*it)[form].str());
    }
  }
  EXPECT_GE(names.size(), 3u) << file;
  return names;
}

TEST_F(OpenApi, WhatReadersReadIsDescribed) {
  const std::map<std::string, std::vector<std::string>> readers = {
      {"ChatRequest",
       {"api/generation_fields.cc", "api/chat_request.cc", "api/chat_prompt.cc", "api/output_format.cc",
        "chat/messages.cc"}},
      {"CompletionRequest", {"api/generation_fields.cc", "api/completions.cc", "api/output_format.cc"}},
      {"MessagesRequest", {"api/generation_fields.cc", "api/messages_request.cc"}},
      {"ResponsesRequest", {"api/generation_fields.cc", "api/responses_request.cc", "chat/messages.cc"}},
      {"TokenizeRequest", {"api/tokenize.cc", "api/chat_prompt.cc", "chat/messages.cc"}},
      {"TemplateRequest", {"api/chat_prompt.cc", "chat/messages.cc"}},
  };
  for (const auto& [name, files] : readers) {
    const Names described = fields(name);
    for (const std::string& file : files) {
      for (const std::string& field : read_in(file)) {
        if (name == "TokenizeRequest" && field == "tokens") continue;         // of /detokenize, read in the same file
        if (name != "MessagesRequest" && field == "output_config") continue;  // the same, of /v1/messages
        EXPECT_TRUE(described.contains(field)) << file << " reads " << field << ", which " << name << " lacks";
      }
    }
  }
}

// Whether one type of value may stand for a property.
bool allows(const Json& property, const std::string& type) {
  if (property.contains("anyOf")) {
    return std::any_of(property["anyOf"].begin(), property["anyOf"].end(),
                       [&](const Json& one) { return allows(one, type); });
  }
  if (property.contains("enum")) {
    return std::any_of(property["enum"].begin(), property["enum"].end(), [&](const Json& value) {
      return (type == "string" && value.is_string()) || (type == "boolean" && value.is_boolean()) ||
             (type == "null" && value.is_null());
    });
  }
  if (!property.contains("type")) return true;
  const Json& types = property["type"];
  if (types.is_string()) return types == type;
  return std::find(types.begin(), types.end(), type) != types.end();
}

// The other direction: a field that is described is read, so a value of a type that the description does not allow is
// refused by its name, and null is taken where it says so.
TEST_F(OpenApi, WhatIsDescribedIsRead) {
  const std::map<std::string, std::pair<std::string, std::string>> bodies = {
      {"ChatRequest", {"/v1/chat/completions", R"({"messages":[{"role":"user","content":"a"}]})"}},
      {"CompletionRequest", {"/v1/completions", R"({"prompt":"a"})"}},
      {"MessagesRequest", {"/v1/messages", R"({"messages":[{"role":"user","content":"a"}]})"}},
      {"ResponsesRequest", {"/v1/responses", R"({"input":"a"})"}},
      {"TemplateRequest", {"/apply-template", R"({"messages":[{"role":"user","content":"a"}]})"}},
      {"DetokenizeRequest", {"/detokenize", R"({"tokens":[1]})"}},
  };
  const std::map<std::string, Json> values = {
      {"boolean", true}, {"string", "\x01?"}, {"object", Json::parse(R"({"?":1})")}, {"array", Json::parse("[[{}]]")}};
  for (const auto& [name, where] : bodies) {
    const Json properties = schema(name).at("properties");
    for (const auto& [field, property] : properties.items()) {
      Json body = Json::parse(where.second);
      int tried = 0;
      for (const auto& [type, value] : values) {
        if (allows(property, type)) continue;
        body[field] = value;
        Setup setup;
        const auto responder = setup.call("POST", where.first, body.dump());
        ASSERT_EQ(responder->replies.size(), 1u) << name << " " << field << " " << type;
        EXPECT_EQ(responder->replies[0].status, 400) << name << " " << field << " " << value.dump();
        EXPECT_NE(responder->replies[0].body.find(field), std::string::npos) << responder->replies[0].body;
        ++tried;
      }
      EXPECT_GT(tried, 0) << name << " " << field;
      if (!allows(property, "null")) continue;
      body[field] = nullptr;
      Setup setup;
      const auto responder = setup.call("POST", where.first, body.dump());
      if (!responder->replies.empty()) {
        EXPECT_EQ(responder->replies[0].status, 200) << name << " " << field << " null " << responder->replies[0].body;
      }
    }
  }
}

// Bounds are those of the readers: the value at a bound is taken, the next one is not.
TEST_F(OpenApi, BoundsAreTheReaders) {
  struct Case {
    std::string schema, path, body;
  };
  const std::vector<Case> cases = {
      {"ChatRequest", "/v1/chat/completions", R"({"messages":[{"role":"user","content":"a"}],"logprobs":true})"},
      {"CompletionRequest", "/v1/completions", R"({"prompt":"a"})"},
      {"MessagesRequest", "/v1/messages", R"({"messages":[{"role":"user","content":"a"}]})"},
      {"ResponsesRequest", "/v1/responses", R"({"input":"a"})"}};
  const auto status = [](const Case& one, const std::string& field, const Json& value) {
    Json body = Json::parse(one.body);
    body[field] = value;
    Setup setup;
    const auto responder = setup.call("POST", one.path, body.dump());
    return responder->replies.empty() ? 200 : responder->replies[0].status;  // no answer yet: it runs
  };
  int tried = 0;
  for (const Case& one : cases) {
    const Json properties = schema(one.schema).at("properties");
    for (const auto& [field, property] : properties.items()) {
      if (!property.contains("type") || (!allows(property, "integer") && !allows(property, "number"))) continue;
      for (const int step : {-1, 1}) {
        const char* bound = step < 0 ? "minimum" : "maximum";
        if (!property.contains(bound)) continue;
        const Json& edge = property[bound];
        Json beyond;
        if (allows(property, "integer")) {
          const auto bounding = edge.get<int64_t>();
          if (bounding == (step < 0 ? std::numeric_limits<int64_t>::min() : std::numeric_limits<int64_t>::max()))
            continue;
          beyond = bounding + step;
        } else {
          beyond = edge.get<double>() + step * (edge.get<double>() == 0.000001 ? 1e-6 : 0.001);
        }
        EXPECT_EQ(status(one, field, edge), 200) << one.schema << " " << field << " " << edge;
        EXPECT_EQ(status(one, field, beyond), 400) << one.schema << " " << field << " " << beyond;
        ++tried;
      }
      if (property.contains("exclusiveMinimum")) {
        EXPECT_EQ(status(one, field, property["exclusiveMinimum"]), 400) << one.schema << " " << field;
        ++tried;
      }
    }
  }
  EXPECT_GT(tried, 40);
}

}  // namespace
}  // namespace tandem::api::openapi_test
