// Addresses, validity and moves of context rows.
#include "cache/context_ring.h"

#include <algorithm>

namespace tandem::cache {

ContextRing::ContextRing(const model::DrafterShape& shape, ops::CacheElement element, int64_t slots, int64_t records)
    : layers_(shape.num_hidden_layers),
      width_(shape.key_width()),
      ring_rows_(shape.ring_rows()),
      kept_rows_(shape.kept_rows()),
      element_(element),
      ring_(slots * bytes_of_slot(shape, element), "context rows of the drafter", "a smaller --max-num-seqs"),
      records_(records * bytes_of_record(shape, element), "kept context rows of the drafter",
               "a smaller --kept-states-memory"),
      valid_from_(static_cast<size_t>(slots)),
      record_valid_from_(static_cast<size_t>(records)) {}

int64_t ContextRing::bytes_of_slot(const model::DrafterShape& s, ops::CacheElement element) {
  return s.num_hidden_layers * s.ring_rows() * 2 * s.key_width() * ops::element_bytes(element);
}

int64_t ContextRing::bytes_of_record(const model::DrafterShape& s, ops::CacheElement element) {
  return s.num_hidden_layers * s.kept_rows() * 2 * s.key_width() * ops::element_bytes(element);
}

int64_t ContextRing::begin_rows(int64_t slot, int64_t position, int64_t rows, int64_t context_from) {
  int64_t& from = valid_from_[static_cast<size_t>(slot)];
  if (position == 0) from = 0;
  const int64_t end = position + rows;
  const int64_t first = std::min(end, std::max({position, context_from, end - ring_rows_}));
  // Rows beyond `position` that an earlier step stored are of a continuation that was dropped.
  from = first > position ? first : std::min(from, position);
  return first;
}

void ContextRing::store(int64_t slot, int64_t number, int64_t position, const float* key, const float* value) {
  static constexpr int32_t whole = 0;  // the ring is a plane of one page
  const ops::PagedPlane plane{layer(slot, number), &whole, ring_rows_, 2 * width_, element_};
  plane.store(position % ring_rows_, 0, width_, key);
  plane.store(position % ring_rows_, width_, width_, value);
}

ops::ContextRows ContextRing::rows(int64_t slot, int64_t number) const {
  return {layer(slot, number), ring_rows_, element_, valid_from(slot)};
}

void ContextRing::save(device::Threads& threads, int64_t slot, int64_t length, int64_t to) {
  const int64_t first = std::min(length, std::max({int64_t{0}, length - kept_rows_, valid_from(slot)}));
  threads.run(layers_, [&](int64_t number) {
    const std::byte* ring = layer(slot, number);
    std::byte* packed = record(to, number);
    for (int64_t p = first; p < length; ++p)
      std::copy_n(ring + p % ring_rows_ * row_bytes(), row_bytes(), packed + (p - first) * row_bytes());
  });
  record_valid_from_[static_cast<size_t>(to)] = first;
}

void ContextRing::restore(device::Threads& threads, int64_t from, int64_t length, int64_t slot) {
  const int64_t first = record_valid_from_[static_cast<size_t>(from)];
  threads.run(layers_, [&](int64_t number) {
    std::byte* ring = layer(slot, number);
    const std::byte* packed = record(from, number);
    for (int64_t p = first; p < length; ++p)
      std::copy_n(packed + (p - first) * row_bytes(), row_bytes(), ring + p % ring_rows_ * row_bytes());
  });
  valid_from_[static_cast<size_t>(slot)] = first;
}

}  // namespace tandem::cache
