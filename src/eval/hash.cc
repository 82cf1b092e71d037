// OpenSSL's EVP interface.
#include "eval/hash.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <cstring>

#include "base/error.h"
#include "base/mapped_file.h"

namespace tandem::eval {

struct Hasher::Context {
  EVP_MD_CTX* digest = EVP_MD_CTX_new();
  ~Context() { EVP_MD_CTX_free(digest); }
  static void check(bool ok) {
    if (!ok) throw Error(ErrorCode::internal, "SHA-256", "OpenSSL refuses");
  }
};

Hasher::Hasher() : context_(std::make_unique<Context>()) {
  Context::check(context_->digest != nullptr && EVP_DigestInit_ex(context_->digest, EVP_sha256(), nullptr) == 1);
}
Hasher::~Hasher() = default;

void Hasher::add(std::span<const std::byte> bytes) {
  Context::check(EVP_DigestUpdate(context_->digest, bytes.data(), bytes.size()) == 1);
}

Sha256 Hasher::finish() {
  Sha256 result{};
  Context::check(EVP_DigestFinal_ex(context_->digest, reinterpret_cast<unsigned char*>(result.data()), nullptr) == 1);
  return result;
}

Sha256 sha256(std::string_view text) {
  Hasher hasher;
  hasher.add(text);
  return hasher.finish();
}

std::map<std::string, FileFacts> facts_of_files(const std::filesystem::path& folder,
                                                const std::vector<std::string>& names, device::Threads& threads) {
  std::vector<FileFacts> facts(names.size());
  threads.run(std::ssize(names), [&](int64_t i) {
    const auto at = static_cast<size_t>(i);
    const MappedFile file = MappedFile::open(folder / names[at]);
    Hasher hasher;
    hasher.add(file.bytes());
    facts[at] = {std::ssize(file.bytes()), hex(hasher.finish())};
  });
  std::map<std::string, FileFacts> result;
  for (size_t i = 0; i < names.size(); ++i) result.emplace(names[i], std::move(facts[i]));
  return result;
}

uint64_t seed_of(uint64_t seed, std::string_view label) {
  const Sha256 digest = sha256(fmt::format("{} {}", seed, label));
  uint64_t value = 0;
  for (size_t i = 0; i < sizeof value; ++i) value = value << 8 | std::to_integer<uint64_t>(digest[i]);
  return value;
}

}  // namespace tandem::eval
