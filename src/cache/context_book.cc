// Which context rows are there: positions from which on a ring or a record is whole.
#include "cache/context_book.h"

#include <algorithm>

namespace tandem::cache {

ContextBook::ContextBook(const model::DrafterShape& shape, int64_t slots, int64_t records)
    : ring_rows_(shape.ring_rows()),
      kept_rows_(shape.kept_rows()),
      valid_from_(static_cast<size_t>(slots)),
      record_valid_from_(static_cast<size_t>(records)) {}

int64_t ContextBook::begin_rows(int64_t slot, int64_t position, int64_t rows, int64_t context_from) {
  int64_t& from = valid_from_[static_cast<size_t>(slot)];
  if (position == 0) from = 0;
  const int64_t end = position + rows;
  const int64_t first = std::min(end, std::max({position, context_from, end - ring_rows_}));
  // Rows beyond `position` that an earlier step stored are of a continuation that was dropped.
  from = first > position ? first : std::min(from, position);
  return first;
}

ContextRange ContextBook::save(int64_t slot, int64_t length, int64_t record) {
  const int64_t first = std::min(length, std::max({int64_t{0}, length - kept_rows_, valid_from(slot)}));
  record_valid_from_[static_cast<size_t>(record)] = first;
  return {first, length};
}

ContextRange ContextBook::restore(int64_t record, int64_t length, int64_t slot) {
  const int64_t first = record_valid_from_[static_cast<size_t>(record)];
  valid_from_[static_cast<size_t>(slot)] = first;
  return {first, length};
}

}  // namespace tandem::cache
