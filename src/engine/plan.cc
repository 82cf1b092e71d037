// The planner of one stream on one device.
#include "engine/plan.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/error.h"

namespace tandem::engine {
namespace {

constexpr int64_t page_rows = forward::TextModel::page_rows;
constexpr int64_t largest_chunk = 65536;

int64_t pages_of(int64_t tokens) { return (tokens + page_rows - 1) / page_rows; }

void check_range(const char* name, int64_t value, int64_t smallest, int64_t largest) {
  if (value != 0 && (value < smallest || value > largest))
    throw Error(ErrorCode::usage, name, fmt::format("{}", value), fmt::format("{} to {}", smallest, largest));
}

// Rounded up to whole MiB, as a user would type it.
std::string bytes_to_ask_for(int64_t bytes) { return fmt::format("{} MiB", (bytes + (1 << 20) - 1) >> 20); }

}  // namespace

Plan make_plan(int64_t max_position_embeddings, const PlannedBytes& planned_bytes, const PlanSettings& settings) {
  check_range("--max-model-len", settings.max_model_len, 2, max_position_embeddings);
  check_range("--max-num-batched-tokens", settings.max_num_batched_tokens, 1, largest_chunk);
  check_range("--kv-cache-memory", settings.kv_cache_memory, 1, int64_t{1} << 50);
  const int64_t budget = settings.kv_cache_memory != 0 ? settings.kv_cache_memory : default_kv_cache_memory;

  Plan plan;
  plan.capacity.slots = 1;
  plan.capacity.max_rows =
      settings.max_num_batched_tokens != 0 ? settings.max_num_batched_tokens : default_max_num_batched_tokens;
  const auto bytes_with = [&](int64_t pages) {
    forward::Capacity capacity = plan.capacity;
    capacity.pages = pages;
    return planned_bytes(capacity);
  };
  plan.page_bytes = std::max<int64_t>(1, bytes_with(3) - bytes_with(2));
  const int64_t affordable = budget / plan.page_bytes - 1;  // the null page costs one
  if (affordable < 1)
    throw Error(ErrorCode::does_not_fit, "--kv-cache-memory", bytes_to_ask_for(budget),
                fmt::format("at least {} (two pages of {} tokens)", bytes_to_ask_for(2 * plan.page_bytes), page_rows));

  const int64_t wanted = settings.max_model_len != 0 ? settings.max_model_len : max_position_embeddings;
  if (settings.max_model_len != 0 && pages_of(wanted) > affordable)
    throw Error(ErrorCode::does_not_fit, "--max-model-len",
                fmt::format("{} tokens do not fit into --kv-cache-memory of {}", wanted, bytes_to_ask_for(budget)),
                fmt::format("--max-model-len {} or --kv-cache-memory of at least {}", affordable * page_rows,
                            bytes_to_ask_for((pages_of(wanted) + 1) * plan.page_bytes)));
  const int64_t pages = std::min(pages_of(wanted), affordable);
  plan.max_model_len = std::min(wanted, pages * page_rows);
  plan.capacity.pages = pages + 1;
  plan.total_bytes = planned_bytes(plan.capacity);

  if (settings.machine_memory != 0 && plan.total_bytes > settings.machine_memory) {
    const int64_t fixed = plan.total_bytes - plan.capacity.pages * plan.page_bytes;
    const int64_t pages_that_fit = (settings.machine_memory - fixed) / plan.page_bytes;
    throw Error(ErrorCode::does_not_fit, "memory",
                fmt::format("the plan needs {} and this machine has {} left", bytes_to_ask_for(plan.total_bytes),
                            bytes_to_ask_for(settings.machine_memory)),
                pages_that_fit >= 2
                    ? fmt::format("--max-model-len {} or less", std::min(wanted, (pages_that_fit - 1) * page_rows))
                    : "a smaller --max-num-batched-tokens or a larger machine");
  }
  return plan;
}

}  // namespace tandem::engine
