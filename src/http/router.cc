// Routing, keys, CORS.
#include "http/router.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "api/errors.h"

namespace tandem::http {

using api::ApiError;

namespace {

constexpr std::string_view allowed_methods = "GET, POST, DELETE, OPTIONS";

ApiError bad_request(std::string message) { return {400, "invalid_request_error", std::move(message)}; }

// Path of a request target: origin form ("/a?b") or absolute form ("http://host/a?b"). Percent-decoded, trailing
// slashes removed; empty when it is neither or not decodable.
std::optional<std::string> path_of(std::string_view target) {
  if (const size_t scheme = target.find("://"); !target.starts_with('/') && scheme != std::string_view::npos) {
    const size_t slash = target.find('/', scheme + 3);
    target = slash == std::string_view::npos ? "/" : target.substr(slash);
  }
  if (!target.starts_with('/')) return std::nullopt;
  auto path = percent_decode(target.substr(0, target.find_first_of("?#")));
  if (!path || std::any_of(path->begin(), path->end(), [](char c) { return static_cast<unsigned char>(c) < 0x20; })) {
    return std::nullopt;
  }
  while (path->size() > 1 && path->back() == '/') path->pop_back();
  return path;
}

std::string query_of(std::string_view target) {
  target = target.substr(0, target.find('#'));
  const size_t mark = target.find('?');
  return mark == std::string_view::npos ? std::string() : std::string(target.substr(mark + 1));
}

bool path_matches(const std::string& pattern, const std::string& path) {
  if (!pattern.ends_with("/*")) return pattern == path;
  const std::string_view prefix = std::string_view(pattern).substr(0, pattern.size() - 1);
  return path.size() > prefix.size() && path.starts_with(prefix);
}

}  // namespace

std::string host_name(std::string_view host) {
  size_t end = host.find(':');
  if (host.starts_with('[')) {
    end = host.find(']');
    if (end == std::string_view::npos || (++end < host.size() && host[end] != ':')) return {};
  }
  std::string name(host.substr(0, end));
  std::transform(name.begin(), name.end(), name.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  return name;
}

bool is_loopback_name(std::string_view name) {
  if (name == "localhost" || name == "[::1]") return true;
  return name.starts_with("127.") && name.find_first_not_of("0123456789.") == std::string_view::npos;
}

Router::Router(std::vector<api::Route> routes, KeyRing keys, bool loopback, std::string_view own_name)
    : routes_(std::move(routes)), keys_(std::move(keys)), loopback_(loopback), own_name_(host_name(own_name)) {}

Headers Router::common_headers() const {
  if (!cors_allowed()) return {};
  return {{"Access-Control-Allow-Origin", "*"}, {"Access-Control-Expose-Headers", "x-request-id, retry-after"}};
}

std::string Router::methods_of(const std::string& path) const {
  std::string methods;
  for (const api::Route& route : routes_) {
    if (path_matches(route.path, path)) methods += route.method == "GET" ? "GET, HEAD, " : route.method + ", ";
  }
  return methods;
}

api::Reply Router::preflight(const RequestHead& head) const {
  api::Reply reply;
  reply.status = 204;
  const std::string methods = methods_of(path_of(head.target).value_or(""));
  reply.headers.emplace_back("Allow", methods.empty() ? std::string(allowed_methods) : methods + "OPTIONS");
  if (!cors_allowed()) return reply;
  reply.headers.emplace_back("Access-Control-Allow-Methods", allowed_methods);
  if (!head.requested_headers.empty()) {
    reply.headers.emplace_back("Access-Control-Allow-Headers", head.requested_headers);
  }
  reply.headers.emplace_back("Access-Control-Max-Age", "600");
  return reply;
}

// The first of the three fields that holds a known key; 0: none does.
int64_t Router::client_of(const RequestHead& head) const {
  for (const std::string_view key :
       {bearer_token(head.authorization), std::string_view(head.x_api_key), std::string_view(head.api_key)}) {
    if (const int64_t index = key.empty() ? -1 : keys_.index_of(key); index >= 0) return index + 1;
  }
  return 0;
}

std::optional<ApiError> Router::refuse(const RequestHead& head, bool open) const {
  // Without a key the loopback address is the only guard, and a web page whose name was re-bound to 127.0.0.1 would get
  // past it; such a page still sends its own name as Host.
  if (keys_.empty() && loopback_ && !head.host.empty()) {
    const std::string name = host_name(head.host);
    if (name.empty() || (!is_loopback_name(name) && name != own_name_)) {
      return ApiError(403, "permission_error", "This server answers to localhost, 127.0.0.1 and [::1] only.");
    }
  }
  if (!open && !authorised(head)) {
    return ApiError(401, "authentication_error", "Missing or wrong API key.", {}, "invalid_api_key");
  }
  return std::nullopt;
}

Decision Router::decide(const RequestHead& head) const {
  Decision decision;
  if (head.method == "OPTIONS") {
    decision.reply = preflight(head);
    return decision;
  }
  const auto path = path_of(head.target);
  if (!path) {
    decision.reply = bad_request("The request target is not a valid path.").reply();
    return decision;
  }
  decision.path = *path;
  decision.query = query_of(head.target);
  decision.client = client_of(head);
  decision.head_only = head.method == "HEAD";
  const std::string_view method = decision.head_only ? "GET" : std::string_view(head.method);
  bool known_path = false, open = false;
  auto refusal = api::Route().refusal;
  const auto answer = [&](const ApiError& error) {
    decision.reply = refusal ? refusal(error, head.request_id) : error.reply();
  };
  for (const api::Route& route : routes_) {
    if (!path_matches(route.path, decision.path)) continue;
    known_path = true;
    open = open || route.open;
    if (route.method == method) decision.route = &route;
    if (route.refusal) refusal = route.refusal;
  }
  if (const auto error = refuse(head, open)) {
    answer(*error);
  } else if (!known_path) {
    answer({404, "not_found_error", fmt::format("No such path: {}", decision.path)});
  } else if (!decision.route) {
    answer({405, "invalid_request_error", fmt::format("{} is not allowed on {}.", head.method, decision.path)});
    decision.reply->headers.emplace_back("Allow", methods_of(decision.path) + "OPTIONS");
  } else if (!head.content_encoding.empty() && head.content_encoding != "identity") {
    answer({415, "invalid_request_error", "Compressed request bodies are not supported."});
  }
  return decision;
}

}  // namespace tandem::http
