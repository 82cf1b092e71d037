// Why a prompt was not resumed: digests of states that are kept under other salts or were kept once. They explain a
// miss; what is reused is decided by comparing tokens.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace tandem::cache {

struct StateDigest {
  uint64_t low = 0, high = 0;  // XXH3-128 of the ids
  uint64_t salt = 0;           // XXH3-64
  int64_t length = 0;          // ids, ≥ 1
  int32_t last = 0;            // last id: tells most prompts apart without hashing
};

uint64_t digest_of_salt(std::string_view salt);
StateDigest digest_of(std::span<const int32_t> ids, std::string_view salt);

// The last `size` digests added.
class DigestRing {
 public:
  explicit DigestRing(size_t size) : size_(size) { digests_.reserve(size); }
  void add(const StateDigest& digest);
  std::span<const StateDigest> digests() const { return digests_; }

 private:
  size_t size_, next_ = 0;
  std::vector<StateDigest> digests_;
};

// Digests that may be prefixes of one prompt, compared with it in one pass.
class DigestSearch {
 public:
  // The room that every search may need.
  explicit DigestSearch(size_t digests) { candidates_.reserve(digests); }
  void start(std::span<const int32_t> ids, int64_t longer_than, int64_t limit);
  // `kind`: what a match means; 0 matters most.
  void offer(const StateDigest& digest, int kind);
  // The smallest kind of a match, -1: none.
  int finish();

 private:
  struct Candidate {
    const StateDigest* digest;
    int kind;
  };
  std::span<const int32_t> ids_;
  int64_t longer_than_ = 0, limit_ = 0;
  std::vector<Candidate> candidates_;
};

}  // namespace tandem::cache
