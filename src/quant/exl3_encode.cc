// The steps of spec/quantization.md 2.4 to 2.8 in their order.
#include "quant/exl3_encode.h"

#include <fmt/format.h>

#include <cmath>
#include <span>

#include "base/error.h"
#include "quant/exl3_ldlq.h"
#include "quant/exl3_matrix.h"
#include "quant/exl3_regularise.h"
#include "quant/exl3_scale.h"
#include "quant/half.h"

namespace tandem::quant {
namespace {

void check(std::string_view name, const Exl3Source& source, const Exl3Hessian& hessian,
           const Exl3EncodeSettings& settings) {
  if (settings.bits < 1 || settings.bits > exl3_max_bits)
    throw Error(ErrorCode::usage, fmt::format("bits of {}", name), fmt::format("{}", settings.bits), "1 to 8");
  if (source.out_features <= 0 || source.in_features != hessian.finalised().features)
    throw Error(ErrorCode::internal, fmt::format("weight of {}", name),
                fmt::format("[{}, {}]", source.out_features, source.in_features),
                fmt::format("[1 or more, {}]", hessian.finalised().features));
  for (int64_t i = 0; i < source.out_features * source.in_features; ++i) {
    if (std::isfinite(source.weight[i])) continue;
    throw Error(ErrorCode::bad_file, fmt::format("weight of {}", name),
                fmt::format("{} at [{}, {}]", source.weight[i], i / source.in_features, i % source.in_features),
                "a finite number");
  }
}

std::vector<float> to_float(const std::vector<uint16_t>& halves) {
  std::vector<float> values(halves.size());
  for (size_t i = 0; i < halves.size(); ++i) values[i] = half_to_float(halves[i]);
  return values;
}

// From the stored form, by the decoder that everything else is tested against.
double relative_mse(const Exl3Source& source, const Exl3Encoded& encoded, Exl3Codebook codebook) {
  const std::vector<float> decoded = exl3_dense_f32(stored_matrix(encoded, codebook));
  double error = 0, total = 0;
  for (int64_t n = 0; n < source.out_features; ++n) {
    for (int64_t k = 0; k < source.in_features; ++k) {
      const double w = source.weight[n * source.in_features + k];
      const double d = static_cast<double>(decoded[static_cast<size_t>(k * encoded.out_features + n)]) - w;
      error += d * d;
      total += w * w;
    }
  }
  return total > 0 ? error / total : 0;
}

}  // namespace

Exl3Matrix stored_matrix(const Exl3Encoded& encoded, Exl3Codebook codebook) {
  Exl3Matrix stored;
  stored.trellis = encoded.trellis;
  stored.bits = encoded.bits;
  stored.in_features = encoded.in_features;
  stored.out_features = encoded.out_features;
  stored.codebook = codebook;
  stored.suh = std::as_bytes(std::span(encoded.suh));
  stored.svh = std::as_bytes(std::span(encoded.svh));
  return stored;
}

Exl3Encoded exl3_encode(std::string_view name, const float* weight, int64_t out_features, int64_t in_features,
                        const Exl3Hessian& hessian, const Exl3EncodeSettings& settings, const Exl3GivenVectors& given,
                        device::Threads& threads) {
  const Exl3Source source{weight, out_features, in_features};
  check(name, source, hessian, settings);
  const Exl3Finalised& finalised = hessian.finalised();
  Exl3Encoded encoded;
  encoded.bits = settings.bits;
  encoded.in_features = source.padded_in();
  encoded.out_features = source.padded_out();

  Exl3TileEncoder encoder(settings.codebook, settings.bits, threads);
  Exl3Vectors vectors;
  bool any_weight = false;
  {
    const Exl3Fit fit = exl3_fit(name, source, finalised, settings, given, threads);
    any_weight = !fit.all_zero;
    const bool scaled = any_weight && !(fit.su_given && fit.sv_given);
    encoded.scale = !scaled ? 1
                            : exl3_search_scale(fit.regularised.data(), encoded.in_features, encoded.out_features,
                                                settings.scale_search, encoder);
    vectors = exl3_store_vectors(name, fit, encoded.scale);
  }
  // The trellis is fitted to what the rounded vectors leave, so that their rounding costs nothing.
  const std::vector<float> suh = to_float(vectors.suh);
  const std::vector<float> weights = exl3_regularise(source, suh, to_float(vectors.svh), threads);
  const Exl3Factor factor = exl3_factor(name, finalised, suh, threads);
  Exl3Coded coded = exl3_ldlq(weights, encoded.in_features, encoded.out_features, factor, encoder);
  // Of a matrix of zeros every output is dead, and svh undoes whatever the trellis says.
  if (any_weight)
    encoded.proxy_error =
        exl3_proxy_error(weights, coded.values, encoded.in_features, encoded.out_features, factor, threads);
  encoded.trellis = std::move(coded.trellis);
  encoded.suh = std::move(vectors.suh);
  encoded.svh = std::move(vectors.svh);
  encoded.relative_mse = relative_mse(source, encoded, settings.codebook);
  return encoded;
}

Exl3Encoded exl3_encode(std::string_view name, const float* weight, int64_t out_features, int64_t in_features,
                        const Exl3Hessian& hessian, const Exl3EncodeSettings& settings, device::Threads& threads) {
  return exl3_encode(name, weight, out_features, in_features, hessian, settings, {}, threads);
}

}  // namespace tandem::quant
