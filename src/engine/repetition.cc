// The tail against itself, one pattern size after another.
#include "engine/repetition.h"

#include <algorithm>

namespace tandem::engine {

bool ends_in_repetition(std::span<const int32_t> reply, const RepetitionLimit& limit) {
  const auto length = static_cast<int64_t>(reply.size());
  for (int64_t size = limit.min_size; size <= limit.max_size && size * limit.min_count <= length; ++size) {
    const auto tail = reply.last(static_cast<size_t>(size * limit.min_count));
    // Repeated: every token equals the one a pattern before it. From the end, where a difference shows first.
    const auto later = tail.subspan(static_cast<size_t>(size));
    if (std::equal(later.rbegin(), later.rend(), tail.first(later.size()).rbegin())) return true;
  }
  return false;
}

}  // namespace tandem::engine
