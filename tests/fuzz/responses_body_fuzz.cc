// fuzz-room: api
// The body of POST /v1/responses from outside: it becomes a request that the engine can run and a response object that
// is JSON, or one of the two error types.
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string_view>

#include "api/errors.h"
#include "api/reply_ids.h"
#include "api/responses_dialect.h"
#include "api/responses_store.h"
#include "base/error.h"
#include "base/log.h"
#include "nano_model.h"

namespace {

using tandem::fuzz::require;

tandem::api::ChatRules rules_with_store() {
  tandem::api::ChatRules rules;
  rules.reply_ids = std::make_shared<tandem::api::ReplyIds>();
  rules.responses = std::make_shared<tandem::api::ResponseStore>();
  tandem::api::StoredResponse kept;
  kept.id = "resp_1";
  tandem::chat::Message said;
  said.role = tandem::chat::Role::assistant;
  said.tool_calls.push_back({"call_1", "f", R"({"input": "x"})"});
  kept.messages = {said};
  kept.items.emplace_back("fc_1", said);
  rules.responses->put(std::move(kept));
  return rules;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const tandem::fuzz::NanoModel model;
  static const tandem::api::ChatRules rules = rules_with_store();
  tandem::set_log_level(tandem::LogLevel::error);
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  try {
    auto prepared = tandem::api::prepare_responses(body, model.served, rules, 0);
    const auto& request = prepared.engine_request;
    const auto prompt = static_cast<int64_t>(request.prompt_ids.size());
    require(prompt >= 1 && request.max_tokens >= 1 && prompt + request.max_tokens <= 500);
    using Kind = tandem::chat::ReplyPiece::Kind;
    const std::vector<tandem::chat::ReplyPiece> pieces{
        {Kind::reasoning, "r"},   {Kind::content, "c"}, {Kind::call, "f"}, {Kind::arguments, R"({"input": "a\n\"})"},
        {Kind::arguments, "\"}"}, {Kind::call_end, ""}};
    const std::string whole = prepared.dialect->whole(pieces, {"stop", {}, false, false}, {}, {});
    const auto response = nlohmann::json::parse(whole);
    require(response["output"].size() == 3 && response["status"] == "completed");
  } catch (const tandem::api::ApiError& error) {
    require(error.status() == 400 || error.status() == 404);
  } catch (const tandem::Error& error) {
    require(error.code() == tandem::ErrorCode::usage);
  }
  return 0;
}
