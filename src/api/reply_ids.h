// The ids of replies as the model wrote them. A client sends a reply back as text, and text rendered and tokenised
// again is often not the same ids: white space is stripped, JSON is spaced anew, words are cut elsewhere. Then nothing
// of the reply could be resumed from the cache. So the ids are kept and put into the next prompt where the client's
// message is what they say (spec/frontend.md C.7).
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace tandem::api {

// Of the ids that a reply follows, and of the request's cache_salt. A hash: who finds a reply by it still has to
// compare what it says, so a collision cannot put words into the assistant's mouth.
struct PromptKey {
  uint64_t high = 0, low = 0;
  bool operator==(const PromptKey&) const = default;
};

class PromptHash {
 public:
  explicit PromptHash(std::string_view salt);
  ~PromptHash();
  PromptHash(const PromptHash&) = delete;
  PromptHash& operator=(const PromptHash&) = delete;

  void push(std::span<const int32_t> ids);
  // Of all ids so far and `more`.
  PromptKey key(std::span<const int32_t> more = {}) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Bounded; those that were not used for longest leave first. Thread-safe.
class ReplyIds {
 public:
  static constexpr size_t most_replies = 4096, most_tokens = size_t{4} << 20;  // of 4 bytes

  using Ids = std::shared_ptr<const std::vector<int32_t>>;

  explicit ReplyIds(size_t the_most_replies = most_replies, size_t the_most_tokens = most_tokens)
      : most_replies_(the_most_replies), most_tokens_(the_most_tokens) {}

  // `ids`: without the stop token. A reply that is kept already becomes the newest.
  void put(const PromptKey& prompt, std::vector<int32_t> ids);
  // Every reply to this prompt; they become the newest.
  std::vector<Ids> find(const PromptKey& prompt);

  size_t size() const;
  size_t tokens() const;

 private:
  struct Entry {
    PromptKey prompt;
    Ids ids;
  };
  using Entries = std::list<Entry>;  // newest first
  struct HashOfKey {
    size_t operator()(const PromptKey& key) const { return static_cast<size_t>(key.low); }
  };

  void forget_oldest();

  const size_t most_replies_, most_tokens_;
  mutable std::mutex mutex_;
  Entries entries_;
  size_t tokens_ = 0;
  std::unordered_multimap<PromptKey, Entries::iterator, HashOfKey> by_prompt_;
};

}  // namespace tandem::api
