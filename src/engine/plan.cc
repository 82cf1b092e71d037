// The planner: pages from memory, the checks, and what would fit where something does not.
#include "engine/plan.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <vector>

#include "base/error.h"

namespace tandem::engine {
namespace {

constexpr int64_t page_rows = forward::TextModel::page_rows;
constexpr int64_t largest_chunk = 65536;
constexpr int64_t largest_memory = int64_t{1} << 50;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

void check_range(const char* name, int64_t value, int64_t smallest, int64_t largest) {
  if (value < smallest || value > largest)
    throw Error(ErrorCode::usage, name, fmt::format("{}", value), fmt::format("{} to {}", smallest, largest));
}

void check_if_set(const char* name, int64_t value, int64_t smallest, int64_t largest) {
  if (value != 0) check_range(name, value, smallest, largest);
}

int32_t chunk_of(const PlanSettings& s) {
  return s.max_num_batched_tokens != 0 ? s.max_num_batched_tokens : default_max_num_batched_tokens;
}

void check_settings(const PlanSettings& s, int64_t max_position_embeddings) {
  check_if_set("--max-model-len", s.max_model_len, 2, max_position_embeddings);
  check_if_set("--max-num-batched-tokens", s.max_num_batched_tokens, 1, largest_chunk);
  check_if_set("--kv-cache-memory", s.kv_cache_memory, 1, largest_memory);
  check_range("--max-num-seqs", s.max_num_seqs, 1, largest_max_num_seqs);
  check_range("--kept-states-memory", s.kept_states_memory, 0, largest_memory);
  check_range("--tensor-parallel-size", s.ranks.tensor_parallel_size, 1, 2);
  check_range("--decode-context-parallel-size", s.ranks.decode_context_parallel_size, 1, 2);
  if (s.ranks.decode_context_parallel_size > s.ranks.tensor_parallel_size)
    throw Error(ErrorCode::usage, "--decode-context-parallel-size",
                fmt::format("{} with --tensor-parallel-size {}", s.ranks.decode_context_parallel_size,
                            s.ranks.tensor_parallel_size),
                fmt::format("1, or --tensor-parallel-size {}", s.ranks.decode_context_parallel_size));
  check_range("draft rows", s.max_draft_rows, 0, 16 * largest_max_num_seqs);
  if (chunk_of(s) < s.max_num_seqs)
    throw Error(ErrorCode::usage, "--max-num-batched-tokens", fmt::format("{}", chunk_of(s)),
                fmt::format("at least --max-num-seqs {}, a row for each stream", s.max_num_seqs));
}

// Sizes that do not depend on how many there are.
struct Units {
  int64_t page = 0, stream = 0, kept_state = 0;
};

class Planner {
 public:
  Planner(int64_t max_position_embeddings, const PlannedBytes& planned_bytes, const PlanSettings& settings)
      : limit_(max_position_embeddings), bytes_(planned_bytes), s_(settings) {
    forward::Capacity base = first_capacity();
    base.slots = 1;
    const int64_t bytes = bytes_(base);
    const auto difference = [&](auto forward::Capacity::*field) {
      forward::Capacity more = base;
      ++(more.*field);
      return std::max<int64_t>(1, bytes_(more) - bytes);
    };
    units_ = {difference(&forward::Capacity::pages), difference(&forward::Capacity::slots),
              difference(&forward::Capacity::kept_states)};
  }

  // Checks everything but the machine's memory.
  Plan lay_out() const {
    check_settings(s_, limit_);
    Plan plan;
    plan.ranks = s_.ranks.tensor_parallel_size;
    plan.page_groups = s_.ranks.decode_context_parallel_size;
    plan.page_bytes = units_.page;
    plan.stream_bytes = units_.stream;
    plan.kept_state_bytes = units_.kept_state;
    plan.capacity = first_capacity();
    plan.capacity.kept_states = static_cast<int32_t>(
        std::min<int64_t>(s_.kept_states_memory / units_.kept_state, std::numeric_limits<int32_t>::max() - 1));

    const int64_t wanted = s_.max_model_len != 0 ? s_.max_model_len : limit_;
    const int64_t stream = ceil_div(wanted, page_rows);                            // entries of a page table
    const int64_t share = ceil_div(stream, plan.page_groups);                      // pages of a rank
    const int64_t useful = share * (s_.max_num_seqs + plan.capacity.kept_states);  // nobody could hold more
    const int64_t affordable = std::min(budget(plan.capacity, stream) / units_.page - 1, useful);  // a null page
    if (s_.max_model_len != 0 && share > affordable) refuse_length(affordable * plan.page_groups);
    plan.max_model_len = std::min(wanted, affordable * plan.page_groups * page_rows);
    plan.capacity.pages = affordable + 1;
    plan.capacity.max_stream_pages = ceil_div(plan.max_model_len, page_rows);
    plan.pool_rows = affordable * plan.page_groups * page_rows;
    plan.total_bytes = bytes_(plan.capacity);
    return plan;
  }

