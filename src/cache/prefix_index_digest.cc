// XXH3 over token ids; the hash of every prefix of a prompt costs one pass over it.
#include "cache/prefix_index_digest.h"

#define XXH_INLINE_ALL  // the header alone: nothing to link
#include <xxhash.h>

#include <algorithm>

namespace tandem::cache {

uint64_t digest_of_salt(std::string_view salt) { return XXH3_64bits(salt.data(), salt.size()); }

StateDigest digest_of(std::span<const int32_t> ids, std::string_view salt) {
  const XXH128_hash_t hash = XXH3_128bits(ids.data(), ids.size_bytes());
  return {hash.low64, hash.high64, digest_of_salt(salt), std::ssize(ids), ids.back()};
}

void DigestRing::add(const StateDigest& digest) {
  if (digests_.size() < size_) {
    digests_.push_back(digest);
  } else {
    digests_[next_] = digest;
    next_ = (next_ + 1) % size_;
  }
}

void DigestSearch::start(std::span<const int32_t> ids, int64_t longer_than, int64_t limit) {
  ids_ = ids;
  longer_than_ = longer_than;
  limit_ = std::min(limit, std::ssize(ids));
  candidates_.clear();
}

void DigestSearch::offer(const StateDigest& digest, int kind) {
  if (digest.length > longer_than_ && digest.length <= limit_ &&
      ids_[static_cast<size_t>(digest.length - 1)] == digest.last)
    candidates_.push_back({&digest, kind});
}

int DigestSearch::finish() {
  std::sort(candidates_.begin(), candidates_.end(),
            [](const Candidate& a, const Candidate& b) { return a.digest->length < b.digest->length; });
  XXH3_state_t state;
  XXH3_128bits_reset(&state);
  XXH128_hash_t hash{};
  int64_t hashed = 0;
  int found = -1;
  for (const Candidate& candidate : candidates_) {
    const StateDigest& digest = *candidate.digest;
    if (digest.length > hashed) {
      const auto piece = ids_.subspan(static_cast<size_t>(hashed), static_cast<size_t>(digest.length - hashed));
      XXH3_128bits_update(&state, piece.data(), piece.size_bytes());
      hash = XXH3_128bits_digest(&state);
      hashed = digest.length;
    }
    if (hash.low64 != digest.low || hash.high64 != digest.high) continue;
    if (found < 0 || candidate.kind < found) found = candidate.kind;
    if (found == 0) break;
  }
  return found;
}

}  // namespace tandem::cache
