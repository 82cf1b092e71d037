// Random bytes from getrandom(2), SHA-256 from libcrypto.
#include "api/random.h"

#include <fmt/core.h>
#include <openssl/sha.h>
#include <sys/random.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace tandem::api {

namespace {

void fill_random(std::span<unsigned char> out) {
  // Requests of up to 256 bytes are never cut short once the generator is seeded; EINTR can come before that.
  while (getrandom(out.data(), out.size(), 0) != static_cast<ssize_t>(out.size())) {
    if (errno != EINTR) throw Error(ErrorCode::internal, "getrandom", std::strerror(errno));
  }
}

}  // namespace

std::string random_hex(int bytes) {
  std::array<unsigned char, 64> buffer{};
  const std::span<unsigned char> used(buffer.data(), static_cast<size_t>(bytes));
  fill_random(used);
  std::string hex;
  for (const unsigned char byte : used) hex += fmt::format("{:02x}", byte);
  return hex;
}

uint64_t random_seed() {
  std::array<unsigned char, 8> bytes{};
  fill_random(bytes);
  uint64_t seed = 0;
  std::memcpy(&seed, bytes.data(), sizeof seed);
  return seed >> 11;
}

uint64_t seed_of_prompt(std::span<const int32_t> prompt_ids) {
  std::string text;
  text.reserve(prompt_ids.size() * 7);
  for (const int32_t id : prompt_ids) {
    if (!text.empty()) text += ',';
    text += fmt::format("{}", id);
  }
  text += "|0";
  std::array<unsigned char, SHA256_DIGEST_LENGTH> digest{};
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest.data());
  uint64_t seed = 0;
  for (int i = 7; i >= 0; --i) seed = seed << 8 | digest[static_cast<size_t>(i)];
  return seed & 0x7FFFFFFFFFFFFFFFu;
}

}  // namespace tandem::api
