// Block attention against a slow transcription of the mask and of softmax; whatever may not be read is poisoned.
#include "ops/block_attend/block_attend.h"

#include "ops/test_random.h"

namespace tandem::ops::block_attend_test {
namespace {

struct Example {
  int64_t block_rows = 4, heads = 6, kv_heads = 2, head_dim = 10, window = 150;
  int64_t ring_rows = 149 + 16;
  std::vector<int64_t> positions, firsts;
  CacheElement element = CacheElement::f32;
  std::vector<float> q, k, v;
  std::vector<std::vector<float>> history;  // of each block: [position, 2·kv_heads·head_dim]

  int64_t width() const { return 2 * kv_heads * head_dim; }
  int64_t blocks() const { return std::ssize(positions); }
  Example(std::vector<int64_t> at, std::vector<int64_t> valid_from, CacheElement type = CacheElement::f32)
      : positions(std::move(at)), firsts(std::move(valid_from)), element(type) {
    test::Random random(9);
    q = random.normals(blocks() * block_rows * heads * head_dim);
    k = random.normals(blocks() * block_rows * kv_heads * head_dim);
    v = random.normals(blocks() * block_rows * kv_heads * head_dim);
    for (const int64_t position : positions) {
      history.push_back(random.normals(position * width()));
      for (float& x : history.back()) x = test::from_bf16(test::to_bf16(x));
    }
  }

  bool sees(int64_t block, int64_t row, int64_t position) const {
    const int64_t s = positions[static_cast<size_t>(block)];
    if (position >= s) return position < s + block_rows;
    return position >= firsts[static_cast<size_t>(block)] && s + row - position <= window - 1;
  }

  // NaN wherever no row of the block may look.
  std::vector<std::byte> ring(int64_t block) const {
    const int64_t bytes = element_bytes(element);
    std::vector<std::byte> data(static_cast<size_t>(ring_rows * width() * bytes), std::byte{0xff});
    const int32_t page = 0;
    const PagedPlane plane{data.data(), &page, ring_rows, width(), element};
    for (int64_t p = 0; p < positions[static_cast<size_t>(block)]; ++p) {
      if (sees(block, 0, p)) plane.store(p % ring_rows, history[static_cast<size_t>(block)].data() + p * width());
    }
    return data;
  }

  std::vector<float> run(int threads) const {
    std::vector<std::vector<std::byte>> rings;
    std::vector<ContextRows> context;
    for (int64_t b = 0; b < blocks(); ++b) {
      rings.push_back(ring(b));
      context.push_back({rings.back().data(), ring_rows, element, firsts[static_cast<size_t>(b)]});
    }
    device::Threads pool(threads);
    std::vector<float> out = test::unwritten(std::ssize(q));
    std::vector<float> scratch =
        test::unwritten(threads * block_attend_scratch(block_rows, heads, kv_heads, head_dim, window));
    BlockAttend a;
    a.blocks = blocks();
    a.block_rows = block_rows;
    a.heads = heads;
    a.kv_heads = kv_heads;
    a.head_dim = head_dim;
    a.window = window;
    a.scale = 0.3f;
    a.q = q.data();
    a.k = k.data();
    a.v = v.data();
    a.context = context.data();
    a.positions = positions.data();
    a.scratch = scratch.data();
    a.out = out.data();
    block_attend(pool, a);
    return out;
  }

  // softmax over the visible keys, one query head at a time.
  std::vector<double> expected() const {
    std::vector<double> out;
    const int64_t group = heads / kv_heads;
    for (int64_t row = 0; row < blocks() * block_rows; ++row) {
      for (int64_t head = 0; head < heads; ++head) {
        const int64_t block = row / block_rows, kv = head / group, s = positions[static_cast<size_t>(block)];
        const auto key = [&](int64_t p, bool value, int64_t d) -> double {
          if (p < s)
            return history[static_cast<size_t>(block)]
                          [static_cast<size_t>(p * width() + (value ? width() / 2 : 0) + kv * head_dim + d)];
          const int64_t at = ((block * block_rows + p - s) * kv_heads + kv) * head_dim + d;
          return (value ? v : k)[static_cast<size_t>(at)];
        };
        double sum = 0;
        std::vector<double> total(static_cast<size_t>(head_dim));
        for (int64_t p = 0; p < s + block_rows; ++p) {
          if (!sees(block, row % block_rows, p)) continue;
          double score = 0;
          for (int64_t d = 0; d < head_dim; ++d)
            score += q[static_cast<size_t>((row * heads + head) * head_dim + d)] * key(p, false, d);
          const double weight = std::exp(score * 0.3);
          sum += weight;
          for (int64_t d = 0; d < head_dim; ++d) total[static_cast<size_t>(d)] += weight * key(p, true, d);
        }
        for (const double x : total) out.push_back(x / sum);
      }
    }
    return out;
  }
};

TEST(BlockAttend, MaskAndSoftmax) {
  // A block at the very start, histories shorter than the window, at its edge, beyond it and beyond the ring; rows that
  // begin late; a block without any context.
  for (const CacheElement element : {CacheElement::f32, CacheElement::bf16}) {
    const Example e({0, 1, 63, 64, 65, 148, 149, 150, 151, 333, 400, 77}, {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 390, 77},
                    element);
    EXPECT_TRUE(test::close(e.run(2), e.expected(), 3e-6));
  }
}

TEST(BlockAttend, ABlockIsTheSameAloneAndAmongOthers) {
  const Example many({333, 20, 149}, {0, 3, 0});
  const std::vector<float> all = many.run(3);
  EXPECT_TRUE(test::same_bits(all, many.run(1)));
  const int64_t rows = many.block_rows * many.heads * many.head_dim;
  for (int64_t b = 0; b < many.blocks(); ++b) {
    const auto i = static_cast<size_t>(b);
    Example one = many;
    const auto piece = [&](std::vector<float>& values) {
      const int64_t size = std::ssize(values) / many.blocks();
      values = std::vector<float>(values.begin() + b * size, values.begin() + (b + 1) * size);
    };
    piece(one.q), piece(one.k), piece(one.v);
    one.positions = {many.positions[i]};
    one.firsts = {many.firsts[i]};
    one.history = {many.history[i]};
    const std::vector<float> alone = one.run(1);
    EXPECT_TRUE(test::same_bits(alone.data(), all.data() + b * rows, rows)) << b;
  }
}

// Rows before the window change nothing, whether they are valid or not.
TEST(BlockAttend, ValidityBelowTheWindowDoesNotMatter) {
  const Example all({333}, {0}), late({333}, {333 - 149});
  EXPECT_TRUE(test::same_bits(all.run(1), late.run(1)));
  const Example too_late({333}, {333 - 148});
  EXPECT_FALSE(test::same_bits(all.run(1), too_late.run(1))) << "row 0 sees W − 1 rows back";
}

}  // namespace
}  // namespace tandem::ops::block_attend_test
