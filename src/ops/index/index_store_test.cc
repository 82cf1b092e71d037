// Pooled index keys against spec/model.md 4.5 in double precision, and pools that several steps complete.
#include "ops/index/index_store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "ops/test_random.h"

namespace tandem::ops::index_store_test {
namespace {

using test::Random;
using test::same_bits;

struct Sequence {
  int64_t dim, kpool, rows;
  std::vector<float> key, gate, ape;

  int64_t pools() const { return rows / kpool; }
};

Sequence make_sequence(Random& random, int64_t dim, int64_t kpool, int64_t rows, float gate_size = 2.0f) {
  return {dim,
          kpool,
          rows,
          random.normals(rows * dim),
          random.normals(rows * dim, gate_size),
          random.normals(kpool * dim, 1.5f)};
}

// What the steps of one stream write; pages lie in a scrambled order.
struct Store {
  int64_t ring_rows;
  std::vector<float> ring_key, ring_gate, pool, scales;
  std::vector<int32_t> page_table;
  CacheElement element = CacheElement::f32;
  int32_t rank = 0, ranks = 1;

  Store(const Sequence& s, int64_t ring) : ring_rows(ring) {
    ring_key = ring_gate = test::unwritten(ring * s.dim);
    const int64_t pages = (s.rows + page_rows - 1) / page_rows;
    for (int64_t p = 0; p < pages; ++p) page_table.push_back(static_cast<int32_t>((p * 5 + 3) % (pages * 5 + 1)));
    pool = test::unwritten((pages * 5 + 1) * (page_rows / s.kpool) * s.dim);
    scales = test::unwritten((pages * 5 + 1) * (page_rows / s.kpool));
  }

  PagedPlane plane(const Sequence& s) {
    return {
        reinterpret_cast<std::byte*>(pool.data()),  page_table.data(), page_rows / s.kpool, s.dim, element, rank, ranks,
        reinterpret_cast<std::byte*>(scales.data())};
  }

  void step(device::Threads& threads, const Sequence& s, int64_t first, int64_t rows) {
    IndexStore a;
    a.dim = s.dim;
    a.kpool = s.kpool;
    a.position = first;
    a.rows = rows;
    a.key = s.key.data() + first * s.dim;
    a.gate = s.gate.data() + first * s.dim;
    a.ape = s.ape.data();
    a.ring_key = ring_key.data();
    a.ring_gate = ring_gate.data();
    a.ring_rows = ring_rows;
    a.pooled = plane(s);
    index_store(threads, a);
  }

