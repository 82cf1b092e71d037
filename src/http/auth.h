// API keys (spec/frontend.md D.11). Only digests are kept, and they are compared in constant time.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::http {

class KeyRing {
 public:
  // Throws Error(usage) for an empty key, which would let everybody in.
  explicit KeyRing(const std::vector<std::string>& keys);

  bool empty() const { return digests_.empty(); }
  bool accepts(std::string_view key) const { return index_of(key) >= 0; }
  // Which key it is, from 0; -1: none of them.
  int64_t index_of(std::string_view key) const;

 private:
  using Digest = std::array<unsigned char, 32>;
  static Digest digest(std::string_view key);

  std::vector<Digest> digests_;  // SHA-256
};

// K of "Bearer K" (the scheme in any case), empty for another scheme.
std::string_view bearer_token(std::string_view authorization);

}  // namespace tandem::http
