// A reply that goes round in circles (spec/frontend.md D.2, repetition_detection).
#pragma once

#include <cstdint>
#include <span>

namespace tandem::engine {

// A pattern of min_size to max_size tokens, min_count times in a row at the end of the reply, ends it.
struct RepetitionLimit {
  int64_t max_size = 0;  // 0: off
  int64_t min_size = 1;
  int64_t min_count = 2;

  bool is_on() const { return max_size > 0; }
};

inline constexpr int64_t most_pattern_size = 1024, most_pattern_count = 1024;

// Whether the tokens end in such a repetition. Takes at most max_size · size of the shortest mismatch comparisons.
bool ends_in_repetition(std::span<const int32_t> reply, const RepetitionLimit& limit);

}  // namespace tandem::engine
