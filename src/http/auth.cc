// API keys.
#include "http/auth.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include "base/error.h"

namespace tandem::http {

KeyRing::KeyRing(const std::vector<std::string>& keys) {
  for (const std::string& key : keys) {
    if (key.empty()) throw Error(ErrorCode::usage, "--api-key", "an empty key", "a key of at least one character");
    digests_.push_back(digest(key));
  }
}

KeyRing::Digest KeyRing::digest(std::string_view key) {
  Digest digest{};
  SHA256(reinterpret_cast<const unsigned char*>(key.data()), key.size(), digest.data());
  return digest;
}

int64_t KeyRing::index_of(std::string_view key) const {
  const Digest given = digest(key);
  int64_t found = -1;
  // Every digest is compared, so the time says nothing about which one was right.
  for (size_t i = 0; i < digests_.size(); ++i) {
    if (CRYPTO_memcmp(digests_[i].data(), given.data(), given.size()) == 0) found = static_cast<int64_t>(i);
  }
  return found;
}

std::string_view bearer_token(std::string_view authorization) {
  constexpr std::string_view scheme = "bearer ";
  if (authorization.size() < scheme.size()) return {};
  for (size_t i = 0; i < scheme.size(); ++i) {
    const char c = authorization[i];
    const char lower = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    if (lower != scheme[i]) return {};
  }
  std::string_view token = authorization.substr(scheme.size());
  while (!token.empty() && token.front() == ' ') token.remove_prefix(1);
  while (!token.empty() && token.back() == ' ') token.remove_suffix(1);
  return token;
}

}  // namespace tandem::http
