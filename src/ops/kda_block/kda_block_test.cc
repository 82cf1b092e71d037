// The block form of KDA: equal to the plain recurrence of spec/model.md 3.5, and with the same bits however the rows
// are cut into steps, drafted, rejected and run again.
#include "ops/kda_block/kda_block.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/test_random.h"

namespace tandem::ops::kda_block_test {
namespace {

using test::Random;
using test::same_bits;

struct Inputs {
  int64_t heads, dim, rows;
  std::vector<float> q, k, v, g, beta;

  int64_t width() const { return heads * dim; }
};

// Rows as kda_conv makes them: unit k, q of length dim^-0.5, g in (−5, 0), beta in (0, 1).
Inputs make_inputs(Random& random, int64_t heads, int64_t dim, int64_t rows) {
  Inputs in{heads, dim, rows, {}, {}, {}, {}, {}};
  in.q = random.normals(rows * in.width());
  in.k = random.normals(rows * in.width());
  in.v = random.normals(rows * in.width());
  for (std::vector<float>* unit : {&in.q, &in.k}) {
    for (size_t i = 0; i < unit->size(); i += static_cast<size_t>(dim)) {
      double sum = 1e-6;
      for (size_t d = i; d < i + static_cast<size_t>(dim); ++d) sum += static_cast<double>((*unit)[d]) * (*unit)[d];
      const double factor = 1.0 / std::sqrt(unit == &in.q ? sum * test::real(dim) : sum);
      for (size_t d = i; d < i + static_cast<size_t>(dim); ++d) (*unit)[d] = static_cast<float>((*unit)[d] * factor);
    }
  }
  for (int64_t i = 0; i < rows * in.width(); ++i)  // from long memory to none
    in.g.push_back(static_cast<float>(-5.0 * test::sigmoid(random.normal(3.0f) - 3.0)));
  for (int64_t i = 0; i < rows * heads; ++i) in.beta.push_back(static_cast<float>(test::sigmoid(random.normal(2.0f))));
  return in;
}

// One layer of one stream.
struct Stream {
  int64_t heads, dim, log_rows, block = 0;
  std::vector<float> s0, k, g, delta, working;

  Stream(int64_t h, int64_t d, int64_t log)
      : heads(h),
        dim(d),
        log_rows(log),
        s0(static_cast<size_t>(h * d * d), 0.0f),
        k(test::unwritten(log * h * d)),
        g(k),
        delta(k),
        working(test::unwritten(h * d * d)) {}

  KdaState state() {
    KdaState s;
    s.s0 = s0.data();
    s.log_k = k.data();
    s.log_g = g.data();
    s.log_delta = delta.data();
    s.log_rows = log_rows;
    s.block = block;
    return s;
  }

  // `rows` rows at `position`, which are rows of `in` from `from` on.
  std::vector<float> step(device::Threads& threads, const Inputs& in, int64_t from, int64_t position, int64_t rows,
                          int64_t certain) {
    std::vector<float> o = test::unwritten(rows * heads * dim);
    KdaBlock a;
    a.heads = heads;
    a.dim = dim;
    a.position = position;
    a.rows = rows;
    a.certain_rows = certain;
    a.q = in.q.data() + from * in.width();
    a.k = in.k.data() + from * in.width();
    a.v = in.v.data() + from * in.width();
    a.g = in.g.data() + from * in.width();
    a.beta = in.beta.data() + from * heads;
    a.state = state();
    a.working = working.data();
    a.o = o.data();
    kda_block(threads, a);
    block = kda_block_after(block, position, rows, certain);
    std::fill(working.begin(), working.end(), test::not_a_number);  // nothing in it may be needed again
    return o;
  }

