// Rows that do not depend on each other, shared by the threads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "device/threads.h"

namespace tandem::ops {

// Calls body(row) for all rows, up to `most` of them in a task: as many as make a task worth taking. Few rows, as of
// several streams that decode together, become smaller tasks, or one thread would do all of them; one row is no
// parallel region at all.
template <typename Body>
void for_rows(device::Threads& threads, int64_t rows, int64_t most, const Body& body) {
  const int64_t shares = 2 * threads.count();
  const int64_t rows_of_task = std::clamp<int64_t>((rows + shares - 1) / shares, 1, most);
  threads.run((rows + rows_of_task - 1) / rows_of_task, [&](int64_t task) {
    const int64_t end = std::min(rows, (task + 1) * rows_of_task);
    for (int64_t row = task * rows_of_task; row < end; ++row) body(row);
  });
}

}  // namespace tandem::ops
