// Where the operations round in bf16 mode, and where they do not: each against its own fp32 mode, put together with
// roundings at the points of rounding.h. Bits must agree.
#include "ops/rounding.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/block_conv/block_conv.h"
#include "ops/experts/experts.h"
#include "ops/kda_conv/kda_conv.h"
#include "ops/kda_conv/kda_output.h"
#include "ops/linear/linear.h"
#include "ops/mhc/mhc.h"
#include "ops/norm/norm.h"
#include "ops/simd/kernels.h"
#include "ops/test_bf16.h"
#include "ops/test_random.h"

namespace tandem::ops::rounding_test {
namespace {

using test::Random;
using test::same_bits;
using Values = std::vector<float>;

Values rounded(const Values& x) { return as_bf16_values(x); }
bool is_rounded(const Values& x) { return same_bits(x, rounded(x)); }

TEST(Rounding, ValuesInPlace) {
  device::Threads threads(3);
  Random random(1);
  const Values x = random.normals(100'003);
  Values y = x;
  round_values(Compute::f32, RoundingPoint::norm, y.data(), std::ssize(y));
  round_values(threads, Compute::f32, RoundingPoint::norm, y.data(), std::ssize(y));
  EXPECT_TRUE(same_bits(y, x));
  round_values(threads, Compute::bf16, RoundingPoint::norm, y.data(), std::ssize(y));
  EXPECT_TRUE(same_bits(y, rounded(x)));
  EXPECT_FALSE(is_rounded(x));
}

TEST(Rounding, LinearRoundsTheSumOfBothLeavesOnce) {
  device::Threads threads(2);
  Random random(2);
  const auto w = test::random_matrix(random, WeightFormat::bf16, 37, 80, {.leaf_columns = 32});
  const Values x = random.normals(5 * 80);
  Values exact(5 * 37), y(5 * 40, 12345.0f);
  linear(threads, w.view, x.data(), exact.data(), 5);
  const LinearCall call{&w.view, x.data(), 80, y.data(), 40, Compute::bf16};
  linear(threads, std::span(&call, 1), 5);
  for (int64_t r = 0; r < 5; ++r) {
    const Values row(exact.begin() + r * 37, exact.begin() + (r + 1) * 37);
    EXPECT_TRUE(same_bits(rounded(row).data(), y.data() + r * 40, 37));
    EXPECT_EQ(y[static_cast<size_t>(r * 40 + 37)], 12345.0f) << "between rows";
  }
}

struct Site {
  static constexpr int64_t n = 4, hidden = 72, rows = 11, values = (2 + n) * n;
  Random random{3};
  test::StoredMatrix fn = test::random_matrix(random, WeightFormat::f32, values, n* hidden, {.scale = 0.1f});
  Values base = random.normals(values), scale = random.uniforms(3, 0.5f, 1.5f), norm = random.normals(hidden);
  Values streams = rounded(random.normals(rows * n * hidden)), y = rounded(random.normals(rows * hidden));
  Values mapping = Values(rows * values), post = Values(rows * n), comb = Values(rows * n * n),
         x = Values(rows * hidden);

  MhcEnter enter(Compute compute) {
    MhcEnter a;
    a.fn = &fn.view;
    a.base = base.data();
    a.scale = scale.data();
    a.norm = norm.data();
    a.n = n;
    a.hidden = hidden;
    a.streams = streams.data();
    a.rows = rows;
    a.mapping = mapping.data();
    a.post = post.data();
    a.comb = comb.data();
    a.x = x.data();
    a.compute = compute;
    return a;
  }
};

TEST(Rounding, TheNormOfMhcEnterSeesRoundedValues) {
  device::Threads threads(2);
  Site site;
  mhc_enter(threads, site.enter(Compute::f32));
  const Values post = site.post, comb = site.comb;
  mhc_enter(threads, site.enter(Compute::bf16));
  EXPECT_TRUE(same_bits(site.post, post)) << "the mapping stays fp32";
  EXPECT_TRUE(same_bits(site.comb, comb));
  const Kernels& k = kernels();
  const MhcEnter a = site.enter(Compute::bf16);
  Values m(static_cast<size_t>(site.rows * site.values));
  linear(threads, site.fn.view, site.streams.data(), m.data(), site.rows);
  for (int64_t row = 0; row < site.rows; ++row) {
    const float* streams = site.streams.data() + row * site.n * site.hidden;
    float* of_row = m.data() + row * site.values;
    const int64_t width = site.n * site.hidden;
    const float mean = k.dot(streams, streams, width) / static_cast<float>(width);
    k.scale(of_row, 1.0f / std::sqrt(mean + a.rms_norm_eps), site.values, of_row);
    Values pre(site.n), unused(site.n * site.n + site.n), x(site.hidden, 0.0f);
    mhc_mapping(a, of_row, pre.data(), unused.data(), unused.data() + site.n);
    for (size_t s = 0; s < pre.size(); ++s) {
      for (size_t d = 0; d < x.size(); ++d) x[d] = std::fma(pre[s], streams[s * x.size() + d], x[d]);
    }
    x = rounded(x);
    rms_norm(x.data(), site.norm.data(), a.rms_norm_eps, site.hidden, x.data());
    ASSERT_TRUE(same_bits(rounded(x).data(), site.x.data() + row * site.hidden, site.hidden)) << row;
  }
}

TEST(Rounding, StreamsAreRoundedWhenTheyAreWritten) {
  device::Threads threads(2);
  Site site;
  mhc_enter(threads, site.enter(Compute::f32));
  const auto leave = [&](Compute compute) {
    Values streams = site.streams;
    mhc_leave(threads, {site.n, site.hidden, streams.data(), site.y.data(), site.post.data(), site.comb.data(),
                        site.rows, compute});
    return streams;
  };
  EXPECT_TRUE(same_bits(leave(Compute::bf16), rounded(leave(Compute::f32))));
}

// q, k and v have the same inputs, so that v shows what q and k were before they were normalised.
TEST(Rounding, KdaNormalisesRoundedConvolutions) {
  constexpr int64_t heads = 2, dim = 24, width = heads * dim, rows = 9, kernel = 4;
  device::Threads threads(1);
  Random random(4);
  const Values part = rounded(random.normals(rows * width)), taps_of_part = random.normals(kernel * width);
  Values raw, taps;
  for (int64_t r = 0; r < rows; ++r)
    for (int i = 0; i < 3; ++i) raw.insert(raw.end(), part.begin() + r * width, part.begin() + (r + 1) * width);
  for (int64_t t = 0; t < kernel; ++t)
    for (int i = 0; i < 3; ++i)
      taps.insert(taps.end(), taps_of_part.begin() + t * width, taps_of_part.begin() + (t + 1) * width);
  const Values f = random.normals(rows * width), bias = random.normals(width),
               rate = random.uniforms(heads, 0.1f, 2.0f), logits = random.normals(rows * heads);
  struct Out {
    Values q, k, v, g, beta;
  };
  const auto run = [&](Compute compute) {
    Out out{Values(rows * width), Values(rows * width), Values(rows * width), Values(rows * width), logits};
    Values ring(16 * 3 * width);
    KdaConv a;
    a.heads = heads;
    a.dim = dim;
    a.kernel = kernel;
    a.rows = rows;
    a.raw = raw.data();
    a.ring = ring.data();
    a.ring_rows = 16;
    a.taps = taps.data();
    a.f = f.data();
    a.dt_bias = bias.data();
    a.rate = rate.data();
    a.b = out.beta.data();
    a.q = out.q.data();
    a.k = out.k.data();
    a.v = out.v.data();
    a.g = out.g.data();
    a.compute = compute;
    kda_conv(threads, a);
    return out;
  };
  const Out exact = run(Compute::f32), out = run(Compute::bf16);
  EXPECT_TRUE(same_bits(out.v, rounded(exact.v)));
  EXPECT_TRUE(same_bits(out.g, exact.g));
  EXPECT_TRUE(same_bits(out.beta, exact.beta));
  EXPECT_FALSE(is_rounded(out.g));
  const Kernels& k = kernels();
  for (int64_t i = 0; i < rows * heads; ++i) {
    const float* v = out.v.data() + i * dim;
    Values q(dim), key(dim);
    const float factor = 1.0f / std::sqrt(k.dot(v, v, dim) + kda_norm_eps);
    k.scale(v, factor, dim, key.data());
    k.scale(v, factor * (1.0f / std::sqrt(static_cast<float>(dim))), dim, q.data());
    ASSERT_TRUE(same_bits(q.data(), out.q.data() + i * dim, dim)) << i;
    ASSERT_TRUE(same_bits(key.data(), out.k.data() + i * dim, dim)) << i;
  }
}

TEST(Rounding, KdaOutputRoundsBeforeItsNormAndAtItsEnd) {
  constexpr int64_t heads = 3, dim = 20, rows = 7;
  device::Threads threads(2);
  Random random(5);
  const Values o = random.normals(rows * heads * dim), gate = rounded(random.normals(rows * heads * dim)),
               weight = random.normals(dim);
  const auto run = [&](Values x, Compute compute) {
    Values g = gate;
    kda_output(threads, {heads, dim, rows, x.data(), g.data(), weight.data(), 1e-5f, compute});
    return x;
  };
  EXPECT_TRUE(same_bits(run(o, Compute::bf16), rounded(run(rounded(o), Compute::f32))));
  EXPECT_FALSE(same_bits(run(o, Compute::bf16), rounded(run(o, Compute::f32)))) << "the first rounding shows";
}

// A dense MLP of two leaves.
TEST(Rounding, FeedForwardRoundsTheActivationAndTheSumOfLeaves) {
  constexpr int64_t hidden = 48, width = 56, leaf = 32, rows = 6;
  device::Threads threads(2);
  Random random(6);
  const auto gate = test::random_matrix(random, WeightFormat::bf16, width, hidden, {.scale = 0.2f});
  const auto up = test::random_matrix(random, WeightFormat::bf16, width, hidden, {.scale = 0.2f});
  const auto down = test::random_matrix(random, WeightFormat::bf16, hidden, width, {.leaf_columns = leaf});
  const Mlp mlp{gate.view, up.view, down.view};
  const Values x = rounded(random.normals(rows * hidden));
  ExpertScratch scratch(rows, hidden, 0, 0, 0, width);
  Experts a;
  a.hidden = hidden;
  a.swiglu_limit = 2.0f;
  a.shared = &mlp;
  a.rows = rows;
  a.x = x.data();
  a.scratch = &scratch;
  a.compute = Compute::bf16;
  Values y(rows * hidden);
  a.y = y.data();
  experts(threads, a);

  Values activation(rows * width), ups(rows * width), exact(rows * hidden);
  linear(threads, gate.view, x.data(), activation.data(), rows);
  linear(threads, up.view, x.data(), ups.data(), rows);
  kernels().clamped_swiglu(activation.data(), ups.data(), 2.0f, rows * width, activation.data());
  activation = rounded(activation);
  linear(threads, down.view, activation.data(), exact.data(), rows);
  EXPECT_TRUE(same_bits(y, rounded(exact)));

  // Two ranks: each leaf in fp32, rounded by the caller after their addition.
  Values sums[2] = {Values(rows * hidden), Values(rows * hidden)};
  for (int64_t which = 0; which < 2; ++which) {
    const int64_t first = which == 0 ? 0 : leaf, count = which == 0 ? leaf : width - leaf;
    Mlp part{rows_of(gate.view, first, count), rows_of(up.view, first, count), columns_of(down.view, first, count)};
    part.down.leaf_columns = count;
    a.shared = &part;
    a.y = sums[which].data();
    ExpertScratch own(rows, hidden, 0, 0, 0, count);
    a.scratch = &own;
    experts_leaf(threads, a, which);
    EXPECT_FALSE(is_rounded(sums[which]));
  }
  kernels().add(sums[0].data(), sums[1].data(), rows * hidden, exact.data());
  EXPECT_TRUE(same_bits(y, rounded(exact)));
}

TEST(Rounding, RoutedExpertsAreAddedInFp32) {
  constexpr int64_t hidden = 32, width = 16, rows = 4;
  device::Threads threads(1);
  Random random(7);
  std::vector<test::StoredMatrix> stored;
  for (int i = 0; i < 2; ++i) {
    stored.push_back(test::random_matrix(random, WeightFormat::bf16, width, hidden, {.scale = 0.3f}));
    stored.push_back(test::random_matrix(random, WeightFormat::bf16, width, hidden, {.scale = 0.3f}));
    stored.push_back(test::random_matrix(random, WeightFormat::bf16, hidden, width));
  }
  const Mlp routed[2] = {{stored[0].view, stored[1].view, stored[2].view},
                         {stored[3].view, stored[4].view, stored[5].view}};
  const Values x = rounded(random.normals(rows * hidden)), weights = random.uniforms(rows * 2, 0.1f, 1.0f);
  const std::vector<int32_t> chosen = {0, 1, 0, 1, 0, 1, 0, 1};
  ExpertScratch scratch(rows, hidden, 2, 2, width, 0);
  Experts a;
  a.hidden = hidden;
  a.swiglu_limit = 2.0f;
  a.routed = routed;
  a.experts = a.routed_count = a.per_token = 2;
  a.chosen = chosen.data();
  a.weights = weights.data();
  a.rows = rows;
  a.x = x.data();
  a.scratch = &scratch;
  a.compute = Compute::bf16;
  Values y(rows * hidden), exact(rows * hidden);
  a.y = y.data();
  experts(threads, a);
  Values leaves[2];
  for (size_t e = 0; e < 2; ++e) {  // expert e is leaf e
    Values activation(rows * width), ups(rows * width), down(rows * hidden);
    linear(threads, routed[e].gate, x.data(), activation.data(), rows);
    linear(threads, routed[e].up, x.data(), ups.data(), rows);
    kernels().clamped_swiglu(activation.data(), ups.data(), 2.0f, rows * width, activation.data());
    activation = rounded(activation);
    linear(threads, routed[e].down, activation.data(), down.data(), rows);
    leaves[e].assign(rows * hidden, 0.0f);
    for (size_t i = 0; i < down.size(); ++i)
      leaves[e][i] = std::fma(weights[i / hidden * 2 + e], down[i], leaves[e][i]);
  }
  kernels().add(leaves[0].data(), leaves[1].data(), rows * hidden, exact.data());
  EXPECT_TRUE(same_bits(y, rounded(exact)));
}

TEST(Rounding, TheDraftersConvolutionAndResidual) {
  constexpr int64_t channels = 48, group = 16, rows = 6;
  device::Threads threads(2);
  Random random(8);
  const Values base = random.normals(2 * channels), delta = random.normals(rows * 2 * (channels / group)),
               in = rounded(random.normals(rows * channels)), before = rounded(random.normals(rows * channels));
  for (const bool accumulate : {false, true}) {
    const auto run = [&](Compute compute) {
      Values out = before;
      BlockConv a;
      a.rows = rows;
      a.block_rows = 3;
      a.channels = channels;
      a.group_size = group;
      a.base = base.data();
      a.delta = delta.data();
      a.delta_stride = 2 * (channels / group);
      a.in = in.data();
      a.out = out.data();
      a.accumulate = accumulate;
      a.compute = compute;
      block_conv(threads, a);
      return out;
    };
    EXPECT_TRUE(same_bits(run(Compute::bf16), rounded(run(Compute::f32)))) << accumulate;
  }
}

}  // namespace
}  // namespace tandem::ops::rounding_test