  int64_t sharers() const { return s_.memory_of_each_rank ? 1 : s_.ranks.tensor_parallel_size; }

  bool fits(const Plan& plan) const {
    return s_.machine_memory == 0 || sharers() * plan.total_bytes <= s_.machine_memory;
  }

 private:
  forward::Capacity first_capacity() const {
    forward::Capacity c;
    c.slots = s_.max_num_seqs;
    c.pages = 2;
    c.max_stream_pages = 1;
    c.max_rows = chunk_of(s_);
    c.max_logit_rows = std::max(c.max_logit_rows, s_.max_num_seqs + s_.max_draft_rows);
    c.kept_states = 0;
    c.cache_type = s_.cache_type;
    c.compute = s_.compute;
    c.mtp = s_.mtp;
    return c;
  }

  bool fill() const { return s_.fill_memory && s_.kv_cache_memory == 0; }

  // Bytes for the pages of a rank's pool: at least two pages, of which one is the null page.
  int64_t budget(forward::Capacity capacity, int64_t stream_pages) const {
    if (!fill()) {
      const int64_t given = s_.kv_cache_memory != 0 ? s_.kv_cache_memory : default_kv_cache_memory;
      if (given < 2 * units_.page)
        throw Error(ErrorCode::does_not_fit, "--kv-cache-memory", size_at_most(given),
                    fmt::format("at least {} (two pages of {} tokens)", size_at_least(2 * units_.page), page_rows));
      return given;
    }
    capacity.max_stream_pages = stream_pages;
    capacity.pages = std::max<int64_t>(capacity.pages, stream_pages + 1);  // activations may grow with either
    const int64_t rest = bytes_(capacity) - capacity.pages * units_.page, left = s_.machine_memory / sharers() - rest;
    if (left < 2 * units_.page)
      throw Error(ErrorCode::does_not_fit, "memory",
                  fmt::format("streams, kept states and activations need {} of the {} that the weights leave",
                              size_at_least(rest), size_at_most(std::max<int64_t>(0, s_.machine_memory / sharers()))));
    return left;
  }

  [[noreturn]] void refuse_length(int64_t entries) const {
    const int64_t pages = ceil_div(ceil_div(s_.max_model_len, page_rows), s_.ranks.decode_context_parallel_size) + 1;
    const std::string what = fmt::format("--max-model-len {}", entries * page_rows);
    if (fill())
      throw Error(ErrorCode::does_not_fit, "--max-model-len",
                  fmt::format("{} tokens need a pool of {}", s_.max_model_len, size_at_least(pages * units_.page)),
                  what + " or less");
    throw Error(ErrorCode::does_not_fit, "--max-model-len",
                fmt::format("{} tokens do not fit into --kv-cache-memory of {}", s_.max_model_len,
                            size_at_most(s_.kv_cache_memory != 0 ? s_.kv_cache_memory : default_kv_cache_memory)),
                fmt::format("{} or --kv-cache-memory of at least {}", what, size_at_least(pages * units_.page)));
  }

