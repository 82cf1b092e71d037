// A list in order of use with an index by prompt.
#include "api/reply_ids.h"

#define XXH_INLINE_ALL  // the header alone: nothing to link
#include <xxhash.h>

#include <iterator>
#include <utility>

namespace tandem::api {

struct PromptHash::State {
  XXH3_state_t hash;
};

PromptHash::PromptHash(std::string_view salt) : state_(std::make_unique<State>()) {
  XXH3_128bits_reset_withSeed(&state_->hash, XXH3_64bits(salt.data(), salt.size()));
}

PromptHash::~PromptHash() = default;

void PromptHash::push(std::span<const int32_t> ids) {
  XXH3_128bits_update(&state_->hash, ids.data(), ids.size_bytes());
}

PromptKey PromptHash::key(std::span<const int32_t> more) const {
  State state = *state_;
  XXH3_128bits_update(&state.hash, more.data(), more.size_bytes());
  const XXH128_hash_t hash = XXH3_128bits_digest(&state.hash);
  return {hash.high64, hash.low64};
}

void ReplyIds::put(const PromptKey& prompt, std::vector<int32_t> ids) {
  if (ids.empty() || ids.size() > most_tokens_) return;
  const std::lock_guard lock(mutex_);
  const auto [first, last] = by_prompt_.equal_range(prompt);
  for (auto it = first; it != last; ++it) {
    if (*it->second->ids == ids) return entries_.splice(entries_.begin(), entries_, it->second);
  }
  while (!entries_.empty() && (entries_.size() >= most_replies_ || tokens_ + ids.size() > most_tokens_)) {
    forget_oldest();
  }
  tokens_ += ids.size();
  entries_.push_front({prompt, std::make_shared<const std::vector<int32_t>>(std::move(ids))});
  by_prompt_.emplace(prompt, entries_.begin());
}

std::vector<ReplyIds::Ids> ReplyIds::find(const PromptKey& prompt) {
  std::vector<Ids> found;
  const std::lock_guard lock(mutex_);
  const auto [first, last] = by_prompt_.equal_range(prompt);
  for (auto it = first; it != last; ++it) {
    found.push_back(it->second->ids);
    entries_.splice(entries_.begin(), entries_, it->second);
  }
  return found;
}

void ReplyIds::forget_oldest() {
  const auto oldest = std::prev(entries_.end());
  const auto [first, last] = by_prompt_.equal_range(oldest->prompt);
  for (auto it = first; it != last; ++it) {
    if (it->second != oldest) continue;
    by_prompt_.erase(it);
    break;
  }
  tokens_ -= oldest->ids->size();
  entries_.erase(oldest);
}

size_t ReplyIds::size() const {
  const std::lock_guard lock(mutex_);
  return entries_.size();
}

size_t ReplyIds::tokens() const {
  const std::lock_guard lock(mutex_);
  return tokens_;
}

}  // namespace tandem::api
