// Matching tool results with the calls that they answer.
#include "chat/tool_results.h"

#include <unordered_map>

namespace tandem::chat {
namespace {

std::vector<ToolResult> received_results(std::span<const Message> run) {
  std::vector<ToolResult> results;
  for (const Message& message : run) {
    if (message.content.empty() || message.content.front().kind != Part::Kind::output) {
      results.push_back({&message, nullptr, message.tool_call_id});
      continue;
    }
    for (const Part& part : message.content) {
      if (part.kind == Part::Kind::output) results.push_back({&message, &part, part.id});
    }
  }
  return results;
}

}  // namespace

std::vector<ToolResult> ordered_results(std::span<const Message> run, const Message* caller) {
  std::vector<ToolResult> received = received_results(run);
  if (caller == nullptr || caller->tool_calls.empty()) return received;

  std::unordered_map<std::string_view, std::size_t> call_of_id;
  for (std::size_t i = 0; i < caller->tool_calls.size(); ++i) {
    const std::string& id = caller->tool_calls[i].id;
    if (id.empty() || !call_of_id.emplace(id, i).second) return received;
  }
  std::vector<const ToolResult*> result_of_call(caller->tool_calls.size(), nullptr);
  for (const ToolResult& result : received) {
    const auto call = call_of_id.find(result.id);
    if (call == call_of_id.end() || result_of_call[call->second] != nullptr) return received;
    result_of_call[call->second] = &result;
  }
  std::vector<ToolResult> ordered;
  for (const ToolResult* result : result_of_call) {
    if (result != nullptr) ordered.push_back(*result);
  }
  return ordered;
}

}  // namespace tandem::chat
