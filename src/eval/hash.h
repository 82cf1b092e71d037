// SHA-256 (OpenSSL's) of what lies in several pieces, and of files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "device/threads.h"
#include "eval/quality_text.h"

namespace tandem::eval {

class Hasher {
 public:
  Hasher();
  ~Hasher();
  Hasher(const Hasher&) = delete;
  Hasher& operator=(const Hasher&) = delete;

  void add(std::span<const std::byte> bytes);
  void add(std::string_view text) { add(std::as_bytes(std::span(text))); }
  Sha256 finish();  // once

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

Sha256 sha256(std::string_view text);

struct FileFacts {
  int64_t bytes = 0;
  std::string sha256;  // lower-case hexadecimal

  bool operator==(const FileFacts&) const = default;
};

// Of each file, several at a time. Throws Error naming a file that cannot be read.
std::map<std::string, FileFacts> facts_of_files(const std::filesystem::path& folder,
                                                const std::vector<std::string>& names, device::Threads& threads);

// A 64-bit number that depends on `seed` and on every character of `label`: where random choices come from.
uint64_t seed_of(uint64_t seed, std::string_view label);

}  // namespace tandem::eval
