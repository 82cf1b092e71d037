// fuzz-room: api
// The bodies of POST /v1/completions, /tokenize and /detokenize from outside: requests that the engine can run and
// texts, or one of the two error types.
#include <cstdint>
#include <string_view>

#include "api/completions.h"
#include "api/errors.h"
#include "api/tokenize.h"
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
  for (const int32_t id : request.prompt_ids) require(id >= 0 && id < 2048);
  for (const auto& [id, bias] : request.sampling.logit_bias) {
    require(id >= 0 && id < 2048 && bias >= -100 && bias <= 100);
  }
  require(request.logprobs >= -1 && request.logprobs <= 20);
  require(prepared.dialect != nullptr && prepared.others.size() < 128);
  for (const auto& other : prepared.others) check(other);
}

template <typename Call>
void guarded(Call call) {
  try {
    call();
  } catch (const tandem::api::ApiError& error) {
    require(error.status() == 400 || error.status() == 404);
  } catch (const tandem::Error& error) {
    require(error.code() == tandem::ErrorCode::usage);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const tandem::fuzz::NanoModel model;
  tandem::set_log_level(tandem::LogLevel::error);
  const std::string_view body{reinterpret_cast<const char*>(data), size};
  guarded([&] { check(tandem::api::prepare_completion(body, model.served, {true, true})); });
  guarded([&] { require(!tandem::api::tokenize(body, model.served, {}).empty()); });
  guarded([&] { require(!tandem::api::detokenize(body, model.served, {}).empty()); });
  return 0;
}
