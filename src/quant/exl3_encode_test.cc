// Whole matrices: the figures of spec/quantization.md 2.9 and 9 (items 8 to 10), determinism, odd and bad input.
#include "quant/exl3_encode.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "base/error.h"
#include "quant/exl3_finalise.h"
#include "quant/exl3_ldlq.h"
#include "quant/exl3_regularise.h"
#include "quant/exl3_viterbi.h"
#include "quant/half.h"
#include "quant/test_exl3_encode.h"

namespace tandem::quant::exl3_encode_test {
namespace {

Exl3EncodeSettings settings_of(int bits, Exl3Codebook codebook, Exl3ScaleSearch search = Exl3ScaleSearch::none) {
  Exl3EncodeSettings settings;
  settings.bits = bits;
  settings.codebook = codebook;
  settings.scale_search = search;
  settings.sign_seed = 21;
  return settings;
}

bool same_bytes(const Exl3Encoded& a, const Exl3Encoded& b) {
  return a.trellis == b.trellis && a.suh == b.suh && a.svh == b.svh && a.scale == b.scale &&
         a.proxy_error == b.proxy_error && a.relative_mse == b.relative_mse;
}

// trace(EᵀHE) / trace(WᵀHW) of the layer itself, from the stored form; H is damped.
double output_error(const std::vector<float>& weight, const Exl3Encoded& stored, const Exl3Moments& moments,
                    Exl3Codebook codebook) {
  const auto n = static_cast<size_t>(moments.features), out = weight.size() / n;
  const std::vector<double> decoded = exl3_dense(stored_matrix(stored, codebook));
  double mean = 0;
  for (size_t i = 0; i < n; ++i) mean += moments.sums[i * n + i] / static_cast<double>(n);
  double error = 0, total = 0;
  for (size_t o = 0; o < out; ++o) {
    for (size_t i = 0; i < n; ++i) {
      double he = 0, hw = 0;
      for (size_t j = 0; j < n; ++j) {
        const double h = moments.sums[std::max(i, j) * n + std::min(i, j)] + (i == j ? 0.025 * mean : 0);
        he += h * (weight[o * n + j] - decoded[j * out + o]);
        hw += h * weight[o * n + j];
      }
      error += (weight[o * n + i] - decoded[i * out + o]) * he;
      total += weight[o * n + i] * hw;
    }
  }
  return error / total;
}

struct Ldlq {
  int bits;
  double rho, plain_proxy, proxy, plain_mse, mse;
};
const Ldlq ldlq_table[] = {{2, 0.90, 0.0679, 0.0211, 0.0680, 0.1059},
                           {3, 0.90, 0.0180, 0.00523, 0.0175, 0.0275},
                           {4, 0.50, 0.00460, 0.00297, 0.00454, 0.00575},
                           {4, 0.90, 0.00455, 0.00126, 0.00454, 0.00710},
                           {4, 0.98, 0.00486, 0.000773, 0.00454, 0.00647}};

TEST(Exl3Encode, FeedbackReachesTheSpecificationsErrors) {
  device::Threads threads(2);
  const std::vector<float> weight = gaussian_values(128 * 256, 5);
  for (const Ldlq& row : ldlq_table) {
    if (sanitized && row.bits == 4) continue;
    const auto settings = settings_of(row.bits, Exl3Codebook::mcg);
    const Exl3Moments moments = correlated_moments(256, row.rho);
    const Exl3Hessian hessian("w", moments, 9, threads), none("w", 256, 9);
    const Exl3Encoded fed = exl3_encode("w", weight.data(), 128, 256, hessian, settings, threads);
    const Exl3Encoded plain = exl3_encode("w", weight.data(), 128, 256, none, settings, threads);
    const double plain_proxy = output_error(weight, plain, moments, Exl3Codebook::mcg);
    // Draws of 128 outputs and signs differ by as much, the more the fewer directions H favours.
    const double spread = row.rho > 0.95 ? 0.20 : 0.10;
    EXPECT_NEAR(fed.proxy_error / row.proxy, 1, spread) << row.bits << " bits, " << row.rho;
    // The columns are even: the measure of the regularised domain is that of the outputs.
    EXPECT_NEAR(fed.proxy_error / output_error(weight, fed, moments, Exl3Codebook::mcg), 1, 0.02) << row.rho;
    EXPECT_NEAR(plain_proxy / row.plain_proxy, 1, spread) << row.bits << " bits, " << row.rho;
    EXPECT_NEAR(fed.relative_mse / row.mse, 1, 0.05) << row.bits << " bits, " << row.rho;
    EXPECT_NEAR(plain.relative_mse / row.plain_mse, 1, 0.05) << row.bits << " bits, " << row.rho;
  }
}

// Signs alone in place of suh (the spec's 2.3) would feed back errors of other directions than the outputs see.
TEST(Exl3Encode, FeedbackServesTheOutputsOfUnevenInputs) {
  device::Threads threads(2);
  std::vector<float> weight = gaussian_values(128 * 128, 15);
  for (size_t i = 0; i < weight.size(); ++i) weight[i] *= 0.02f * static_cast<float>(1 + i % 128 % 4);
  const Exl3Finalised finalised = exl3_finalise("w", correlated_moments(128, 0.9), 9, threads);
  const Exl3Source source{weight.data(), 128, 128};
  const Exl3Fit fit = exl3_fit("w", source, finalised, settings_of(4, Exl3Codebook::mcg), {}, threads);
  const Exl3Vectors vectors = exl3_store_vectors("w", fit, 0.948);
  std::vector<float> suh, svh;
  for (const uint16_t half : vectors.suh) suh.push_back(half_to_float(half));
  for (const uint16_t half : vectors.svh) svh.push_back(half_to_float(half));
  const std::vector<float> regularised = exl3_regularise(source, suh, svh, threads);
  const Exl3Factor exact = exl3_factor("w", finalised, suh, threads);
  const Exl3Factor signs = exl3_factor("w", finalised, finalised.signs, threads);
  Exl3TileEncoder encoder(Exl3Codebook::mcg, 4, threads);
  const auto error_with = [&](const Exl3Factor& feedback) {
    const Exl3Coded coded = exl3_ldlq(regularised, 128, 128, feedback, encoder);
    return exl3_proxy_error(regularised, coded.values, 128, 128, exact, threads);
  };
  EXPECT_LT(error_with(exact), 0.95 * error_with(signs));
}

TEST(Exl3Encode, UnevenMatrixHasTheErrorOfAnEvenOne) {
  device::Threads threads(2);
  const std::vector<float> weight = uneven_weights(256, 512, 6);
  const Exl3Hessian hessian("w", 512, 9);
  struct Case {
    Exl3Codebook codebook;
    int bits;
    double original, regularised;
  };
  for (const Case& c : {Case{Exl3Codebook::mcg, 4, 0.004377, 0.004514}, Case{Exl3Codebook::mul1, 4, 0.004287, 0.004426},
                        Case{Exl3Codebook::mcg, 6, 0.000327, 0.000320}}) {
    const Exl3Encoded e = exl3_encode("w", weight.data(), 256, 512, hessian, settings_of(c.bits, c.codebook), threads);
    // The few strongest outputs and inputs are most of the original domain: another draw is up to 8 % off there.
    EXPECT_NEAR(e.relative_mse / c.original, 1, 0.08) << name_of(c.codebook) << ' ' << c.bits;
    EXPECT_NEAR(e.proxy_error / c.regularised, 1, 0.05) << name_of(c.codebook) << ' ' << c.bits;
  }
}

// W[in, out] as a reader of the file sees it.
std::vector<double> decoded(const Exl3Encoded& e, Exl3Codebook codebook) {
  return exl3_dense(stored_matrix(e, codebook));
}

TEST(Exl3Encode, DeadOutputsAreExactlyZero) {
  device::Threads threads(2);
  const Exl3Hessian hessian("w", correlated_moments(128, 0.5), 9, threads);
  const auto settings = settings_of(3, Exl3Codebook::mcg, Exl3ScaleSearch::small);
  std::vector<float> weight = gaussian_values(128 * 128, 7);
  std::fill_n(weight.begin() + 40 * 128, 128, 0.0f);          // an output
  for (size_t n = 0; n < 128; ++n) weight[n * 128 + 77] = 0;  // an input
  const Exl3Encoded e = exl3_encode("w", weight.data(), 128, 128, hessian, settings, threads);
  const std::vector<double> w = decoded(e, Exl3Codebook::mcg);
  for (size_t k = 0; k < 128; ++k) {
    for (size_t n = 0; n < 128; ++n) ASSERT_TRUE(std::isfinite(w[k * 128 + n]));
    EXPECT_EQ(w[k * 128 + 40], 0);
  }
  EXPECT_LT(e.relative_mse, 1.7 * 0.01741);
  EXPECT_TRUE(std::isfinite(e.proxy_error));

  const std::vector<float> nothing(128 * 128);
  const Exl3Encoded zero = exl3_encode("w", nothing.data(), 128, 128, hessian, settings, threads);
  for (const double x : decoded(zero, Exl3Codebook::mcg)) ASSERT_EQ(x, 0);
  EXPECT_EQ(zero.relative_mse, 0);
  EXPECT_EQ(zero.proxy_error, 0);
  for (const uint16_t half : zero.suh) EXPECT_TRUE(std::isfinite(half_to_float(half)) && half_to_float(half) != 0);
}

TEST(Exl3Encode, SmallerLayersArePadded) {
  device::Threads threads(2);
  const std::vector<float> weight = gaussian_values(100 * 200, 8);
  const Exl3Hessian hessian("w", correlated_moments(200, 0.5), 9, threads);
  const Exl3Encoded e = exl3_encode("w", weight.data(), 100, 200, hessian, settings_of(4, Exl3Codebook::mul1), threads);
  EXPECT_EQ(e.in_features, 256);
  EXPECT_EQ(e.out_features, 128);
  EXPECT_EQ(e.trellis.size(), 256u * 128 * 4 / 8);
  ASSERT_EQ(e.suh.size(), 256u);
  ASSERT_EQ(e.svh.size(), 128u);
  for (size_t n = 100; n < 128; ++n) EXPECT_EQ(e.svh[n] & 0x7fff, 0);
  const std::vector<double> w = decoded(e, Exl3Codebook::mul1);
  double error = 0, total = 0;
  for (size_t n = 0; n < 100; ++n) {
    for (size_t k = 0; k < 200; ++k) {
      const double d = w[k * 128 + n] - weight[n * 200 + k];
      error += d * d;
      total += static_cast<double>(weight[n * 200 + k]) * weight[n * 200 + k];
    }
  }
  EXPECT_NEAR(e.relative_mse / (error / total), 1, 1e-4);
  EXPECT_LT(e.relative_mse, 1.7 * 0.004437);
}

TEST(Exl3Encode, BytesAreThoseOfOneScalarThread) {
  device::Threads one(1), three(3);
  const std::vector<float> weight = uneven_weights(128, 128, 9);
  const Exl3Moments moments = correlated_moments(128, 0.9);
  const Exl3Level before = exl3_level();
  const auto settings = settings_of(4, Exl3Codebook::mcg);
  std::vector<Exl3Encoded> all;
  for (const Exl3Level level : {Exl3Level::scalar, Exl3Level::avx2, Exl3Level::avx512}) {
    if (!exl3_level_available(level) || (sanitized && level == Exl3Level::scalar)) continue;
    use_exl3_level(level);
    for (device::Threads* threads : {&one, &three}) {
      if (level == Exl3Level::scalar && threads == &three) continue;  // slow, and the threads do not see the level
      const Exl3Hessian hessian("w", moments, 9, *threads);
      all.push_back(exl3_encode("w", weight.data(), 128, 128, hessian, settings, *threads));
    }
  }
  use_exl3_level(before);
  for (size_t i = 1; i < all.size(); ++i) EXPECT_TRUE(same_bytes(all[0], all[i])) << i;
}

TEST(Exl3Encode, ScaleSearchFindsTheTable) {
  device::Threads threads(2);
  const std::vector<float> weight = gaussian_values(128 * 128, 10);
  const Exl3Hessian hessian("w", 128, 9);
  const auto encode = [&](Exl3ScaleSearch search) {
    return exl3_encode("w", weight.data(), 128, 128, hessian, settings_of(4, Exl3Codebook::mul1, search), threads);
  };
  const Exl3Encoded none = encode(Exl3ScaleSearch::none);
  EXPECT_EQ(none.scale, 0.738);
  for (const Exl3ScaleSearch search : {Exl3ScaleSearch::full, Exl3ScaleSearch::small}) {
    const Exl3Encoded found = encode(search);
    EXPECT_NEAR(found.scale, 0.738, 0.12);  // the curve is flat
    EXPECT_LT(found.relative_mse, 1.03 * none.relative_mse);
    EXPECT_NE(found.scale, none.scale);
  }
}

TEST(Exl3Encode, OutputScalesFollowTheSetting) {
  device::Threads threads(2);
  const std::vector<float> weight = uneven_weights(128, 128, 11);
  Exl3Moments even = correlated_moments(128, 0.5), skewed = even;
  skewed.sums[17 * 128 + 17] = 1e6;  // 2 inputs of 128 are the strongest 2 %
  auto settings = settings_of(2, Exl3Codebook::mcg);
  const auto scales = [&](const Exl3Moments& moments) {
    const Exl3Hessian hessian("w", moments, 9, threads);
    return exl3_encode("w", weight.data(), 128, 128, hessian, settings, threads).svh;
  };
  const auto all_signs = [](const std::vector<uint16_t>& svh) {
    return std::all_of(svh.begin(), svh.end(), [](uint16_t h) { return (h & 0x7fff) == 0x3c00; });
  };
  EXPECT_FALSE(all_signs(scales(even)));
  settings.out_scales = Exl3OutScales::never;
  EXPECT_TRUE(all_signs(scales(even)));
  settings.out_scales = Exl3OutScales::automatic;
  EXPECT_FALSE(all_signs(scales(even)));
  EXPECT_TRUE(all_signs(scales(skewed)));
}

TEST(Exl3Encode, GivenVectorsAreStoredAsTheyAre) {
  device::Threads threads(2);
  const std::vector<float> weight = gaussian_values(128 * 256, 12);
  const Exl3Hessian hessian("w", correlated_moments(256, 0.5), 9, threads);
  const auto settings = settings_of(4, Exl3Codebook::mcg, Exl3ScaleSearch::small);
  const auto bits_of = [](const std::vector<float>& values) {
    std::vector<uint16_t> halves(values.size());
    std::transform(values.begin(), values.end(), halves.begin(), float_to_half);
    return halves;
  };
  Exl3GivenVectors inputs, outputs, both;
  for (size_t k = 0; k < 256; ++k) inputs.suh.push_back((k % 7 < 3 ? -0.01f : 0.01f) * (k % 3 == 0 ? 1.1f : 1.0f));
  for (size_t n = 0; n < 128; ++n) outputs.svh.push_back(n % 5 < 2 ? -1.1f : 0.9f);
  both.suh = inputs.suh;
  both.svh.assign(128, 80.4f);  // 0.01·80.4 = 1/1.2437: the trellis sees its scale of 1
  const Exl3Encoded a = exl3_encode("w", weight.data(), 128, 256, hessian, settings, inputs, threads);
  EXPECT_EQ(a.suh, bits_of(inputs.suh));
  EXPECT_NE(a.scale, 1);
  const Exl3Encoded b = exl3_encode("w", weight.data(), 128, 256, hessian, settings, outputs, threads);
  EXPECT_EQ(b.svh, bits_of(outputs.svh));
  const Exl3Encoded c = exl3_encode("w", weight.data(), 128, 256, hessian, settings, both, threads);
  EXPECT_EQ(c.suh, bits_of(both.suh));
  EXPECT_EQ(c.svh, bits_of(both.svh));
  EXPECT_EQ(c.scale, 1);
  for (const Exl3Encoded* e : {&a, &b, &c}) EXPECT_LT(e->relative_mse, 1.7 * 0.004529);
}

TEST(Exl3Encode, VectorsStayInsideFp16) {
  device::Threads threads(2);
  const Exl3Hessian hessian("w", 128, 9);
  const auto settings = settings_of(4, Exl3Codebook::mcg);
  const auto encode = [&](float factor) {
    std::vector<float> weight = gaussian_values(128 * 128, 13);
    for (float& w : weight) w *= factor;
    return exl3_encode("model.w", weight.data(), 128, 128, hessian, settings, threads);
  };
  const Exl3Encoded plain = encode(1);
  for (const int exponent : {-24, -18, 18, 24}) {
    const Exl3Encoded moved = encode(std::ldexp(1.0f, exponent));
    EXPECT_EQ(moved.trellis, plain.trellis) << exponent;
    EXPECT_NEAR(moved.relative_mse, plain.relative_mse, 1e-3 * plain.relative_mse) << exponent;
  }
  try {
    encode(0x1p60f);
    FAIL() << "wrote infinite scales";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::bad_file);
    EXPECT_NE(std::string(e.what()).find("model.w"), std::string::npos);
  }
}

void expect_refused(ErrorCode code, const std::string& text, const std::function<void()>& body) {
  try {
    body();
    ADD_FAILURE() << "accepted: " << text;
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), code) << e.what();
    EXPECT_NE(std::string(e.what()).find(text), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("model.w"), std::string::npos) << e.what();
  }
}

