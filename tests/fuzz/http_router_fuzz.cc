// The head of a request, after Beast has taken it apart: paths, hosts, keys, CORS. Lines of the input are its parts.
// fuzz-room: http
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "http/router.h"
#include "http/wire.h"

namespace {

namespace api = tandem::api;
namespace http = tandem::http;

http::Router make_router(const std::vector<std::string>& keys, bool loopback) {
  const api::Handler nothing = [](api::HttpRequest, std::shared_ptr<api::Responder>) {};
  return {
      {{"GET", "/open", true, nothing}, {"GET", "/v1/models/*", false, nothing}, {"POST", "/v1/chat", false, nothing}},
      http::KeyRing(keys),
      loopback,
      "Example.org"};
}

void require(bool holds) {
  if (!holds) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const http::Router keyed = make_router({"secret"}, false), keyless = make_router({}, true);
  std::vector<std::string> parts(1);
  for (const char c : std::string_view(reinterpret_cast<const char*>(data), size)) {
    if (c == '\n') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  parts.resize(8);
  http::RequestHead head;
  head.method = parts[0];
  head.target = parts[1];
  head.host = parts[2];
  head.authorization = parts[3];
  head.x_api_key = parts[4];
  head.content_encoding = parts[5];
  head.requested_headers = parts[6];
  head.request_id = parts[7];
  for (const http::Router* router : {&keyed, &keyless}) {
    const http::Decision decision = router->decide(head);
    require(decision.reply.has_value() || decision.route != nullptr);
    if (!decision.reply) {
      const bool has_key = head.x_api_key == "secret" || http::bearer_token(head.authorization) == "secret";
      require(router == &keyless || decision.route->open || has_key);
      require(decision.path.find('\0') == std::string::npos && decision.path.starts_with('/'));
      continue;
    }
    // Whatever a client sent, an answer has the lines that it was given and no other.
    const std::string bytes = http::response_head(decision.reply->status, decision.reply->headers);
    size_t lines = 0;
    for (size_t at = 0; (at = bytes.find("\r\n", at)) != std::string::npos; at += 2) ++lines;
    require(lines == decision.reply->headers.size() + 2);
    require(bytes.find("\n\n") == std::string::npos);
  }
  return 0;
}
