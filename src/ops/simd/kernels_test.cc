// Every instruction-set level gives the bits of the plain one, for every kernel and every length of the last group, and
// the element-wise kernels are what kernels.h says. The order of sums is checked by sums_test.cc.
#include "ops/simd/kernels.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "ops/test_random.h"

namespace tandem::ops::kernels_test {
namespace {

using test::Random;
using test::same_bits;

constexpr SimdLevel all_levels[] = {SimdLevel::scalar, SimdLevel::neon, SimdLevel::avx2, SimdLevel::avx512};

// Runs body(level) for every level of this machine and goes back to the level that was in use.
void for_levels(const std::function<void(SimdLevel)>& body) {
  const SimdLevel before = kernels().level;
  for (const SimdLevel level : all_levels) {
    if (!simd_level_available(level)) continue;
    use_simd_level(level);
    EXPECT_EQ(kernels().level, level);
    body(level);
  }
  use_simd_level(before);
}

// Inputs of one length. Vectors of exactly n values, so that the address sanitizer sees a read past the end.
struct Inputs {
  int64_t n;
  std::vector<float> x, z, y;  // y: what an accumulating kernel adds to
  float factor, weight;
};

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float specials[] = {
    0.0f,    -0.0f,      1e-45f,     -1e-45f, 1.1754942e-38f, 1.1754944e-38f, -1e-39f,
    -104.0f, -103.9721f, -103.2789f, -104.1f, -87.33655f,     -87.4f,         -88.1f,
    88.7f,   88.69999f,  88.72f,     88.73f,  -88.7f,         104.0f,         -200.0f,
    200.0f,  3.4e38f,    -3.4e38f,   1e30f,   infinity,       -infinity,      test::not_a_number};

Inputs make_inputs(Random& random, int64_t n, bool special) {
  Inputs in{n, {}, {}, {}, random.normal(3.0f), random.normal(2.0f)};
  for (std::vector<float>* v : {&in.x, &in.z, &in.y}) {
    *v = random.normals(n, 20.0f);
    for (float& value : *v) {
      if (special && random.below(3) == 0) value = specials[random.below(std::size(specials))];
    }
  }
  return in;
}

using Elementwise = std::function<void(const Kernels&, const Inputs&, float* y)>;
struct Named {
  const char* name;
  Elementwise run;
};

const std::vector<Named>& elementwise_kernels() {
  static const std::vector<Named> list = {
      {"exp", [](const Kernels& k, const Inputs& i, float* y) { k.exp(i.x.data(), i.n, y); }},
      {"sigmoid", [](const Kernels& k, const Inputs& i, float* y) { k.sigmoid(i.x.data(), i.n, y); }},
      {"silu", [](const Kernels& k, const Inputs& i, float* y) { k.silu(i.x.data(), i.n, y); }},
      {"scale", [](const Kernels& k, const Inputs& i, float* y) { k.scale(i.x.data(), i.factor, i.n, y); }},
      {"multiply",
       [](const Kernels& k, const Inputs& i, float* y) { k.multiply(i.x.data(), i.z.data(), i.factor, i.n, y); }},
      {"add", [](const Kernels& k, const Inputs& i, float* y) { k.add(i.x.data(), i.z.data(), i.n, y); }},
      {"subtract", [](const Kernels& k, const Inputs& i, float* y) { k.subtract(i.x.data(), i.z.data(), i.n, y); }},
      {"accumulate", [](const Kernels& k, const Inputs& i, float* y) { k.accumulate(i.factor, i.x.data(), i.n, y); }},
      {"relu_accumulate",
       [](const Kernels& k, const Inputs& i, float* y) { k.relu_accumulate(i.weight, i.factor, i.x.data(), i.n, y); }},
      {"exp_minus", [](const Kernels& k, const Inputs& i, float* y) { k.exp_minus(i.x.data(), i.factor, i.n, y); }},
      {"decayed",
       [](const Kernels& k, const Inputs& i, float* y) { k.decayed(i.y.data(), i.x.data(), i.z.data(), i.n, y); }},
      {"decayed, one exponent",
       [](const Kernels& k, const Inputs& i, float* y) { k.decayed(i.y.data(), i.x.data(), nullptr, i.n, y); }},
      {"clamped_swiglu",
       [](const Kernels& k, const Inputs& i, float* y) { k.clamped_swiglu(i.x.data(), i.z.data(), 10.0f, i.n, y); }},
      {"decay_gate", [](const Kernels& k, const Inputs& i,
                        float* y) { k.decay_gate(i.x.data(), i.z.data(), i.factor, -5.0f, i.n, y); }},
      {"decode_bf16", [](const Kernels& k, const Inputs& i,
                         float* y) { k.decode_bf16(reinterpret_cast<const std::byte*>(i.x.data()) + 1, i.n, y); }},
      {"round_bf16", [](const Kernels& k, const Inputs& i, float* y) { k.round_bf16(i.x.data(), i.n, y); }},
      {"convolve_silu",
       [](const Kernels& k, const Inputs& i, float* y) {
         const float* rows[3] = {i.x.data(), i.z.data(), i.x.data()};
         std::vector<float> taps(static_cast<size_t>(3 * i.n));
         for (size_t t = 0; t < taps.size(); ++t) taps[t] = i.y[t % i.y.size()] * 0.1f;
         k.convolve_silu(rows, taps.data(), i.n, 3, i.n, y);
       }},
  };
  return list;
}

constexpr int64_t guard = 20;  // values past the end that a kernel must leave alone

std::vector<float> run_elementwise(const Named& kernel, const Inputs& in) {
  std::vector<float> y = in.y;
  y.resize(static_cast<size_t>(in.n + guard), 12345.0f);
  kernel.run(kernels(), in, y.data());
  return y;
}

TEST(Kernels, ElementwiseBitsAreTheSameOnAllLevels) {
  for (const Named& kernel : elementwise_kernels()) {
    for (int64_t n = 1; n <= 70; ++n) {
      for (const bool special : {false, true}) {
        Random random(static_cast<uint64_t>(2 * n) + (special ? 1 : 0));
        const Inputs in = make_inputs(random, n, special);
        std::vector<float> expected;
        for_levels([&](SimdLevel level) {
          const std::vector<float> y = run_elementwise(kernel, in);
          if (level == SimdLevel::scalar) expected = y;
          ASSERT_TRUE(same_bits(y, expected)) << kernel.name << ", level " << static_cast<int>(level) << ", n " << n;
          for (int64_t i = n; i < n + guard; ++i) ASSERT_EQ(y[static_cast<size_t>(i)], 12345.0f) << kernel.name;
        });
      }
    }
  }
}

// Value by value: a lane does not see its neighbours, so one value alone gives the bits it has in a longer call.
TEST(Kernels, ElementwiseValuesDoNotDependOnTheirPlace) {
  Random random(3);
  const Inputs in = make_inputs(random, 53, true);
  for (const Named& kernel : elementwise_kernels()) {
    const std::vector<float> together = run_elementwise(kernel, in);
    for (size_t i = 0; i < 53; ++i) {
      const Inputs one{1, {in.x[i]}, {in.z[i]}, {in.y[i]}, in.factor, in.weight};
      const std::string name = kernel.name;
      if (name == "convolve_silu" || name == "decode_bf16") continue;  // these mix places on purpose
      EXPECT_TRUE(same_bits(run_elementwise(kernel, one)[0], together[i])) << kernel.name << " " << i;
    }
  }
}

TEST(Kernels, PlainArithmeticIsRoundedOnce) {
  Random random(4);
  for (const int64_t n : {1, 16, 17, 70}) {
    const Inputs in = make_inputs(random, n, true);
    const auto check = [&](size_t kernel, auto formula) {
      const std::vector<float> y = run_elementwise(elementwise_kernels()[kernel], in);
      for (size_t i = 0; i < static_cast<size_t>(n); ++i)
        EXPECT_TRUE(same_bits(y[i], formula(i))) << elementwise_kernels()[kernel].name << " " << i;
    };
    check(3, [&](size_t i) { return in.x[i] * in.factor; });
    check(4, [&](size_t i) { return (in.x[i] * in.factor) * in.z[i]; });
    check(5, [&](size_t i) { return in.x[i] + in.z[i]; });
    check(6, [&](size_t i) { return in.x[i] - in.z[i]; });
    check(7, [&](size_t i) { return std::fma(in.factor, in.x[i], in.y[i]); });
    check(8, [&](size_t i) {
      const float product = in.x[i] * in.factor;
      return std::fma(in.weight, product > 0.0f ? product : 0.0f, in.y[i]);
    });
  }
}

double ulp(double value) {  // distance of fp32 numbers around value
  return std::max(std::ldexp(1.0, std::ilogb(value) - 23), 0x1p-149);
}

// The value from numbers alone: a bf16 neighbour below, the one above, and the nearer of them.
TEST(Kernels, RoundsToTheNearestBf16) {
  const auto rounded = [](float x) {
    float y = 0.0f;
    kernels().round_bf16(&x, 1, &y);
    return y;
  };
  for_levels([&](SimdLevel) {
    EXPECT_EQ(rounded(1.0f), 1.0f);
    EXPECT_EQ(rounded(1.0f + 0x1p-9f), 1.0f);
    EXPECT_EQ(rounded(1.0f + 0x1p-8f), 1.0f) << "a tie goes to the even neighbour";
    EXPECT_EQ(rounded(1.0f + 0x1p-7f + 0x1p-8f), 1.0f + 0x1p-6f) << "a tie goes to the even neighbour";
    EXPECT_EQ(rounded(1.0f + 0x1p-8f + 0x1p-23f), 1.0f + 0x1p-7f);
    EXPECT_EQ(rounded(-1.0f - 0x1p-8f - 0x1p-23f), -1.0f - 0x1p-7f);
    EXPECT_EQ(rounded(0x1p-133f), 0x1p-133f) << "the smallest bf16";
    EXPECT_EQ(rounded(1.1f * 0x1p-134f), 0x1p-133f);
    EXPECT_EQ(rounded(0x1p-134f), 0.0f);
    EXPECT_TRUE(same_bits(rounded(-0.0f), -0.0f));
    EXPECT_EQ(rounded(3.4e38f), infinity) << "past the largest bf16 by more than half a unit";
    EXPECT_EQ(rounded(-infinity), -infinity);
    EXPECT_TRUE(std::isnan(rounded(std::bit_cast<float>(0x7f800001u)))) << "a NaN whose upper half is an infinity's";
    EXPECT_TRUE(std::isnan(rounded(std::bit_cast<float>(0xffffffffu))));
    Random random(7);
    for (int i = 0; i < 2000; ++i) {
      const float x = random.normal(100.0f), y = rounded(x);
      const float unit = std::ldexp(1.0f, std::ilogb(x) - 7);
      EXPECT_EQ(std::bit_cast<uint32_t>(y) & 0xffffu, 0u);
      EXPECT_LE(std::abs(y - x), unit / 2) << x;
    }
  });
}

TEST(Kernels, ExpIsWithinTwoUnits) {
  Random random(5);
  std::vector<float> x;
  for (float value = -87.0f; value <= 88.0f; value += 0.01f) x.push_back(value);
  for (int i = 0; i < 100000; ++i) x.push_back(random.uniform(-87.0f, 88.0f));
  for (int i = 0; i < 50000; ++i) x.push_back(random.uniform(-1.0f, 1.0f));
  for (int n = -125; n <= 126; ++n) {  // where the power of two changes
    const auto border = static_cast<float>((n + 0.5) * std::log(2.0));
    for (const float value : {std::nextafter(border, -infinity), border, std::nextafter(border, infinity)})
      x.push_back(value);
  }
  x.insert(x.end(), {0.0f, -0.0f, 1e-45f, -1e-45f, 1e-20f, 88.0f, -87.0f, 88.7f});
  std::vector<float> y(x.size());
  kernels().exp(x.data(), static_cast<int64_t>(x.size()), y.data());
  double worst = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double exact = std::exp(static_cast<double>(x[i]));
    const double error = std::abs(y[i] - exact) / ulp(exact);
    if (error > worst) worst = error;
    ASSERT_LE(error, 2.0) << x[i];
  }
  EXPECT_LT(worst, 1.0);  // what this polynomial reaches; a wrong coefficient shows here first
  for (const float value : {0.0f, -0.0f}) {
    float one;
    kernels().exp(&value, 1, &one);
    EXPECT_EQ(one, 1.0f);
  }
}

TEST(Kernels, ExpAtItsEdges) {
  std::vector<float> x, y;
  for (float value = -104.0f; value <= -87.0f; value += 0.003f) x.push_back(value);
  y.resize(x.size());
  kernels().exp(x.data(), static_cast<int64_t>(x.size()), y.data());
  for (size_t i = 0; i < x.size(); ++i) {
    const double exact = std::exp(static_cast<double>(x[i]));
    EXPECT_LE(std::abs(y[i] - exact), 2 * ulp(exact)) << x[i];  // denormal results, rounded once
    if (i > 0) {
      EXPECT_GE(y[i], y[i - 1]) << x[i];
    }
  }
  // Past the clamp: 0 below, a finite number above, NaN stays.
  const std::vector<float> outside = {-104.0f, -110.0f, -1e30f,   -infinity,         88.7f,
                                      89.0f,   1e30f,   infinity, test::not_a_number};
  std::vector<float> z(outside.size());
  kernels().exp(outside.data(), static_cast<int64_t>(outside.size()), z.data());
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(z[i], 0.0f) << outside[i];
  for (size_t i = 4; i < 8; ++i) EXPECT_EQ(z[i], z[4]) << outside[i];
  EXPECT_TRUE(std::isfinite(z[4]));
  EXPECT_GT(z[4], 3.3e38f);
  EXPECT_TRUE(std::isnan(z[8]));
}

TEST(Kernels, ActivationsAgainstDouble) {
  Random random(6);
  const int64_t n = 4000;
  const std::vector<float> x = random.normals(n, 8.0f), z = random.normals(n, 8.0f);
  std::vector<float> y(x.size());
  const auto check = [&](const char* name, auto formula) {
    for (size_t i = 0; i < x.size(); ++i) {
      const double exact = formula(i);
      EXPECT_NEAR(y[i], exact, 6e-7 * std::abs(exact)) << name << " " << x[i] << " " << z[i];
    }
  };
  kernels().sigmoid(x.data(), n, y.data());
  check("sigmoid", [&](size_t i) { return test::sigmoid(x[i]); });
  kernels().silu(x.data(), n, y.data());
  check("silu", [&](size_t i) { return test::silu(x[i]); });
  // The gate is cut from above only, the product's other side from both.
  int cut_gate = 0, cut_up = 0;
  kernels().clamped_swiglu(x.data(), z.data(), 10.0f, n, y.data());
  check("clamped_swiglu", [&](size_t i) {
    cut_gate += x[i] > 10.0f, cut_up += std::abs(z[i]) > 10.0f;
    return test::silu(std::min<double>(x[i], 10.0)) * std::clamp<double>(z[i], -10.0, 10.0);
  });
  EXPECT_GT(cut_gate, 100);
  EXPECT_GT(cut_up, 200);
  const float deep = -30.0f, one = 1.0f;  // below −limit the gate is left alone
  kernels().clamped_swiglu(&deep, &one, 10.0f, 1, y.data());
  EXPECT_NEAR(y[0], test::silu(-30.0), 1e-6 * std::abs(test::silu(-30.0)));
}

TEST(Kernels, SigmoidAtItsEnds) {
  const std::vector<float> x = {0.0f, 40.0f, infinity, -infinity, -100.0f, -88.0f};
  std::vector<float> y(x.size());
  kernels().sigmoid(x.data(), 6, y.data());
  EXPECT_EQ(y[0], 0.5f);
  EXPECT_EQ(y[1], 1.0f);
  EXPECT_EQ(y[2], 1.0f);
  for (size_t i = 3; i < 6; ++i) {
    EXPECT_GE(y[i], 0.0f);
    EXPECT_LT(y[i], 1e-37f);
  }
}

// Sums and products of rows on all levels: dot, sum, kda_pairs, combine_rows, dot_rows, matmul.
TEST(Kernels, SumsHaveTheSameBitsOnAllLevels) {
  for (int64_t n = 1; n <= 70; ++n) {
    for (const bool special : {false, true}) {
      Random random(static_cast<uint64_t>(1000 + 2 * n) + (special ? 1 : 0));
      const Inputs in = make_inputs(random, n, special);
      const std::vector<float> more = random.normals(7 * n, 2.0f);
      const std::vector<float> decays = random.uniforms(7 * n, -40.0f, 0.0f);
      std::vector<float> expected;
      for_levels([&](SimdLevel level) {
        const Kernels& k = kernels();
        std::vector<float> y = {k.dot(in.x.data(), in.z.data(), n), k.sum(in.x.data(), n)};
        float a[7], b[7];
        k.kda_pairs(in.x.data(), in.z.data(), decays.data(), more.data(), decays.data(), n, 7, n, a, b);
        y.insert(y.end(), a, a + 7);
        y.insert(y.end(), b, b + 7);
        if (level == SimdLevel::scalar) expected = y;
        ASSERT_TRUE(same_bits(y, expected)) << "level " << static_cast<int>(level) << ", n " << n;
      });
    }
  }
}

TEST(Kernels, CombineRowsHasTheSameBitsOnAllLevels) {
  for (int64_t n = 1; n <= 70; ++n) {
    Random random(static_cast<uint64_t>(n));
    const int64_t count = 1 + random.below(9), rows = 1 + random.below(9);
    const std::vector<float> list = random.normals(count * n), x = random.normals(rows * count);
    const std::vector<float> init = random.normals(rows * n), scale = random.normals(rows);
    std::vector<float> expected;
    for_levels([&](SimdLevel level) {
      std::vector<float> y(static_cast<size_t>(rows * n));
      CombineRows c;
      c.base = reinterpret_cast<const std::byte*>(list.data());
      c.base_stride = 4 * n;
      c.count = count;
      c.dims = n;
      c.x = x.data();
      c.x_stride = count;
      c.rows = rows;
      c.init = init.data();
      c.init_stride = n;
      c.init_scale = scale.data();
      c.out = y.data();
      c.out_stride = n;
      kernels().combine_rows(c);
      if (level == SimdLevel::scalar) expected = y;
      ASSERT_TRUE(same_bits(y, expected)) << "level " << static_cast<int>(level) << ", n " << n;
    });
  }
}

TEST(Kernels, MatmulHasTheSameBitsOnAllLevels) {
  for (const WeightFormat format : {WeightFormat::f32, WeightFormat::bf16, WeightFormat::fp8_block}) {
    for (int64_t k = 1; k <= 70; ++k) {
      Random random(static_cast<uint64_t>(k));
      const int64_t outputs = 1 + k % 7, rows = 1 + k % 13;
      const auto w = test::random_matrix(random, format, outputs, k, {.leaf_columns = random.below(k + 1)});
      const std::vector<float> x = random.normals(rows * k);
      std::vector<float> expected;
      for_levels([&](SimdLevel level) {
        std::vector<float> y(static_cast<size_t>(rows * outputs));
        kernels().matmul({&w.view, 0, outputs, 0, k, x.data(), k, rows, y.data(), outputs});
        if (level == SimdLevel::scalar) expected = y;
        ASSERT_TRUE(same_bits(y, expected)) << "level " << static_cast<int>(level) << ", K " << k;
      });
    }
  }
}

// The two kernels that benchmarks use do the same work on every level.
TEST(Kernels, BenchmarkKernelsAgree) {
  for (const int64_t n : {0, 1, 63, 512, 1024 + 77}) {
    std::vector<std::byte> data(static_cast<size_t>(n));
    uint64_t expected = 0;  // exclusive or of the words of whole lines of 512 bytes, then of the bytes that are left
    for (int64_t i = 0; i < n; ++i) {
      data[static_cast<size_t>(i)] = static_cast<std::byte>(i * 37 + 5);
      const uint64_t value = static_cast<uint64_t>(data[static_cast<size_t>(i)]);
      expected ^= i < n / 512 * 512 ? value << (8 * (i % 8)) : value;
    }
    for_levels([&](SimdLevel) { EXPECT_EQ(kernels().read_bytes(data.data(), n), expected) << n; });
  }
  float expected = 0.0f;
  for_levels([&](SimdLevel level) {
    const float found = kernels().fma_rounds(10);
    if (level == SimdLevel::scalar) expected = found;
    EXPECT_TRUE(same_bits(found, expected));
  });
  EXPECT_GT(expected, 0.0f);
}

TEST(Kernels, TheBestLevelIsChosen) {
  SimdLevel best = SimdLevel::scalar;
  for (const SimdLevel level : all_levels) {
    if (simd_level_available(level)) best = level;
  }
  EXPECT_EQ(kernels().level, best);
}

}  // namespace
}  // namespace tandem::ops::kernels_test
