// The ring of context rows: wrap, validity, what a record holds.
#include "cache/context_ring.h"

#include <gtest/gtest.h>

namespace tandem::cache::context_ring_test {
namespace {

model::DrafterShape small() {
  model::DrafterShape shape;
  shape.num_hidden_layers = 2;
  shape.num_key_value_heads = 1;
  shape.head_dim = 4;
  shape.sliding_window = 10;  // a ring of 9 + 16 rows
  return shape;
}

constexpr int64_t window = 10, ring_rows = 25, width = 4;

float mark(int64_t layer, int64_t position, int64_t run) {
  return static_cast<float>(1000 * run + 10 * position + layer) / 8.0f;
}

// Puts rows of a step in, told apart by `run`.
int64_t put(ContextRing& ring, int64_t slot, int64_t position, int64_t rows, int64_t context_from = 0,
            int64_t run = 0) {
  const int64_t first = ring.begin_rows(slot, position, rows, context_from);
  for (int64_t p = first; p < position + rows; ++p) {
    for (int64_t layer = 0; layer < 2; ++layer) {
      const std::vector<float> key(width, mark(layer, p, run)), value(width, -mark(layer, p, run));
      ring.store(slot, layer, p, key.data(), value.data());
    }
  }
  return first;
}

void expect_row(const ContextRing& ring, int64_t slot, int64_t position, int64_t run = 0) {
  for (int64_t layer = 0; layer < 2; ++layer) {
    const ops::ContextRows rows = ring.rows(slot, layer);
    const auto* row = reinterpret_cast<const float*>(rows.data) + position % rows.ring_rows * 2 * width;
    EXPECT_EQ(row[0], mark(layer, position, run)) << "key " << position;
    EXPECT_EQ(row[width - 1], mark(layer, position, run)) << "key " << position;
    EXPECT_EQ(row[width], -mark(layer, position, run)) << "value " << position;
    EXPECT_EQ(row[2 * width - 1], -mark(layer, position, run)) << "value " << position;
  }
}

TEST(ContextRing, Wraps) {
  ContextRing ring(small(), ops::CacheElement::f32, 2, 0);
  for (int64_t position = 0; position < 100; position += 7) {
    EXPECT_EQ(put(ring, 1, position, 7), position);
    EXPECT_EQ(ring.valid_from(1), 0);
    for (int64_t p = std::max<int64_t>(0, position + 7 - ring_rows); p < position + 7; ++p) expect_row(ring, 1, p);
  }
  EXPECT_EQ(ring.rows(1, 0).ring_rows, ring_rows);
  EXPECT_EQ(ring.rows(1, 0).element, ops::CacheElement::f32);
}

TEST(ContextRing, AChunkLongerThanTheRingLeavesItsLastRows) {
  ContextRing ring(small(), ops::CacheElement::f32, 1, 0);
  EXPECT_EQ(put(ring, 0, 0, 80), 80 - ring_rows);
  EXPECT_EQ(ring.valid_from(0), 80 - ring_rows);
  for (int64_t p = 80 - ring_rows; p < 80; ++p) expect_row(ring, 0, p);
  // Whatever of the last 16 rows is dropped, a block sees W − 1 valid rows.
  EXPECT_LE(ring.valid_from(0), 80 - 16 - (window - 1));
}

TEST(ContextRing, ValidFrom) {
  ContextRing ring(small(), ops::CacheElement::f32, 1, 0);
  EXPECT_EQ(put(ring, 0, 0, 5), 0);
  EXPECT_EQ(put(ring, 0, 5, 5, 8), 8);  // 5 to 7 are skipped: what lay before them is of no use
  EXPECT_EQ(ring.valid_from(0), 8);
  EXPECT_EQ(put(ring, 0, 10, 3, 100), 13);  // none is captured
  EXPECT_EQ(ring.valid_from(0), 13);
  EXPECT_EQ(put(ring, 0, 13, 4, 13), 13);
  EXPECT_EQ(ring.valid_from(0), 13);
  EXPECT_EQ(put(ring, 0, 11, 4), 11);  // rolled back below it and captured again
  EXPECT_EQ(ring.valid_from(0), 11);
  EXPECT_EQ(put(ring, 0, 15, 4, 17), 17);
  EXPECT_EQ(put(ring, 0, 0, 3, 1), 1);  // a new stream
  EXPECT_EQ(ring.valid_from(0), 1);
  EXPECT_EQ(put(ring, 0, 0, 3), 0);
  EXPECT_EQ(ring.valid_from(0), 0);
}

TEST(ContextRing, RecordsHoldWhatABlockCanSee) {
  ContextRing ring(small(), ops::CacheElement::f32, 2, 2);
  device::Threads threads(2);
  put(ring, 0, 0, 40);
  put(ring, 0, 40, 16, 0, 1);  // drafts, of which 5 are kept
  ring.save(threads, 0, 45, 1);
  put(ring, 0, 45, 30, 0, 2);  // the slot goes on
  put(ring, 1, 0, 60, 0, 3);   // and the other one is used by another stream
  ring.restore(threads, 1, 45, 1);
  EXPECT_EQ(ring.valid_from(1), 45 - (window - 1));
  for (int64_t p = 36; p < 45; ++p) expect_row(ring, 1, p, p < 40 ? 0 : 1);
  ring.save(threads, 1, 45, 0);  // a copy of a copy
  ring.restore(threads, 0, 45, 0);
  for (int64_t p = 36; p < 45; ++p) expect_row(ring, 0, p, p < 40 ? 0 : 1);
}

TEST(ContextRing, RecordsOfShortAndOfPartlyValidStreams) {
  ContextRing ring(small(), ops::CacheElement::f32, 2, 3);
  device::Threads threads(1);
  put(ring, 0, 0, 4);
  ring.save(threads, 0, 4, 0);
  put(ring, 0, 4, 10, 12);  // valid from 12 of 14
  ring.save(threads, 0, 14, 1);
  ring.save(threads, 0, 9, 2);  // before what is valid: nothing
  ring.restore(threads, 0, 4, 1);
  EXPECT_EQ(ring.valid_from(1), 0);
  for (int64_t p = 0; p < 4; ++p) expect_row(ring, 1, p);
  ring.restore(threads, 1, 14, 1);
  EXPECT_EQ(ring.valid_from(1), 12);
  expect_row(ring, 1, 12), expect_row(ring, 1, 13);
  ring.restore(threads, 2, 9, 1);
  EXPECT_EQ(ring.valid_from(1), 9);
}

TEST(ContextRing, Bf16IsHalfAndRounded) {
  const model::DrafterShape shape = small();
  EXPECT_EQ(ContextRing::bytes_of_slot(shape, ops::CacheElement::f32), 2 * ring_rows * 2 * width * 4);
  EXPECT_EQ(ContextRing::bytes_of_slot(shape, ops::CacheElement::bf16), 2 * ring_rows * 2 * width * 2);
  EXPECT_EQ(ContextRing::bytes_of_record(shape, ops::CacheElement::bf16), 2 * 9 * 2 * width * 2);
  ContextRing ring(shape, ops::CacheElement::bf16, 1, 1);
  device::Threads threads(1);
  ring.begin_rows(0, 0, 1, 0);
  const std::vector<float> key = {1.0f, 1.00390625f, 1.01171875f, -3.0f}, value(width, 0.5f);  // two ties, to even
  ring.store(0, 1, 0, key.data(), value.data());
  ring.save(threads, 0, 1, 0);
  put(ring, 0, 0, 3, 0, 5);
  ring.restore(threads, 0, 1, 0);
  const auto* row = reinterpret_cast<const uint16_t*>(ring.rows(0, 1).data);
  EXPECT_EQ(std::vector<uint16_t>(row, row + 5), (std::vector<uint16_t>{0x3f80, 0x3f80, 0x3f82, 0xc040, 0x3f00}));
}

}  // namespace
}  // namespace tandem::cache::context_ring_test
