// Addresses, validity and moves of context rows.
#include "cache/context_ring.h"

#include <algorithm>

namespace tandem::cache {

ContextRing::ContextRing(const model::DrafterShape& shape, ops::CacheElement element, int64_t slots, int64_t records)
    : book_(shape, slots, records),
      layers_(shape.num_hidden_layers),
      width_(shape.key_width()),
      element_(element),
      ring_(slots * bytes_of_slot(shape, element), "context rows of the drafter", "a smaller --max-num-seqs"),
      records_(records * bytes_of_record(shape, element), "kept context rows of the drafter",
               "a smaller --kept-states-memory") {}

int64_t ContextRing::bytes_of_slot(const model::DrafterShape& s, ops::CacheElement element) {
  return s.num_hidden_layers * s.ring_rows() * 2 * s.key_width() * ops::element_bytes(element);
}

int64_t ContextRing::bytes_of_record(const model::DrafterShape& s, ops::CacheElement element) {
  return s.num_hidden_layers * s.kept_rows() * 2 * s.key_width() * ops::element_bytes(element);
}

void ContextRing::store(int64_t slot, int64_t number, int64_t position, const float* key, const float* value) {
  static constexpr int32_t whole = 0;  // the ring is a plane of one page
  const ops::PagedPlane plane{layer(slot, number), &whole, book_.ring_rows(), 2 * width_, element_};
  plane.store(position % book_.ring_rows(), 0, width_, key);
  plane.store(position % book_.ring_rows(), width_, width_, value);
}

ops::ContextRows ContextRing::rows(int64_t slot, int64_t number) const {
  return {layer(slot, number), book_.ring_rows(), element_, valid_from(slot)};
}

void ContextRing::save(device::Threads& threads, int64_t slot, int64_t length, int64_t to) {
  const auto [first, end] = book_.save(slot, length, to);
  threads.run(layers_, [&, first = first, end = end](int64_t number) {
    const std::byte* ring = layer(slot, number);
    std::byte* packed = record(to, number);
    for (int64_t p = first; p < end; ++p)
      std::copy_n(ring + p % book_.ring_rows() * row_bytes(), row_bytes(), packed + (p - first) * row_bytes());
  });
}

void ContextRing::restore(device::Threads& threads, int64_t from, int64_t length, int64_t slot) {
  const auto [first, end] = book_.restore(from, length, slot);
  threads.run(layers_, [&, first = first, end = end](int64_t number) {
    std::byte* ring = layer(slot, number);
    const std::byte* packed = record(from, number);
    for (int64_t p = first; p < end; ++p)
      std::copy_n(packed + (p - first) * row_bytes(), row_bytes(), ring + p % book_.ring_rows() * row_bytes());
  });
}

}  // namespace tandem::cache
