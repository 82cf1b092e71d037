// fuzz-room: api
// The body of POST /v1/messages from outside: it becomes a request that the engine can run, or one of the two error
// types; counting its tokens agrees with the prompt.
#include <fmt/core.h>

#include <cstdint>
#include <string_view>

#include "api/errors.h"
#include "api/messages_dialect.h"
#include "base/error.h"
#include "base/log.h"
#include "nano_model.h"

namespace {

using tandem::fuzz::require;

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const tandem::fuzz::NanoModel model;
  tandem::set_log_level(tandem::LogLevel::error);
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  try {
    const auto prepared = tandem::api::prepare_messages(body, model.served, {true, true}, "id");
    const auto& request = prepared.engine_request;
    const auto prompt = static_cast<int64_t>(request.prompt_ids.size());
    require(prompt >= 1 && request.max_tokens >= 1 && prompt + request.max_tokens <= 500);
    require(tandem::api::count_tokens_reply(body, model.served) == fmt::format("{{\"input_tokens\":{}}}", prompt));
  } catch (const tandem::api::ApiError& error) {
    require(error.status() == 400 || error.status() == 404);
  } catch (const tandem::Error& error) {
    require(error.code() == tandem::ErrorCode::usage);
  }
  return 0;
}
