// Responses that clients can come back to: by previous_response_id, by references to their items, by GET and DELETE
// (spec/frontend.md D.6). In memory, bounded, newest first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "chat/messages.h"

namespace tandem::api {

struct StoredResponse {
  std::string id;      // "resp_" and 48 hexadecimal digits
  int64_t client = 0;  // HttpRequest::client; nobody else finds it
  std::string body;    // the response object as it was sent
  bool is_cancelled = false;
  // The conversation up to and including the reply, without instructions.
  std::vector<chat::Message> messages;
  // Each output item by its id, as a message of the assistant that says only this.
  std::vector<std::pair<std::string, chat::Message>> items;
};

// Thread-safe.
class ResponseStore {
 public:
  static constexpr size_t most_responses = 1024, most_bytes = size_t{256} << 20;

  explicit ResponseStore(size_t the_most_responses = most_responses, size_t the_most_bytes = most_bytes)
      : most_responses_(the_most_responses), most_bytes_(the_most_bytes) {}

  // The oldest ones make room; one that is larger than the whole store is not kept.
  void put(StoredResponse response);
  // Null: unknown, forgotten or another client's.
  std::shared_ptr<const StoredResponse> find(std::string_view id, int64_t client) const;
  std::optional<chat::Message> find_item(std::string_view item_id, int64_t client) const;
  // False: there was none.
  bool erase(std::string_view id, int64_t client);

  size_t size() const;
  size_t bytes() const;

 private:
  struct Entry {
    std::shared_ptr<const StoredResponse> response;
    size_t bytes = 0;
  };
  using Entries = std::list<Entry>;  // oldest first

  Entries::const_iterator find_entry(std::string_view id, int64_t client) const;
  void remove(Entries::const_iterator entry);

  const size_t most_responses_, most_bytes_;
  mutable std::mutex mutex_;
  Entries entries_;
  size_t bytes_ = 0;
  // Keys point into the responses. Items: with the response that they belong to.
  std::unordered_map<std::string_view, Entries::const_iterator> by_id_;
  std::unordered_map<std::string_view, const StoredResponse*> by_item_;
};

}  // namespace tandem::api
