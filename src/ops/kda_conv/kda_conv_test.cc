// Short convolution, q/k normalisation, decay gate and beta against spec/model.md 3.2 to 3.4 in double precision.
#include "ops/kda_conv/kda_conv.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/test_random.h"

namespace tandem::ops::kda_conv_test {
namespace {

using test::Random;
using test::same_bits;

// One sequence: everything that all its rows need, and what the steps have written.
struct Sequence {
  int64_t heads, dim, kernel, rows, ring_rows;
  std::vector<float> raw, taps, f, dt_bias, rate, b, ring;

  int64_t width() const { return heads * dim; }
};

Sequence make_sequence(Random& random, int64_t heads, int64_t dim, int64_t kernel, int64_t rows, float size) {
  Sequence s{heads, dim, kernel, rows, 8, {}, {}, {}, {}, {}, {}, {}};
  s.raw = random.normals(rows * 3 * s.width(), size);
  s.taps = random.normals(kernel * 3 * s.width());
  s.f = random.normals(rows * s.width(), 3.0f);
  s.dt_bias = random.normals(s.width());
  s.rate = random.uniforms(heads, 0.1f, 3.0f);
  s.b = random.normals(rows * heads, 3.0f);
  s.ring = test::unwritten(s.ring_rows * 3 * s.width());
  return s;
}

struct Rows {
  std::vector<float> q, k, v, g, beta;
};

bool same_rows(const Rows& a, const Rows& b) {
  return same_bits(a.q, b.q) && same_bits(a.k, b.k) && same_bits(a.v, b.v) && same_bits(a.g, b.g) &&
         same_bits(a.beta, b.beta);
}

// Rows [first, first + rows) as one step.
Rows step(device::Threads& threads, Sequence& s, int64_t first, int64_t rows) {
  const int64_t width = s.width();
  Rows out{test::unwritten(rows * width),
           test::unwritten(rows * width),
           test::unwritten(rows * width),
           test::unwritten(rows * width),
           {s.b.begin() + first * s.heads, s.b.begin() + (first + rows) * s.heads}};
  KdaConv a;
  a.heads = s.heads;
  a.dim = s.dim;
  a.kernel = s.kernel;
  a.position = first;
  a.rows = rows;
  a.raw = s.raw.data() + first * 3 * width;
  a.ring = s.ring.data();
  a.ring_rows = s.ring_rows;
  a.taps = s.taps.data();
  a.f = s.f.data() + first * width;
  a.dt_bias = s.dt_bias.data();
  a.rate = s.rate.data();
  a.b = out.beta.data();
  a.q = out.q.data();
  a.k = out.k.data();
  a.v = out.v.data();
  a.g = out.g.data();
  kda_conv(threads, a);
  return out;
}

void append(Rows& to, const Rows& from) {
  to.q.insert(to.q.end(), from.q.begin(), from.q.end());
  to.k.insert(to.k.end(), from.k.begin(), from.k.end());
  to.v.insert(to.v.end(), from.v.begin(), from.v.end());
  to.g.insert(to.g.end(), from.g.begin(), from.g.end());
  to.beta.insert(to.beta.end(), from.beta.begin(), from.beta.end());
}

double convolved(const Sequence& s, int64_t t, int64_t channel) {
  double sum = 0;
  for (int64_t tap = 0; tap < s.kernel; ++tap) {
    const int64_t row = t - (s.kernel - 1) + tap;
    if (row < 0) continue;
    sum += static_cast<double>(s.taps[static_cast<size_t>(tap * 3 * s.width() + channel)]) *
           s.raw[static_cast<size_t>(row * 3 * s.width() + channel)];
  }
  return test::silu(sum);
}

struct RowsDouble {
  std::vector<double> q, k, v, g, beta;
};

RowsDouble rows_double(const Sequence& s) {
  RowsDouble out;
  for (int64_t t = 0; t < s.rows; ++t) {
    for (int64_t h = 0; h < s.heads; ++h) {
      double squares[2] = {};
      for (int64_t part = 0; part < 2; ++part) {
        for (int64_t d = 0; d < s.dim; ++d)
          squares[part] += std::pow(convolved(s, t, part * s.width() + h * s.dim + d), 2);
      }
      for (int64_t d = 0; d < s.dim; ++d) {
        const int64_t c = h * s.dim + d;
        out.q.push_back(convolved(s, t, c) / std::sqrt(squares[0] + 1e-6) / std::sqrt(test::real(s.dim)));
        out.k.push_back(convolved(s, t, s.width() + c) / std::sqrt(squares[1] + 1e-6));
        out.v.push_back(convolved(s, t, 2 * s.width() + c));
        const double f = s.f[static_cast<size_t>(t * s.width() + c)];
        out.g.push_back(-5.0 * test::sigmoid(s.rate[static_cast<size_t>(h)] * (f + s.dt_bias[static_cast<size_t>(c)])));
      }
      out.beta.push_back(test::sigmoid(s.b[static_cast<size_t>(t * s.heads + h)]));
    }
  }
  return out;
}

TEST(KdaConv, AgainstDouble) {
  device::Threads threads(3);
  Random random(1);
  for (const int64_t kernel : {1, 2, 4, 5}) {
    for (const int64_t dim : {20, 32, 128}) {
      Sequence s = make_sequence(random, 3, dim, kernel, 21, 1.0f);
      const Rows found = step(threads, s, 0, s.rows);
      const RowsDouble expected = rows_double(s);
      EXPECT_TRUE(test::close(found.q, expected.q, 3e-6)) << kernel << " " << dim;
      EXPECT_TRUE(test::close(found.k, expected.k, 3e-6)) << kernel << " " << dim;
      EXPECT_TRUE(test::close(found.v, expected.v, 2e-6)) << kernel << " " << dim;
      EXPECT_TRUE(test::close(found.g, expected.g, 1e-6)) << kernel << " " << dim;
      EXPECT_TRUE(test::close(found.beta, expected.beta, 1e-6)) << kernel << " " << dim;
    }
  }
}

// Σ x² about 1e-6: max(norm, eps), an eps on the mean or outside the root would be wrong by a factor.
TEST(KdaConv, NormEpsStandsInsideTheRootOfTheSum) {
  device::Threads threads(1);
  Random random(2);
  for (const float size : {1e-3f, 1e-4f, 1e-5f}) {
    Sequence s = make_sequence(random, 2, 32, 4, 9, size);
    const Rows found = step(threads, s, 0, s.rows);
    const RowsDouble expected = rows_double(s);
    EXPECT_TRUE(test::close(found.q, expected.q, 3e-6)) << size;
    EXPECT_TRUE(test::close(found.k, expected.k, 3e-6)) << size;
  }
  Sequence zero = make_sequence(random, 2, 32, 4, 3, 0.0f);
  const Rows found = step(threads, zero, 0, 3);
  for (const std::vector<float>* rows : {&found.q, &found.k, &found.v}) {
    for (const float value : *rows) EXPECT_EQ(value, 0.0f);
  }
}

TEST(KdaConv, LastTapIsTheCurrentRowAndHistoryIsZero) {
  device::Threads threads(1);
  Random random(3);
  Sequence s = make_sequence(random, 1, 1, 4, 6, 1.0f);
  std::fill(s.raw.begin(), s.raw.end(), 0.0f);
  s.raw[1 * 3 + 2] = 1.0f;  // v of row 1
  for (size_t tap = 0; tap < 4; ++tap) s.taps[tap * 3 + 2] = static_cast<float>(tap + 1);
  const Rows found = step(threads, s, 0, 6);
  const double expected[6] = {0, test::silu(4), test::silu(3), test::silu(2), test::silu(1), 0};
  for (size_t t = 0; t < 6; ++t) EXPECT_NEAR(found.v[t], expected[t], 1e-6) << t;
}

TEST(KdaConv, GateIsBoundedAndQIsScaled) {
  device::Threads threads(1);
  Random random(4);
  Sequence s = make_sequence(random, 2, 16, 4, 5, 1.0f);
  std::fill(s.rate.begin(), s.rate.end(), 1.0f);
  for (size_t i = 0; i < s.f.size(); ++i) s.f[i] = i % 2 == 0 ? 200.0f : -200.0f;
  const Rows found = step(threads, s, 0, 5);
  for (size_t i = 0; i < found.g.size(); ++i) {
    if (i % 2 == 0) {
      EXPECT_EQ(found.g[i], -5.0f);
    } else {
      EXPECT_NEAR(found.g[i], 0.0, 1e-30);
      EXPECT_LE(found.g[i], 0.0f);
    }
  }
  for (size_t row = 0; row < 10; ++row) {
    double q = 0, k = 0;
    for (size_t d = 0; d < 16; ++d) {
      q += std::pow(found.q[row * 16 + d], 2);
      k += std::pow(found.k[row * 16 + d], 2);
    }
    EXPECT_NEAR(q, 1.0 / 16, 1e-4);
    EXPECT_NEAR(k, 1.0, 1e-3);
  }
}

TEST(KdaConv, AnySplitGivesTheSameBits) {
  device::Threads one(1), three(3);
  for (uint64_t seed = 10; seed < 40; ++seed) {
    Random random(seed);
    const int64_t kernel = 1 + random.below(5);
    Sequence s = make_sequence(random, 2, 24, kernel, 40, 1.0f);
    Sequence whole = s;
    const Rows expected = step(three, whole, 0, 40);
    Rows found;
    for (int64_t first = 0; first < 40;) {
      const int64_t rows = std::min(40 - first, seed == 10 ? 1 : 1 + random.below(seed % 2 == 0 ? 4 : 20));
      append(found, step(one, s, first, rows));
      first += rows;
    }
    EXPECT_TRUE(same_rows(found, expected)) << seed;
  }
}

// Rejected rows leave raw rows in the ring; as long as the ring holds kernel − 1 + rejected rows, the history of the
// rows that follow is still there.
TEST(KdaConv, RejectedRowsChangeNothing) {
  device::Threads threads(1);
  for (uint64_t seed = 50; seed < 70; ++seed) {
    Random random(seed);
    Sequence s = make_sequence(random, 1, 16, 4, 40, 1.0f);  // ring of 8: up to 5 rows may be dropped
    Sequence serial = s;
    Rows expected, found;
    for (int64_t t = 0; t < 40; ++t) append(expected, step(threads, serial, t, 1));
    for (int64_t first = 0; first < 40;) {
      const int64_t window = std::min<int64_t>(40 - first, 1 + random.below(6)), kept = 1 + random.below(window);
      Sequence drafted = s;  // rows from `kept` on are wrong guesses
      for (size_t i = static_cast<size_t>((first + kept) * 3 * s.width()); i < drafted.raw.size(); ++i)
        drafted.raw[i] = random.normal(5.0f);
      const Rows rows = step(threads, drafted, first, window);
      s.ring = drafted.ring;
      const auto cut = [&](const std::vector<float>& v, int64_t width) {
        return std::vector<float>(v.begin(), v.begin() + kept * width);
      };
      append(found, {cut(rows.q, 16), cut(rows.k, 16), cut(rows.v, 16), cut(rows.g, 16), cut(rows.beta, 1)});
      first += kept;
    }
    EXPECT_TRUE(same_rows(found, expected)) << seed;
  }
}

// A slot is used by one stream after another: what the last one left before position 0 must not be seen.
TEST(KdaConv, AUsedRingStartsWithZeroHistory) {
  device::Threads threads(1);
  Random random(5);
  Sequence s = make_sequence(random, 2, 16, 4, 10, 1.0f), used = s;
  for (float& value : used.ring) value = 1e3f;
  EXPECT_TRUE(same_rows(step(threads, s, 0, 10), step(threads, used, 0, 10)));
}

}  // namespace
}  // namespace tandem::ops::kda_conv_test
