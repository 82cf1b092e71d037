// fuzz-room: api
// The body of POST /v1/chat/completions from outside: it becomes a request that the engine can run, or one of the two
// error types. What the engine would be given must keep its promises.
#include <cstdint>
#include <string_view>

#include "api/chat_prompt.h"
#include "api/errors.h"
#include "base/error.h"
#include "base/log.h"
#include "nano_model.h"

namespace {

using tandem::fuzz::require;

void check(const tandem::api::PreparedChat& prepared) {
  const auto& request = prepared.engine_request;
  require(!request.prompt_ids.empty() && request.max_tokens >= 1);
  require(static_cast<int64_t>(request.prompt_ids.size()) + request.max_tokens <= 500);
  require(request.min_tokens >= 0 && request.min_tokens <= request.max_tokens);
  const auto& sampling = request.sampling;
  require(sampling.temperature >= 0 && sampling.temperature <= 2 && sampling.top_k >= 0);
  require(sampling.top_p > 0 && sampling.top_p <= 1 && sampling.min_p >= 0 && sampling.min_p <= 1);
  for (const int32_t id : request.stop_token_ids) require(id >= 0 && id < 2048);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const tandem::fuzz::NanoModel model;
  tandem::set_log_level(tandem::LogLevel::error);
  try {
    check(tandem::api::prepare_chat({reinterpret_cast<const char*>(data), size}, model.served, {true, true}));
  } catch (const tandem::api::ApiError& error) {
    require(error.status() == 400 || error.status() == 404);
  } catch (const tandem::Error& error) {
    require(error.code() == tandem::ErrorCode::usage);
  }
  return 0;
}
