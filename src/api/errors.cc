// Error bodies: one place decides which status, type and headers an error has.
#include "api/errors.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/log.h"
#include "engine/engine.h"

namespace tandem::api {

ApiError::ApiError(int status, std::string type, std::string message, std::string param, std::string code)
    : status_(status),
      type_(std::move(type)),
      message_(std::move(message)),
      param_(std::move(param)),
      code_(std::move(code)) {}

std::string ApiError::body() const {
  using Json = nlohmann::ordered_json;
  Json error;
  error["message"] = message_;
  error["type"] = type_;
  error["param"] = param_.empty() ? Json(nullptr) : Json(param_);
  error["code"] = code_.empty() ? Json(nullptr) : Json(code_);
  Json body;
  body["error"] = std::move(error);
  return body.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Reply ApiError::reply() const {
  Reply reply;
  reply.status = status_;
  reply.body = body();
  if (status_ == 401) reply.headers.emplace_back("WWW-Authenticate", "Bearer");
  if (status_ == 429 || status_ == 503) reply.headers.emplace_back("Retry-After", "5");
  return reply;
}

ApiError invalid_field(std::string_view field, std::string_view message) {
  return {400, "invalid_request_error", fmt::format("{}: {}", field, message), std::string(field)};
}

ApiError not_supported(std::string_view field, std::string_view what) {
  return {400, "invalid_request_error", fmt::format("{}: {} is not supported yet", field, what), std::string(field),
          "unsupported_parameter"};
}

ApiError unavailable(std::string_view message) { return {503, "server_error", std::string(message)}; }

ApiError queue_full() { return {429, "rate_limit_error", "The queue is full; try again later.", {}, "queue_full"}; }

ApiError deadline_exceeded() {
  return {504, "server_error", "The request took longer than the server allows.", {}, "deadline_exceeded"};
}

ApiError no_token_left(int64_t tokens) {
  return {400,
          "invalid_request_error",
          fmt::format("After {} tokens of the reply none may follow: its form, allowed_token_ids, bad_words and "
                      "min_tokens exclude every one.",
                      tokens),
          {},
          "no_token_left"};
}

ApiError too_large(size_t limit) {
  return {413,
          "invalid_request_error",
          fmt::format("The request body is larger than {} bytes.", limit),
          {},
          "body_too_large"};
}

namespace {

ApiError from_error(const Error& error) {
  switch (error.code()) {
    case ErrorCode::usage:
    case ErrorCode::does_not_fit: return {400, "invalid_request_error", error.what(), error.where()};
    case ErrorCode::resource: return unavailable(error.what());
    default:
      log(LogLevel::error, "request failed: {}", error.what());
      return {500, "server_error", "The server failed to answer this request."};
  }
}

}  // namespace

ApiError to_api_error(std::exception_ptr error) noexcept {
  try {
    std::rethrow_exception(std::move(error));
  } catch (const ApiError& api_error) {
    return api_error;
  } catch (const engine::QueueFull&) {
    return queue_full();
  } catch (const Error& known) {
    return from_error(known);
  } catch (const std::exception& other) {
    log(LogLevel::error, "request failed: {}", other.what());
  } catch (...) {
    log(LogLevel::error, "request failed: unknown exception");
  }
  return {500, "server_error", "The server failed to answer this request."};
}

}  // namespace tandem::api
