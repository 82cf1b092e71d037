// Decides from the head of a request what happens to it: a handler, or an answer at once (unknown path, wrong method,
// missing key, CORS preflight). Knows no sockets and no JSON shapes (error bodies come from api/errors.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "api/endpoint.h"
#include "api/errors.h"
#include "http/auth.h"
#include "http/wire.h"

namespace tandem::http {

// What the router needs of a request's head; empty means absent.
struct RequestHead {
  std::string method;
  std::string target;  // as on the request line
  std::string host;
  std::string authorization, x_api_key, api_key;
  std::string content_encoding;
  std::string requested_headers;  // Access-Control-Request-Headers
  std::string request_id;
};

struct Decision {
  std::optional<api::Reply> reply;    // answer at once…
  const api::Route* route = nullptr;  // …or call its handler with
  std::string path;                   // this path
  std::string query;                  // api::HttpRequest::query
  int64_t client = 0;                 // api::HttpRequest::client
  bool head_only = false;             // HEAD: the answer without its body
};

class Router {
 public:
  // loopback: the listener can be reached from this machine only, and `own_name` is what it was told to listen on.
  Router(std::vector<api::Route> routes, KeyRing keys, bool loopback, std::string_view own_name);

  // Routes stay valid as long as the router.
  Decision decide(const RequestHead& head) const;
  // Fields that every response carries (D.13).
  Headers common_headers() const;

 private:
  std::optional<api::ApiError> refuse(const RequestHead& head, bool open) const;
  // "GET, HEAD, POST, " of the routes of a path; empty for an unknown one.
  std::string methods_of(const std::string& path) const;
  api::Reply preflight(const RequestHead& head) const;
  int64_t client_of(const RequestHead& head) const;
  bool authorised(const RequestHead& head) const { return keys_.empty() || client_of(head) > 0; }
  bool cors_allowed() const { return !keys_.empty() || loopback_; }

  std::vector<api::Route> routes_;
  KeyRing keys_;
  bool loopback_;
  std::string own_name_;
};

// Name of a "Host" field without its port, in lower case; empty when it is malformed.
std::string host_name(std::string_view host);
// localhost, 127.x.x.x or [::1].
bool is_loopback_name(std::string_view name);

}  // namespace tandem::http
