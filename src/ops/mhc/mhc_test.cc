// Hyper-connections against spec/model.md 2.3 in double precision.
#include "ops/mhc/mhc.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/test_random.h"

namespace tandem::ops::mhc_test {
namespace {

using test::Random;
using test::same_bits;

struct Mapping {
  std::vector<double> pre, post, comb;
};

// Steps 3 to 6 from m = r·(fn·f).
Mapping mapping_double(const std::vector<double>& m, const std::vector<float>& base, const float* scale, size_t n,
                       int64_t iterations) {
  const double eps = 1e-6;
  Mapping out;
  for (size_t s = 0; s < n; ++s) out.pre.push_back(test::sigmoid(m[s] * scale[0] + base[s]) + eps);
  for (size_t s = n; s < 2 * n; ++s) out.post.push_back(2.0 * test::sigmoid(m[s] * scale[1] + base[s]));
  std::vector<double>& c = out.comb;
  for (size_t i = 0; i < n; ++i) {
    double sum = 0;
    for (size_t j = 0; j < n; ++j) {
      const size_t at = 2 * n + i * n + j;
      c.push_back(std::exp(m[at] * scale[2] + base[at]));
      sum += c.back();
    }
    for (size_t j = 0; j < n; ++j) c[i * n + j] = c[i * n + j] / sum + eps;
  }
  const auto columns = [&] {
    for (size_t j = 0; j < n; ++j) {
      double sum = eps;
      for (size_t i = 0; i < n; ++i) sum += c[i * n + j];
      for (size_t i = 0; i < n; ++i) c[i * n + j] /= sum;
    }
  };
  const auto rows = [&] {
    for (size_t i = 0; i < n; ++i) {
      double sum = eps;
      for (size_t j = 0; j < n; ++j) sum += c[i * n + j];
      for (size_t j = 0; j < n; ++j) c[i * n + j] /= sum;
    }
  };
  columns();
  for (int64_t round = 1; round < iterations; ++round) {
    rows();
    columns();
  }
  return out;
}

struct Site {
  test::StoredMatrix fn;
  std::vector<float> base, norm, scale;
  int64_t n, hidden;
};

Site make_site(Random& random, WeightFormat format, int64_t n, int64_t hidden, float logits) {
  Site site;
  site.n = n;
  site.hidden = hidden;
  site.fn = test::random_matrix(random, format, (2 + n) * n, n * hidden,
                                {.scale = logits / std::sqrt(static_cast<float>(n * hidden))});
  site.base = random.normals((2 + n) * n);
  site.norm = random.normals(hidden);
  site.scale = {0.7f, 1.3f, 0.9f};
  return site;
}

struct Entered {
  std::vector<float> post, comb, x;
};

Entered enter(device::Threads& threads, const Site& site, const float* streams, int64_t rows) {
  Entered out{test::unwritten(rows * site.n), test::unwritten(rows * site.n * site.n),
              test::unwritten(rows * site.hidden)};
  std::vector<float> mapping = test::unwritten(rows * (2 + site.n) * site.n);
  MhcEnter a;
  a.fn = &site.fn.view;
  a.base = site.base.data();
  a.scale = site.scale.data();
  a.norm = site.norm.data();
  a.n = site.n;
  a.hidden = site.hidden;
  a.streams = streams;
  a.rows = rows;
  a.mapping = mapping.data();
  a.post = out.post.data();
  a.comb = out.comb.data();
  a.x = out.x.data();
  mhc_enter(threads, a);
  return out;
}

struct EnteredDouble {
  std::vector<double> post, comb, x;
};

void enter_row_double(const Site& site, const float* streams, EnteredDouble& out) {
  const int64_t width = site.n * site.hidden;
  double squares = 0;
  for (int64_t i = 0; i < width; ++i) squares += static_cast<double>(streams[i]) * streams[i];
  const double r = 1.0 / std::sqrt(squares / test::real(width) + 1e-5);
  std::vector<double> m;
  for (int64_t o = 0; o < (2 + site.n) * site.n; ++o) {
    double sum = 0;
    for (int64_t i = 0; i < width; ++i) sum += site.fn.at(o, i) * streams[i] * r;
    m.push_back(sum);
  }
  const Mapping map = mapping_double(m, site.base, site.scale.data(), static_cast<size_t>(site.n), 20);
  std::vector<double> x;
  double mean = 0;
  for (int64_t d = 0; d < site.hidden; ++d) {
    double sum = 0;
    for (int64_t s = 0; s < site.n; ++s) sum += map.pre[static_cast<size_t>(s)] * streams[s * site.hidden + d];
    x.push_back(sum);
    mean += sum * sum / test::real(site.hidden);
  }
  for (size_t d = 0; d < x.size(); ++d) out.x.push_back(x[d] / std::sqrt(mean + 1e-5) * site.norm[d]);
  out.post.insert(out.post.end(), map.post.begin(), map.post.end());
  out.comb.insert(out.comb.end(), map.comb.begin(), map.comb.end());
}

Mapping run_mapping(const std::vector<float>& m, const std::vector<float>& base, const std::vector<float>& scale,
                    int64_t n, int64_t iterations, std::vector<float> (&out)[3]) {
  MhcEnter a;
  a.base = base.data();
  a.scale = scale.data();
  a.n = n;
  a.sinkhorn_iters = iterations;
  std::vector<float> scratch = m;
  out[0] = test::unwritten(n);
  out[1] = test::unwritten(n);
  out[2] = test::unwritten(n * n);
  mhc_mapping(a, scratch.data(), out[0].data(), out[1].data(), out[2].data());
  return mapping_double({m.begin(), m.end()}, base, scale.data(), static_cast<size_t>(n), iterations);
}

// Logits up to ±20 converge so slowly that one step more or fewer, or rows for columns, shows far above the bound.
TEST(MhcMapping, AgainstDouble) {
  Random random(1);
  for (const int64_t n : {1, 2, 3, 4, 8}) {
    for (const int64_t iterations : {1, 2, 3, 19, 20}) {
      for (const float size : {1.0f, 4.0f, 20.0f}) {
        const std::vector<float> m = random.normals((2 + n) * n, size), base = random.normals((2 + n) * n);
        std::vector<float> out[3];
        const Mapping expected = run_mapping(m, base, {0.7f, 1.3f, 0.9f}, n, iterations, out);
        EXPECT_TRUE(test::close(out[0], expected.pre, 2e-6)) << n;
        EXPECT_TRUE(test::close(out[1], expected.post, 2e-6)) << n;
        EXPECT_TRUE(test::close(out[2], expected.comb, 2e-5)) << n << " " << iterations << " " << size;
      }
    }
  }
}

TEST(MhcMapping, EpsIsAddedToPreOnly) {
  std::vector<float> m(24, 0.0f), out[3];
  for (size_t i = 0; i < 8; ++i) m[i] = -40.0f;  // sigmoid 4e-18
  run_mapping(m, std::vector<float>(24, 0.0f), {1.0f, 1.0f, 1.0f}, 4, 20, out);
  for (size_t s = 0; s < 4; ++s) {
    EXPECT_NEAR(out[0][s], 1e-6, 1e-12);
    EXPECT_LT(out[1][s], 1e-16f);
    EXPECT_GT(out[1][s], 0.0f);
  }
}

TEST(MhcMapping, PostReachesTwo) {
  std::vector<float> m(24, 0.0f), out[3];
  for (size_t i = 0; i < 8; ++i) m[i] = 40.0f;
  run_mapping(m, std::vector<float>(24, 0.0f), {1.0f, 1.0f, 1.0f}, 4, 20, out);
  for (size_t s = 0; s < 4; ++s) {
    EXPECT_EQ(out[1][s], 2.0f);
    EXPECT_NEAR(out[0][s], 1.000001, 1e-7);
  }
}

// The softmax runs along rows (from one source to all destinations) and the last step is a column step.
TEST(MhcMapping, LastStepIsAColumnStep) {
  Random random(2);
  for (const int64_t iterations : {1, 2, 3}) {  // before it has converged
    std::vector<float> out[3];
    run_mapping(random.normals(24, 3.0f), random.normals(24), {1.0f, 1.0f, 1.0f}, 4, iterations, out);
    double worst_row = 0;
    for (size_t i = 0; i < 4; ++i) {
      double row = 0, column = 0;
      for (size_t j = 0; j < 4; ++j) row += out[2][4 * i + j], column += out[2][4 * j + i];
      EXPECT_NEAR(column, 1.0, 1e-4);
      worst_row = std::max(worst_row, std::abs(row - 1.0));
    }
    EXPECT_GT(worst_row, 1e-2);
  }
}

// Very different logits: the eps keeps every entry and every division alive.
TEST(MhcMapping, ExtremeLogitsStayFinite) {
  std::vector<float> m(24, 0.0f), out[3];
  for (size_t i = 8; i < 24; ++i) m[i] = i % 4 == 0 ? 200.0f : -200.0f;  // every row points at column 0
  const Mapping expected = run_mapping(m, std::vector<float>(24, 0.0f), {1.0f, 1.0f, 1.0f}, 4, 20, out);
  EXPECT_TRUE(test::close(out[2], expected.comb, 1e-5));
}

TEST(MhcEnter, AgainstDouble) {
  device::Threads threads(3);
  Random random(3);
  for (const WeightFormat format : {WeightFormat::bf16, WeightFormat::f32}) {
    for (const int64_t n : {2, 4}) {
      for (const int64_t hidden : {96, 100, 515}) {
        for (const float size : {1.0f, 30.0f, 2e-3f}) {  // 2e-3: the mean square is less than eps
          const Site site = make_site(random, format, n, hidden, 1.5f);
          const int64_t rows = 11;
          const std::vector<float> streams = random.normals(rows * n * hidden, size);
          const Entered found = enter(threads, site, streams.data(), rows);
          EnteredDouble expected;
          for (int64_t r = 0; r < rows; ++r) enter_row_double(site, streams.data() + r * n * hidden, expected);
          EXPECT_TRUE(test::close(found.post, expected.post, 3e-6)) << n << " " << hidden << " " << size;
          EXPECT_TRUE(test::close(found.comb, expected.comb, 3e-6)) << n << " " << hidden << " " << size;
          EXPECT_TRUE(test::close(found.x, expected.x, 3e-6)) << n << " " << hidden << " " << size;
        }
      }
    }
  }
}

TEST(MhcEnter, BitsDoNotDependOnRowsAndThreads) {
  device::Threads one(1), three(3);
  Random random(4);
  const Site site = make_site(random, WeightFormat::bf16, 4, 72, 2.0f);
  const int64_t rows = 70, width = 4 * 72;
  const std::vector<float> streams = random.normals(rows * width);
  const Entered all = enter(three, site, streams.data(), rows);
  for (int64_t r = 0; r < rows; ++r) {
    const Entered single = enter(one, site, streams.data() + r * width, 1);
    EXPECT_TRUE(same_bits(single.x.data(), all.x.data() + r * 72, 72)) << r;
    EXPECT_TRUE(same_bits(single.post.data(), all.post.data() + r * 4, 4)) << r;
    EXPECT_TRUE(same_bits(single.comb.data(), all.comb.data() + r * 16, 16)) << r;
  }
}

TEST(MhcLeave, CombIsSourceByDestination) {
  device::Threads threads(1);
  const int64_t hidden = 5;
  std::vector<float> streams, y(hidden, 0.0f), post(4, 0.0f), comb(16, 0.0f);
  for (int s = 0; s < 4; ++s) streams.insert(streams.end(), hidden, static_cast<float>(s + 1));
  comb[1 * 4 + 3] = 1.0f;   // from stream 1 to stream 3
  comb[2 * 4 + 0] = 10.0f;  // from stream 2 to stream 0
  MhcLeave a;
  a.hidden = hidden;
  a.streams = streams.data();
  a.y = y.data();
  a.post = post.data();
  a.comb = comb.data();
  a.rows = 1;
  mhc_leave(threads, a);
  for (size_t d = 0; d < 5; ++d) {
    EXPECT_EQ(streams[d], 30.0f);
    EXPECT_EQ(streams[5 + d], 0.0f);
    EXPECT_EQ(streams[10 + d], 0.0f);
    EXPECT_EQ(streams[15 + d], 2.0f);
  }
}

// The sub-layer's output first, then the sources ascending, one fma each; hidden below, at and past the piece of 256.
TEST(MhcLeave, IsTheFormulaInTheWrittenOrder) {
  device::Threads one(1), three(3);
  for (const int64_t n : {2, 4, 8}) {
    for (const int64_t hidden : {1, 15, 96, 256, 257, 300, 700}) {
      for (const int64_t rows : {1, 19}) {
        Random random(static_cast<uint64_t>(n * 10000 + hidden * 10 + rows));
        const std::vector<float> before = random.normals(rows * n * hidden), y = random.normals(rows * hidden);
        const std::vector<float> post = random.uniforms(rows * n, 0.0f, 2.0f);
        const std::vector<float> comb = random.uniforms(rows * n * n, 0.0f, 1.0f);
        std::vector<float> expected;
        std::vector<double> exact;
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t j = 0; j < n; ++j) {
            for (int64_t d = 0; d < hidden; ++d) {
              const float from_y = y[static_cast<size_t>(r * hidden + d)],
                          weight = post[static_cast<size_t>(r * n + j)];
              float sum = from_y * weight;
              double sum_exact = static_cast<double>(from_y) * weight;
              for (int64_t i = 0; i < n; ++i) {
                const float c = comb[static_cast<size_t>((r * n + i) * n + j)];
                const float h = before[static_cast<size_t>((r * n + i) * hidden + d)];
                sum = std::fma(c, h, sum);
                sum_exact += static_cast<double>(c) * h;
              }
              expected.push_back(sum);
              exact.push_back(sum_exact);
            }
          }
        }
        for (device::Threads* threads : {&one, &three}) {
          std::vector<float> streams = before;
          MhcLeave a;
          a.n = n;
          a.hidden = hidden;
          a.streams = streams.data();
          a.y = y.data();
          a.post = post.data();
          a.comb = comb.data();
          a.rows = rows;
          mhc_leave(*threads, a);
          EXPECT_TRUE(same_bits(streams, expected)) << n << " " << hidden << " " << rows;
          EXPECT_TRUE(test::close(streams, exact, 1e-6)) << n << " " << hidden << " " << rows;
        }
      }
    }
  }
}

}  // namespace
}  // namespace tandem::ops::mhc_test
