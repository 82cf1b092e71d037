// How many parts of a size a count makes: tasks, blocks and pieces of many operations.
#pragma once

#include <cstdint>

namespace tandem::ops {

// Parts of at most `size` that `count` makes: ceil(count / size); count >= 0, size > 0.
constexpr int64_t divide_up(int64_t count, int64_t size) { return (count + size - 1) / size; }

}  // namespace tandem::ops