  std::vector<float> materialise(int64_t length) {
    std::vector<float> out = test::unwritten(heads * dim * dim);
    kda_materialise(state(), heads, dim, length, out.data());
    return out;
  }
};

struct Recurrence {
  std::vector<double> o;
  std::vector<std::vector<double>> states;  // after 0, 1, … rows
};

Recurrence recurrence_double(const Inputs& in) {
  const auto heads = static_cast<size_t>(in.heads), dim = static_cast<size_t>(in.dim);
  Recurrence out;
  std::vector<double> s(heads * dim * dim, 0.0);
  out.states.push_back(s);
  for (size_t t = 0; t < static_cast<size_t>(in.rows); ++t) {
    for (size_t h = 0; h < heads; ++h) {
      double* state = s.data() + h * dim * dim;
      const size_t at = (t * heads + h) * dim;
      std::vector<double> u(dim, 0.0), o(dim, 0.0);
      for (size_t d = 0; d < dim; ++d) {
        for (size_t e = 0; e < dim; ++e) {
          state[d * dim + e] *= std::exp(static_cast<double>(in.g[at + d]));
          u[e] += state[d * dim + e] * in.k[at + d];
        }
      }
      for (size_t d = 0; d < dim; ++d) {
        for (size_t e = 0; e < dim; ++e) {
          state[d * dim + e] += in.k[at + d] * in.beta[t * heads + h] * (in.v[at + e] - u[e]);
          o[e] += state[d * dim + e] * in.q[at + d];
        }
      }
      out.o.insert(out.o.end(), o.begin(), o.end());
    }
    out.states.push_back(s);
  }
  return out;
}

void append(std::vector<float>& to, const std::vector<float>& from, int64_t n) {
  to.insert(to.end(), from.begin(), from.begin() + n);
}

std::vector<float> serial(device::Threads& threads, const Inputs& in, Stream& stream) {
  std::vector<float> o;
  for (int64_t t = 0; t < in.rows; ++t) append(o, stream.step(threads, in, t, t, 1, 1), in.width());
  return o;
}

TEST(KdaBlock, IsTheRecurrence) {
  device::Threads threads(3);
  for (const auto& [heads, dim] : {std::pair<int64_t, int64_t>{3, 32}, {2, 20}, {1, 128}, {1, 1}}) {
    Random random(static_cast<uint64_t>(dim));
    const Inputs in = make_inputs(random, heads, dim, dim == 128 ? 70 : 130);
    const Recurrence expected = recurrence_double(in);
    Stream stream(heads, dim, 32);
    EXPECT_TRUE(test::close(stream.step(threads, in, 0, 0, in.rows, in.rows), expected.o, 1e-5)) << dim;
    EXPECT_TRUE(test::close(stream.materialise(in.rows), expected.states.back(), 1e-5)) << dim;
  }
}

// The largest decay in every channel: exponents inside a block reach −80 and nothing overflows.
TEST(KdaBlock, StrongestDecay) {
  device::Threads threads(1);
  Random random(7);
  Inputs in = make_inputs(random, 1, 16, 40);
  for (size_t i = 0; i < in.g.size(); ++i) in.g[i] = i % 3 == 0 ? -5.0f : i % 3 == 1 ? 0.0f : -1e-4f;
  const Recurrence expected = recurrence_double(in);
  Stream stream(1, 16, 32);
  EXPECT_TRUE(test::close(stream.step(threads, in, 0, 0, 40, 40), expected.o, 1e-5));
  EXPECT_TRUE(test::close(stream.materialise(40), expected.states.back(), 1e-5));
}

TEST(KdaBlock, MaterialisedStateIsRightAtEveryLength) {
  device::Threads threads(1);
  Random random(8);
  const Inputs in = make_inputs(random, 2, 16, 50);
  const Recurrence expected = recurrence_double(in);
  Stream stream(2, 16, 32);
  EXPECT_EQ(stream.materialise(0), std::vector<float>(2 * 16 * 16, 0.0f));
  for (int64_t t = 0; t < in.rows; ++t) {
    stream.step(threads, in, t, t, 1, 1);
    EXPECT_TRUE(test::close(stream.materialise(t + 1), expected.states[static_cast<size_t>(t + 1)], 1e-5)) << t;
  }
}

TEST(KdaBlock, AnySplitGivesTheSameBits) {
  device::Threads one(1), three(3);
  Random random(9);
  const int64_t heads = 2, dim = 20, rows = 120;
  const Inputs in = make_inputs(random, heads, dim, rows);
  Stream by_row(heads, dim, 32);
  const std::vector<float> expected = serial(one, in, by_row);
  const std::vector<float> state = by_row.materialise(rows);
  for (int round = 0; round < 60; ++round) {
    const int64_t longest = round == 0 ? rows : round < 20 ? 5 : round < 40 ? 17 : 60;
    Stream stream(heads, dim, round % 3 == 0 ? 32 : round % 3 == 1 ? 48 : 64);
    std::vector<float> o;
    for (int64_t t = 0; t < rows;) {
      const int64_t n = round == 0 ? rows : std::min(rows - t, 1 + random.below(longest));
      append(o, stream.step(round % 2 == 0 ? three : one, in, t, t, n, n), n * in.width());
      t += n;
    }
    EXPECT_TRUE(same_bits(o, expected)) << "round " << round;
    EXPECT_TRUE(same_bits(stream.materialise(rows), state)) << "round " << round;
  }
}

// Windows of drafts: of every window some rows are kept, the rest were wrong guesses, and the next window starts after
// the kept ones. Windows cross the ends of blocks; the number of certain rows goes from none to all that are kept.
TEST(KdaBlock, RejectedRowsChangeNothing) {
  device::Threads one(1), three(3);
  Random random(10);
  const int64_t heads = 2, dim = 16, rows = 150;
  const Inputs in = make_inputs(random, heads, dim, rows);
  Stream by_row(heads, dim, 32);
  const std::vector<float> expected = serial(one, in, by_row);
  const std::vector<float> state = by_row.materialise(rows);
  int crossing = 0;
  for (int round = 0; round < 60; ++round) {
    // A window of 16 uncertain rows may be dropped whole with the smallest log; of 40 (three blocks) with one of 64.
    const int64_t longest = round % 4 == 3 ? 40 : round % 2 == 0 ? 4 : 16;
    Stream stream(heads, dim, longest == 40 ? 64 : 32);
    std::vector<float> o;
    for (int64_t t = 0; t < rows;) {
      const int64_t window = std::min(rows - t, 1 + random.below(longest)), kept = random.below(window + 1);
      const int64_t certain = random.below(kept + 1);
      Inputs drafted = make_inputs(random, heads, dim, window);
      const auto take = [&](std::vector<float> Inputs::*member, int64_t width) {
        std::copy_n((in.*member).begin() + t * width, kept * width, (drafted.*member).begin());
      };
      take(&Inputs::q, in.width());
      take(&Inputs::k, in.width());
      take(&Inputs::v, in.width());
      take(&Inputs::g, in.width());
      take(&Inputs::beta, heads);
      append(o, stream.step(round % 2 == 0 ? three : one, drafted, 0, t, window, certain), kept * in.width());
      crossing += t / 16 != (t + window - 1) / 16 && kept < window;
      t += kept;
      ASSERT_LE(stream.block * 16, std::max<int64_t>(t, 0)) << "the state has passed rows that were dropped";
    }
    ASSERT_TRUE(same_bits(o, expected)) << "round " << round;
    ASSERT_TRUE(same_bits(stream.materialise(rows), state)) << "round " << round;
  }
  EXPECT_GT(crossing, 100);
}

// Uncertain rows write log rows and nothing else.
TEST(KdaBlock, UncertainRowsLeaveTheStateAlone) {
  device::Threads threads(1);
  Random random(11);
  const Inputs in = make_inputs(random, 1, 16, 48);
  for (int64_t first = 16; first < 32; ++first) {
    Stream stream(1, 16, 48);
    stream.step(threads, in, 0, 0, first, first);
    const std::vector<float> before = stream.s0;
    const int64_t block = stream.block;
    EXPECT_EQ(block, (first - 1) / 16);
    stream.step(threads, in, first, first, 16, 0);
    if (first == 16) {
      EXPECT_EQ(stream.block, 1);  // the block that ended before the window is full of certain rows
    } else {
      EXPECT_EQ(stream.block, block);
      EXPECT_TRUE(same_bits(stream.s0, before)) << first;
    }
  }
}

// A kept state is s0, the block and the log: a copy goes on with the same bits, whatever the original does next.
TEST(KdaBlock, ACopiedStateGoesOn) {
  device::Threads threads(1);
  Random random(12);
  const Inputs in = make_inputs(random, 2, 16, 90);
  Stream whole(2, 16, 32);
  const std::vector<float> expected = serial(threads, in, whole);
  for (const int64_t at : {1, 15, 16, 17, 31, 32, 45, 64}) {
    Stream stream(2, 16, 32);
    stream.step(threads, in, 0, 0, at, at);
    Stream copy = stream;
    stream.step(threads, in, 50, at, 20, 20);
    std::vector<float> o = copy.step(threads, in, at, at, 90 - at, 90 - at);
    EXPECT_TRUE(same_bits(o.data(), expected.data() + at * in.width(), (90 - at) * in.width())) << at;
  }
}

TEST(KdaBlockAfter, Table) {
  struct Row {
    int64_t block, position, rows, certain, expected;
  };
  constexpr Row table[] = {
      {0, 0, 1, 1, 0},   {0, 0, 16, 16, 0},  // a full block waits for the row that needs its state
      {0, 0, 17, 17, 1}, {0, 0, 17, 16, 1},  // the last row is in block 1, block 0 is certain
      {0, 0, 17, 15, 0}, {0, 16, 1, 1, 1},    {0, 16, 1, 0, 1},   {0, 15, 1, 1, 0},   {0, 15, 4, 1, 1},
      {0, 15, 4, 0, 0},  {0, 14, 4, 1, 0},    {0, 14, 4, 2, 1},   {1, 30, 6, 6, 2},   {1, 30, 6, 1, 1},
      {1, 30, 6, 0, 1},  {0, 0, 100, 100, 6}, {0, 0, 100, 40, 2}, {0, 0, 96, 96, 5},  {2, 32, 16, 16, 2},
      {2, 47, 1, 1, 2},  {2, 48, 1, 0, 3},    {3, 48, 40, 0, 3},  {3, 50, 40, 30, 5},
  };
  for (const Row& r : table)
    EXPECT_EQ(kda_block_after(r.block, r.position, r.rows, r.certain), r.expected)
        << r.block << " " << r.position << " " << r.rows << " " << r.certain;
}

}  // namespace
}  // namespace tandem::ops::kda_block_test
