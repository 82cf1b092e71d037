// RMSNorm and LayerNorm against spec/model.md 2.2 and 4.4, also where eps decides the result.
#include "ops/norm/norm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "ops/test_random.h"

namespace tandem::ops::norm_test {
namespace {

using test::Random;

std::vector<double> rms_norm_double(const std::vector<float>& x, const std::vector<float>* weight, double eps) {
  double squares = 0;
  for (const float value : x) squares += static_cast<double>(value) * value;
  const double factor = 1.0 / std::sqrt(squares / static_cast<double>(x.size()) + eps);
  std::vector<double> out;
  for (size_t i = 0; i < x.size(); ++i) out.push_back(x[i] * factor * (weight ? (*weight)[i] : 1.0));
  return out;
}

std::vector<double> layer_norm_double(const std::vector<float>& x, const std::vector<float>& weight,
                                      const std::vector<float>& bias, double eps) {
  const auto n = static_cast<double>(x.size());
  double mean = 0, variance = 0;
  for (const float value : x) mean += value / n;
  for (const float value : x) variance += (value - mean) * (value - mean) / n;
  std::vector<double> out;
  for (size_t i = 0; i < x.size(); ++i) out.push_back((x[i] - mean) / std::sqrt(variance + eps) * weight[i] + bias[i]);
  return out;
}

TEST(RmsNorm, AgainstDouble) {
  Random random(1);
  for (const int64_t n : {1, 7, 16, 96, 128, 1000, 4096}) {
    for (const float scale : {1.0f, 1e-3f, 3e-6f, 1e4f}) {  // 3e-6: the mean square is below both eps
      for (const float eps : {1e-5f, 1e-6f}) {
        const std::vector<float> x = random.normals(n, scale), weight = random.normals(n);
        std::vector<float> y = test::unwritten(n);
        rms_norm(x.data(), weight.data(), eps, n, y.data());
        EXPECT_TRUE(test::close(y, rms_norm_double(x, &weight, eps), 1e-6)) << n << " " << scale << " " << eps;
        rms_norm(x.data(), nullptr, eps, n, y.data());
        EXPECT_TRUE(test::close(y, rms_norm_double(x, nullptr, eps), 1e-6)) << n << " " << scale << " " << eps;
        std::vector<float> in_place = x;
        rms_norm(in_place.data(), nullptr, eps, n, in_place.data());
        EXPECT_TRUE(test::same_bits(in_place, y));
      }
    }
  }
}

TEST(RmsNorm, ZeroStaysZero) {
  const std::vector<float> x(40, 0.0f), weight(40, 3.0f);
  std::vector<float> y = test::unwritten(40);
  rms_norm(x.data(), weight.data(), 1e-5f, 40, y.data());
  EXPECT_EQ(y, x);
}

TEST(RmsNorm, EpsStandsInsideTheRootOfTheMean) {
  const std::vector<float> x(64, 1e-3f);  // mean square 1e-6
  std::vector<float> y = test::unwritten(64);
  rms_norm(x.data(), nullptr, 1e-5f, 64, y.data());
  EXPECT_NEAR(y[0], 1e-3 / std::sqrt(1.1e-5), 1e-6);
}

TEST(LayerNorm, AgainstDouble) {
  Random random(2);
  for (const int64_t n : {2, 32, 75, 128, 1500}) {
    for (const float scale : {1.0f, 1e-3f, 1e-6f}) {
      for (const float offset : {0.0f, 1.5f}) {
        std::vector<float> x = random.normals(n, scale);
        for (float& value : x) value += offset * scale;
        const std::vector<float> weight = random.normals(n), bias = random.normals(n, 0.1f);
        std::vector<float> y = test::unwritten(n);
        layer_norm(x.data(), weight.data(), bias.data(), 1e-6f, n, y.data());
        EXPECT_TRUE(test::close(y, layer_norm_double(x, weight, bias, 1e-6), 2e-6)) << n << " " << scale;
        layer_norm(x.data(), weight.data(), bias.data(), 1e-6f, n, x.data());
        EXPECT_TRUE(test::same_bits(x, y));
      }
    }
  }
}

TEST(LayerNorm, ConstantRowIsTheBias) {
  const std::vector<float> x(32, 4.0f), weight(32, 7.0f), bias(32, 0.25f);
  std::vector<float> y = test::unwritten(32);
  layer_norm(x.data(), weight.data(), bias.data(), 1e-6f, 32, y.data());
  EXPECT_EQ(y, bias);
}

}  // namespace
}  // namespace tandem::ops::norm_test