  std::vector<float> pooled(const Sequence& s) {
    std::vector<float> out;
    const PagedPlane p = plane(s);
    out.resize(static_cast<size_t>(s.pools() * s.dim));
    for (int64_t i = 0; i < s.pools(); ++i) p.load(i, out.data() + i * s.dim);
    return out;
  }
};

std::vector<double> pooled_double(const Sequence& s) {
  std::vector<double> out;
  for (int64_t p = 0; p < s.pools(); ++p) {
    for (int64_t d = 0; d < s.dim; ++d) {
      double sum = 0, total = 0;
      for (int64_t j = 0; j < s.kpool; ++j) {
        const auto at = static_cast<size_t>((p * s.kpool + j) * s.dim + d);
        const double weight = std::exp(static_cast<double>(s.gate[at]) + s.ape[static_cast<size_t>(j * s.dim + d)]);
        sum += weight;
        total += weight * s.key[at];
      }
      out.push_back(total / sum);
    }
  }
  return out;
}

TEST(IndexStore, AgainstDouble) {
  device::Threads threads(3);
  Random random(1);
  for (const int64_t kpool : {1, 2, 4, 16, 64}) {
    for (const int64_t dim : {20, 32, 64, 100, 128}) {
      for (const float gate_size : {1.0f, 60.0f}) {  // 60: exp of a gate alone would overflow
        const Sequence s = make_sequence(random, dim, kpool, 300, gate_size);
        Store store(s, 128);
        store.step(threads, s, 0, s.rows);
        EXPECT_TRUE(test::close(store.pooled(s), pooled_double(s), gate_size > 1.0f ? 1e-5 : 2e-6))
            << kpool << " " << dim;
      }
    }
  }
}

// The softmax goes over the slots of a channel, not over channels: two channels with opposite gates.
TEST(IndexStore, SoftmaxIsPerChannelAndApeIsPerSlot) {
  device::Threads threads(1);
  Sequence s{2, 4, 4, {1, 10, 2, 20, 3, 30, 4, 40}, std::vector<float>(8, 0.0f), std::vector<float>(8, 0.0f)};
  s.gate[2 * 2 + 0] = 50.0f;  // channel 0: slot 2
  s.ape[1 * 2 + 1] = 50.0f;   // channel 1: slot 1
  Store store(s, 8);
  store.step(threads, s, 0, 4);
  const std::vector<float> pooled = store.pooled(s);
  EXPECT_FLOAT_EQ(pooled[0], 3.0f);
  EXPECT_FLOAT_EQ(pooled[1], 20.0f);
}

TEST(IndexStore, OnlyWholePoolsAreWritten) {
  device::Threads threads(1);
  Random random(2);
  const Sequence s = make_sequence(random, 16, 4, 11);
  Store store(s, 8);
  store.step(threads, s, 0, 11);
  const PagedPlane plane = store.plane(s);
  float row[16];
  plane.load(1, row);
  EXPECT_FALSE(std::isnan(row[15]));
  plane.load(2, row);
  EXPECT_TRUE(std::isnan(row[0]));
}

TEST(IndexStore, AnySplitGivesTheSameBits) {
  device::Threads one(1), three(3);
  for (uint64_t seed = 10; seed < 50; ++seed) {
    Random random(seed);
    const int64_t kpool = std::vector<int64_t>{2, 4, 16}[seed % 3];
    const Sequence s = make_sequence(random, 24, kpool, 600);
    Store whole(s, 32), split(s, kpool == 16 ? 16 : 4);
    whole.step(three, s, 0, s.rows);
    for (int64_t first = 0; first < s.rows;) {
      const int64_t rows = std::min(s.rows - first, seed == 10 ? 1 : 1 + random.below(seed % 2 == 0 ? 3 : 90));
      split.step(one, s, first, rows);
      first += rows;
    }
    EXPECT_TRUE(same_bits(split.pooled(s), whole.pooled(s))) << seed;
  }
}

// A rejected row may have completed a pool with a wrong key: the rows that replace it write that pool again, from a
// ring that still has the committed rows.
TEST(IndexStore, RejectedRowsChangeNothing) {
  device::Threads threads(1);
  for (uint64_t seed = 60; seed < 90; ++seed) {
    Random random(seed);
    const Sequence s = make_sequence(random, 16, 4, 100);
    Store serial(s, 8), drafted(s, 8);
    for (int64_t t = 0; t < s.rows; ++t) serial.step(threads, s, t, 1);
    for (int64_t first = 0; first < s.rows;) {
      const int64_t window = std::min<int64_t>(s.rows - first, 1 + random.below(6));  // up to 5 are dropped
      const int64_t kept = 1 + random.below(window);
      Sequence guess = s;
      for (size_t i = static_cast<size_t>((first + kept) * s.dim); i < guess.key.size(); ++i) {
        guess.key[i] = random.normal();
        guess.gate[i] = random.normal();
      }
      drafted.step(threads, guess, first, window);
      first += kept;
    }
    EXPECT_TRUE(same_bits(drafted.pooled(s), serial.pooled(s))) << seed;
  }
}

TEST(IndexStore, PoolKeysIsTheSameSum) {
  device::Threads threads(1);
  Random random(3);
  const Sequence s = make_sequence(random, 70, 4, 4);
  Store store(s, 8);
  store.step(threads, s, 0, 4);
  std::vector<const float*> keys, gates;
  for (int64_t j = 0; j < 4; ++j) keys.push_back(s.key.data() + j * 70), gates.push_back(s.gate.data() + j * 70);
  std::vector<float> out = test::unwritten(70);
  pool_keys(keys.data(), gates.data(), s.ape.data(), 4, 70, out.data());
  EXPECT_TRUE(same_bits(out, store.pooled(s)));
}

TEST(IndexStore, Bf16KeysAreRoundedWhenStored) {
  device::Threads threads(2);
  Random random(4);
  const Sequence s = make_sequence(random, 70, 4, 300);
  Store exact(s, 8), rounded(s, 8);
  rounded.element = CacheElement::bf16;
  exact.step(threads, s, 0, s.rows);
  rounded.step(threads, s, 0, s.rows);
  const std::vector<float> keys = exact.pooled(s), found = rounded.pooled(s);
  std::vector<std::byte> bytes(2);
  const int32_t page = 0;
  const PagedPlane one{bytes.data(), &page, 1, 1, CacheElement::bf16};
  for (size_t i = 0; i < keys.size(); ++i) {
    float expected = 0;
    one.store(0, &keys[i]);
    one.load(0, &expected);
    ASSERT_TRUE(same_bits(found[i], expected)) << i;
  }
}

// FP8 keys are records of the whole key, made from the exact one: codes in one plane, scales in the other.
TEST(IndexStore, Fp8KeysAreRecordsOfTheExactKeys) {
  device::Threads threads(2);
  Random random(14);
  for (const int64_t dim : {32, 128, 256}) {
    const Sequence s = make_sequence(random, dim, 4, 700);
    Store exact(s, 8), stored(s, 8);
    stored.element = CacheElement::index_fp8;
    exact.step(threads, s, 0, s.rows);
    for (int64_t first = 0; first < s.rows; first += 7) stored.step(threads, s, first, 7);
    const std::vector<float> keys = exact.pooled(s);
    const PagedPlane plane = stored.plane(s);
    const quant::CacheRecord record = quant::cache_record(quant::RecordKind::index_fp8, dim);
    ASSERT_EQ(plane.row_bytes(), dim);
    std::vector<std::byte> codes(static_cast<size_t>(dim)), scale(4);
    for (int64_t pool = 0; pool < s.pools(); ++pool) {
      quant::encode_record(record, keys.data() + pool * dim, 0, codes.data(), scale.data());
      ASSERT_TRUE(std::equal(codes.begin(), codes.end(), plane.row(pool))) << pool;
      ASSERT_TRUE(std::equal(scale.begin(), scale.end(), plane.scales + 4 * plane.place(pool))) << pool;
    }
  }
}

// Each rank writes the pools of its own pages and leaves the others alone; the raw rows go into every rank's ring.
TEST(IndexStore, RanksWriteThePoolsOfTheirPages) {
  device::Threads threads(2);
  Random random(5);
  const Sequence s = make_sequence(random, 12, 4, 900);
  Store whole(s, 8);
  whole.step(threads, s, 0, s.rows);
  const std::vector<float> keys = whole.pooled(s);
  for (int32_t rank = 0; rank < 2; ++rank) {
    Store own(s, 128);
    own.rank = rank;
    own.ranks = 2;
    for (int64_t first = 0; first < s.rows; first += 90) own.step(threads, s, first, 90);
    const std::vector<float> found = own.pooled(s);
    for (int64_t pool = 0; pool < s.pools(); ++pool) {
      const float* key = found.data() + pool * 12;
      if (pool / 64 % 2 == rank) {
        ASSERT_TRUE(same_bits(key, keys.data() + pool * 12, 12)) << pool;
      } else {
        ASSERT_TRUE(std::isnan(key[0])) << pool;
      }
    }
    const std::vector<float> last(s.key.end() - 12, s.key.end());
    EXPECT_TRUE(same_bits(own.ring_key.data() + (s.rows - 1) % 128 * 12, last.data(), 12));
  }
}

TEST(IndexStore, TooLargeAPoolIsAnError) {
  device::Threads threads(1);
  IndexStore a;
  a.kpool = max_kpool + 1;
  EXPECT_THROW(index_store(threads, a), Error);
}

}  // namespace
}  // namespace tandem::ops::index_store_test
