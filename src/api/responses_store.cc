// A list in order of age with an index.
#include "api/responses_store.h"

#include <algorithm>

namespace tandem::api {

namespace {

size_t memory_of(const chat::Message& message) {
  size_t bytes = sizeof(chat::Message) + message.tool_call_id.size();
  for (const chat::Part& part : message.content) bytes += sizeof part + part.text.size() + part.id.size();
  if (message.reasoning_content) bytes += message.reasoning_content->size();
  for (const chat::ToolCall& call : message.tool_calls) {
    bytes += sizeof call + call.id.size() + call.name.size() + call.arguments.size();
  }
  return bytes;
}

size_t memory_of(const StoredResponse& response) {
  size_t bytes = sizeof response + response.id.size() + response.body.size();
  for (const chat::Message& message : response.messages) bytes += memory_of(message);
  for (const auto& [id, message] : response.items) bytes += 2 * sizeof(std::string) + id.size() + memory_of(message);
  return bytes;
}

}  // namespace

void ResponseStore::put(StoredResponse response) {
  const auto stored = std::make_shared<const StoredResponse>(std::move(response));
  const size_t bytes = memory_of(*stored);
  const std::lock_guard lock(mutex_);
  if (const auto found = by_id_.find(stored->id); found != by_id_.end()) remove(found->second);
  if (bytes > most_bytes_) return;
  while (!entries_.empty() && (entries_.size() >= most_responses_ || bytes_ + bytes > most_bytes_)) {
    remove(entries_.begin());
  }
  entries_.push_back({stored, bytes});
  bytes_ += bytes;
  by_id_[stored->id] = std::prev(entries_.end());
  for (const auto& item : stored->items) by_item_[item.first] = stored.get();
}

void ResponseStore::remove(Entries::const_iterator entry) {
  const StoredResponse& response = *entry->response;
  for (const auto& item : response.items) by_item_.erase(item.first);
  by_id_.erase(response.id);
  bytes_ -= entry->bytes;
  entries_.erase(entry);
}

ResponseStore::Entries::const_iterator ResponseStore::find_entry(std::string_view id, int64_t client) const {
  const auto found = by_id_.find(id);
  if (found == by_id_.end() || found->second->response->client != client) return entries_.end();
  return found->second;
}

std::shared_ptr<const StoredResponse> ResponseStore::find(std::string_view id, int64_t client) const {
  const std::lock_guard lock(mutex_);
  const auto entry = find_entry(id, client);
  return entry == entries_.end() ? nullptr : entry->response;
}

std::optional<chat::Message> ResponseStore::find_item(std::string_view item_id, int64_t client) const {
  const std::lock_guard lock(mutex_);
  const auto found = by_item_.find(item_id);
  if (found == by_item_.end() || found->second->client != client) return std::nullopt;
  const auto& items = found->second->items;
  return std::find_if(items.begin(), items.end(), [item_id](const auto& item) { return item.first == item_id; })
      ->second;
}

bool ResponseStore::erase(std::string_view id, int64_t client) {
  const std::lock_guard lock(mutex_);
  const auto entry = find_entry(id, client);
  if (entry == entries_.end()) return false;
  remove(entry);
  return true;
}

size_t ResponseStore::size() const {
  const std::lock_guard lock(mutex_);
  return entries_.size();
}

size_t ResponseStore::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

}  // namespace tandem::api
