// Error bodies of the OpenAI dialects (spec/frontend.md D.9).
#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <string_view>

#include "api/endpoint.h"

namespace tandem::api {

// An error with the HTTP status and the four members of the body. `type` is one of invalid_request_error,
// authentication_error, permission_error, not_found_error, rate_limit_error, server_error, overloaded_error. Empty
// `param` and `code` are written as null.
class ApiError : public std::exception {
 public:
  ApiError(int status, std::string type, std::string message, std::string param = {}, std::string code = {});

  const char* what() const noexcept override { return message_.c_str(); }
  int status() const { return status_; }
  const std::string& type() const { return type_; }
  const std::string& param() const { return param_; }
  const std::string& code() const { return code_; }
  // {"error":{"message","type","param","code"}}
  std::string body() const;
  // The body with the headers that its status asks for: WWW-Authenticate (401), Retry-After (429, 503).
  Reply reply() const;

 private:
  int status_;
  std::string type_, message_, param_, code_;
};

// 400 naming a field.
ApiError invalid_field(std::string_view field, std::string_view message);
// 400 for a field whose meaning this version does not implement; ignoring it would give another result than asked for.
ApiError not_supported(std::string_view field, std::string_view what);
// 503: loading, draining or broken.
ApiError unavailable(std::string_view message);
// 429: more requests than the engine runs and the queue holds.
ApiError queue_full();
// 504: the server's limit for one request has passed.
ApiError deadline_exceeded();
// 400: what the request asks of its reply leaves no token after `tokens` of them.
ApiError no_token_left(int64_t tokens);
// 413 for a body over `limit` bytes.
ApiError too_large(size_t limit);

// Whatever was thrown, as the client may see it: ApiError as is; QueueFull as 429; Error(usage) as 400 with its field;
// Error(resource) as 503; Error(does_not_fit) as 400; everything else as 500 without detail (the detail goes to the
// log).
ApiError to_api_error(std::exception_ptr error) noexcept;

}  // namespace tandem::api