TEST(Exl3Encode, RefusesWhatItCannotEncode) {
  device::Threads threads(1);
  std::vector<float> weight = gaussian_values(128 * 128, 14);
  const Exl3Hessian hessian("h", 128, 9);
  auto settings = settings_of(4, Exl3Codebook::mcg);
  const auto encode = [&](const Exl3GivenVectors& given, int64_t out = 128, int64_t in = 128) {
    exl3_encode("model.w", weight.data(), out, in, hessian, settings, given, threads);
  };
  expect_refused(ErrorCode::internal, "[128, 100]", [&] { encode({}, 128, 100); });
  settings.bits = 9;
  expect_refused(ErrorCode::usage, "found 9", [&] {
    try {
      encode({});
    } catch (const Error& e) {
      throw Error(e.code(), e.where(), "found " + e.found(), e.expected());
    }
  });
  settings.bits = 4;
  Exl3GivenVectors given;
  given.suh.assign(100, 1.0f);
  expect_refused(ErrorCode::failed_check, "100 values", [&] { encode(given); });
  given.suh.assign(128, 0.5f);
  given.suh[7] = 0;
  expect_refused(ErrorCode::failed_check, "0 at 7", [&] { encode(given); });
  given.suh.clear();
  given.svh.assign(128, 1e6f);
  expect_refused(ErrorCode::failed_check, "at 0", [&] { encode(given); });
  weight[3 * 128 + 5] = std::numeric_limits<float>::quiet_NaN();
  expect_refused(ErrorCode::bad_file, "at [3, 5]", [&] { encode({}); });
}

}  // namespace
}  // namespace tandem::quant::exl3_encode_test
