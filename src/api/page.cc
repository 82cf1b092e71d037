// The page and the header fields that bound what it may do.
#include "api/page.h"

#include <fmt/core.h>
#include <openssl/evp.h>
#include <openssl/sha.h>

#include <array>

#include "api/embedded.h"
#include "base/error.h"

namespace tandem::api {

namespace {

// What stands between the tags: browsers hash exactly that.
std::string_view inside(std::string_view html, std::string_view open, std::string_view close) {
  const size_t begin = html.find(open), end = html.find(close, begin);
  if (begin == std::string_view::npos || end == std::string_view::npos) {
    throw Error(ErrorCode::internal, "page", fmt::format("no {}", open), "one script and one style");
  }
  return html.substr(begin + open.size(), end - begin - open.size());
}

std::string sha256_base64(std::string_view text) {
  std::array<unsigned char, SHA256_DIGEST_LENGTH> digest{};
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest.data());
  std::array<unsigned char, 4 * ((SHA256_DIGEST_LENGTH + 2) / 3) + 1> base64{};
  EVP_EncodeBlock(base64.data(), digest.data(), static_cast<int>(digest.size()));
  return reinterpret_cast<const char*>(base64.data());
}

}  // namespace

std::string content_policy(std::string_view html) {
  return fmt::format(
      "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; img-src data:; connect-src 'self'; "
      "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
      sha256_base64(inside(html, "<script>", "</script>")), sha256_base64(inside(html, "<style>", "</style>")));
}

Reply page_reply() {
  static const std::string_view html = embedded_file("page/index.html");
  static const std::string policy = content_policy(html);
  Reply reply;
  reply.content_type = "text/html; charset=utf-8";
  reply.headers = {{"Content-Security-Policy", policy},
                   {"X-Content-Type-Options", "nosniff"},
                   {"X-Frame-Options", "DENY"},
                   {"Referrer-Policy", "no-referrer"},
                   {"Cross-Origin-Opener-Policy", "same-origin"},
                   {"Cache-Control", "no-cache"}};
  reply.body = html;
  return reply;
}

}  // namespace tandem::api