  int64_t limit_;
  const PlannedBytes& bytes_;
  const PlanSettings& s_;
  Units units_;
};

// A setting that can be made smaller, step by step, until the plan fits.
struct Remedy {
  std::function<bool(PlanSettings&)> reduce;  // false: it is as small as it may be
  std::function<std::string(const PlanSettings&)> text;
};

// Sixteenths of what was set, then quarters of what is left, down to `smallest`.
template <typename T>
bool step_down(T& value, T set, T smallest) {
  if (value <= smallest) return false;
  value = std::max<T>(smallest, value - std::max<T>(1, std::min<T>(set / 16, value / 4)));
  return true;
}

std::vector<Remedy> remedies(const PlanSettings& set) {
  std::vector<Remedy> list;
  list.push_back(
      {[set](PlanSettings& s) { return step_down<int64_t>(s.kept_states_memory, set.kept_states_memory, 0); },
       [](const PlanSettings& s) { return "--kept-states-memory " + size_at_most(s.kept_states_memory); }});
  list.push_back({[](PlanSettings& s) { return step_down<int32_t>(s.max_num_seqs, 1, 1); },
                  [](const PlanSettings& s) { return fmt::format("--max-num-seqs {}", s.max_num_seqs); }});
  list.push_back(
      {[set](PlanSettings& s) {
         if (s.max_num_batched_tokens == 0) s.max_num_batched_tokens = default_max_num_batched_tokens;
         return step_down<int32_t>(s.max_num_batched_tokens, chunk_of(set), std::max(16, s.max_num_seqs));
       },
       [](const PlanSettings& s) { return fmt::format("--max-num-batched-tokens {}", s.max_num_batched_tokens); }});
  if (set.max_model_len != 0) {
    list.push_back(
        {[set](PlanSettings& s) { return step_down<int64_t>(s.max_model_len, set.max_model_len, page_rows); },
         [](const PlanSettings& s) { return fmt::format("--max-model-len {}", s.max_model_len); }});
  }
  if (!set.fill_memory || set.kv_cache_memory != 0) {
    const int64_t pool = set.kv_cache_memory != 0 ? set.kv_cache_memory : default_kv_cache_memory;
    list.push_back({[pool](PlanSettings& s) {
                      if (s.kv_cache_memory == 0) s.kv_cache_memory = pool;
                      return step_down<int64_t>(s.kv_cache_memory, pool, 1);
                    },
                    [](const PlanSettings& s) { return "--kv-cache-memory " + size_at_most(s.kv_cache_memory); }});
  }
  return list;
}

// The settings that would make the plan fit: each that does so alone, else all together.
std::string what_would_fit(int64_t limit, const PlannedBytes& bytes, const PlanSettings& set) {
  const auto fits = [&](const PlanSettings& settings) {
    try {
      const Planner planner(limit, bytes, settings);
      return planner.fits(planner.lay_out());
    } catch (const Error&) {
      return false;
    }
  };
  std::vector<std::string> alone, together;
  PlanSettings all = set;
  for (const Remedy& remedy : remedies(set)) {
    PlanSettings changed = set;
    bool fit = false;
    while (!fit && remedy.reduce(changed)) fit = fits(changed);
    if (fit) alone.push_back(remedy.text(changed));
    bool reduced = false;
    while (!fits(all) && remedy.reduce(all)) reduced = true;
    if (reduced) together.push_back(remedy.text(all));
  }
  if (!alone.empty()) return fmt::format("{}", fmt::join(alone, " or "));
  if (fits(all)) return fmt::format("{}", fmt::join(together, " with "));
  return "smaller weights or a larger machine";
}

std::string size_text(int64_t bytes, bool up) {
  const auto in = [&](int64_t unit) { return up ? ceil_div(bytes, unit) : bytes / unit; };
  if (bytes >= 1 << 20) return fmt::format("{}MiB", in(1 << 20));
  if (bytes >= 1 << 10) return fmt::format("{}KiB", in(1 << 10));
  return fmt::format("{}B", bytes);
}

}  // namespace

std::string size_at_least(int64_t bytes) { return size_text(bytes, true); }
std::string size_at_most(int64_t bytes) { return size_text(bytes, false); }

Plan make_plan(int64_t max_position_embeddings, const PlannedBytes& planned_bytes, const PlanSettings& settings) {
  check_settings(settings, max_position_embeddings);
  const Planner planner(max_position_embeddings, planned_bytes, settings);
  std::string found, where = "memory";
  try {
    Plan plan = planner.lay_out();
    if (planner.fits(plan)) return plan;
    found = fmt::format("the plan needs {} and {} has {} left", size_at_least(planner.sharers() * plan.total_bytes),
                        settings.memory_of_each_rank ? "each rank" : "this machine",
                        size_at_most(std::max<int64_t>(0, settings.machine_memory)));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::does_not_fit || !error.expected().empty()) throw;
    found = error.found();
  }
  throw Error(ErrorCode::does_not_fit, where, found, what_would_fit(max_position_embeddings, planned_bytes, settings));
}

}  // namespace tandem::engine
