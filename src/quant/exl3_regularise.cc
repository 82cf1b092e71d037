// Vectors and rotations of spec/quantization.md 2.4; sums in fp64 in index order.
#include "quant/exl3_regularise.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "quant/hadamard.h"
#include "quant/half.h"

namespace tandem::quant {
namespace {

constexpr int64_t strip = 16;  // rows or columns of one task

// Runs body(first, last) over `count` items.
template <class Body>
void by_strips(int64_t count, int64_t width, device::Threads& threads, const Body& body) {
  threads.run((count + width - 1) / width, [&](int64_t i) { body(i * width, std::min(count, (i + 1) * width)); });
}

// (W·diag(1/scale))·H, [in, out] padded.
template <class Real>
std::vector<float> rotate_outputs(const Exl3Source& source, std::span<const Real> scale, device::Threads& threads) {
  const int64_t in = source.padded_in(), out = source.padded_out();
  std::vector<float> rotated(static_cast<size_t>(in * out));
  by_strips(source.in_features, strip, threads, [&](int64_t first, int64_t last) {
    for (int64_t n = 0; n < source.out_features; ++n) {
      const auto divisor = static_cast<float>(scale[static_cast<size_t>(n)]);
      if (divisor == 0) continue;
      const float* row = source.weight + n * source.in_features;
      for (int64_t k = first; k < last; ++k) rotated[static_cast<size_t>(k * out + n)] = row[k] / divisor;
    }
    for (int64_t k = first; k < last; ++k) hadamard128(rotated.data() + k * out, out / hadamard_block);
  });
  return rotated;
}

// H·(diag(1/scale)·W) in place: hadamard128's tree of additions, over 128 rows at once.
template <class Real>
void rotate_inputs(std::vector<float>& weights, int64_t in, int64_t out, std::span<const Real> scale,
                   device::Threads& threads) {
  constexpr int64_t columns = 64;
  const int64_t chunks = out / columns;
  threads.run(in / hadamard_block * chunks, [&](int64_t task) {
    const int64_t first = task / chunks * hadamard_block;
    float* const base = weights.data() + first * out + task % chunks * columns;
    float block[hadamard_block][columns];
    for (int64_t i = 0; i < hadamard_block; ++i) {
      const auto divisor = static_cast<float>(scale[static_cast<size_t>(first + i)]);
      for (int64_t n = 0; n < columns; ++n) block[i][n] = divisor == 0 ? 0.0f : base[i * out + n] / divisor;
    }
    for (int64_t stride = 1; stride < hadamard_block; stride *= 2) {
      for (int64_t i = 0; i < hadamard_block; ++i) {
        if ((i & stride) != 0) continue;
        for (int64_t n = 0; n < columns; ++n) {
          const float a = block[i][n], b = block[i + stride][n];
          block[i][n] = a + b;
          block[i + stride][n] = a - b;
        }
      }
    }
    for (int64_t i = 0; i < hadamard_block; ++i)
      for (int64_t n = 0; n < columns; ++n) base[i * out + n] = block[i][n] * hadamard_factor;
  });
}

std::vector<double> column_rms(const Exl3Source& source, device::Threads& threads) {
  std::vector<double> rms(static_cast<size_t>(source.padded_out()));
  by_strips(source.out_features, strip, threads, [&](int64_t first, int64_t last) {
    for (int64_t n = first; n < last; ++n) {
      const float* row = source.weight + n * source.in_features;
      double sum = 0;
      for (int64_t k = 0; k < source.in_features; ++k) sum += static_cast<double>(row[k]) * row[k];
      rms[static_cast<size_t>(n)] = std::sqrt(sum / static_cast<double>(source.in_features));
    }
  });
  return rms;
}

std::vector<double> row_rms(const std::vector<float>& weights, int64_t in, int64_t out, device::Threads& threads) {
  std::vector<double> rms(static_cast<size_t>(in));
  by_strips(in, strip, threads, [&](int64_t first, int64_t last) {
    for (int64_t k = first; k < last; ++k) {
      const float* row = weights.data() + k * out;
      double sum = 0;
      for (int64_t n = 0; n < out; ++n) sum += static_cast<double>(row[n]) * row[n];
      rms[static_cast<size_t>(k)] = std::sqrt(sum / static_cast<double>(out));
    }
  });
  return rms;
}

// The share of the strongest 2 % of the inputs in all inputs' RMS. Without a moment: 0, no input is stronger.
double skew(const Exl3Finalised& hessian) {
  if (hessian.fallback) return 0;
  std::vector<double> roots(static_cast<size_t>(hessian.features));
  for (size_t i = 0; i < roots.size(); ++i) roots[i] = std::sqrt(hessian.moment[i * (roots.size() + 1)]);
  std::sort(roots.begin(), roots.end(), std::greater<>());
  double strongest = 0, all = 0;
  for (size_t i = 0; i < roots.size(); ++i) {
    if (i < roots.size() / 50) strongest += roots[i];
    all += roots[i];
  }
  return all > 0 ? strongest / all : 0;
}

bool scales_outputs(const Exl3EncodeSettings& settings, const Exl3Finalised& hessian) {
  switch (settings.out_scales) {
    case Exl3OutScales::always: return true;
    case Exl3OutScales::never: return false;
    case Exl3OutScales::automatic: break;
  }
  return skew(hessian) < 0.15;
}

[[noreturn]] void refuse(std::string_view name, std::string_view vector, std::string found, std::string expected) {
  throw Error(ErrorCode::failed_check, fmt::format("given {} of {}", vector, name), std::move(found),
              std::move(expected));
}

// As stored, so that what is regularised is what will be decoded.
std::vector<double> rounded(std::string_view name, std::string_view vector, const std::vector<float>& values,
                            int64_t size) {
  if (static_cast<int64_t>(values.size()) != size)
    refuse(name, vector, fmt::format("{} values", values.size()), fmt::format("{}", size));
  std::vector<double> out(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    out[i] = half_to_float(float_to_half(values[i]));
    if (!std::isfinite(out[i])) refuse(name, vector, fmt::format("{} at {}", values[i], i), "a value that fp16 holds");
  }
  return out;
}

}  // namespace

Exl3Fit exl3_fit(std::string_view name, const Exl3Source& source, const Exl3Finalised& hessian,
                 const Exl3EncodeSettings& settings, const Exl3GivenVectors& given, device::Threads& threads) {
  const int64_t in = source.padded_in(), out = source.padded_out();
  Exl3Fit fit;
  fit.su_given = !given.suh.empty();
  fit.sv_given = !given.svh.empty();

  const std::vector<double> r = column_rms(source, threads);
  double mean = 0;
  for (int64_t n = 0; n < source.out_features; ++n) mean += r[static_cast<size_t>(n)];
  mean /= static_cast<double>(source.out_features);
  fit.all_zero = !(mean > 1e-30);
  if (fit.sv_given) {
    fit.sv = rounded(name, "svh", given.svh, out);
  } else {
    const std::vector<float> signs = exl3_signs(settings.sign_seed, Exl3Side::output, out);
    const bool apply = scales_outputs(settings, hessian);
    fit.sv.resize(static_cast<size_t>(out));
    for (size_t n = 0; n < fit.sv.size(); ++n) {
      const double relative = fit.all_zero ? 0 : r[n] / mean;
      if (relative >= 1e-30) fit.sv[n] = apply ? signs[n] * relative : static_cast<double>(signs[n]);
    }
  }
  fit.regularised = rotate_outputs<double>(source, fit.sv, threads);

  if (fit.su_given) {
    fit.su = rounded(name, "suh", given.suh, in);
    const auto dead = std::find(fit.su.begin(), fit.su.begin() + source.in_features, 0.0);
    if (dead != fit.su.begin() + source.in_features)
      refuse(name, "suh", fmt::format("0 at {}", dead - fit.su.begin()), "another number: an input is never dead");
  } else {
    fit.su = row_rms(fit.regularised, in, out, threads);
    // An input without weights (or a padded one) gets the others' mean, where the spec has 0.1: whatever the trellis
    // leaves there is multiplied by this, and weights may be much smaller.
    double sum = 0;
    int64_t live = 0;
    for (const double c : fit.su) {
      if (c < 1e-30) continue;
      sum += c;
      ++live;
    }
    const double typical = live > 0 ? sum / static_cast<double>(live) : 0.1;
    for (size_t k = 0; k < fit.su.size(); ++k)
      fit.su[k] = hessian.signs[k] * (fit.su[k] < 1e-30 ? typical : fit.su[k]) / -exl3_target_rms;
  }
  rotate_inputs<double>(fit.regularised, in, out, fit.su, threads);
  if (!fit.su_given || fit.sv_given || fit.all_zero) return fit;

  // The shared suh knows nothing of this matrix's size: svh takes it.
  double energy = 0;
  for (const double rms : row_rms(fit.regularised, in, out, threads)) energy += rms * rms;
  const double factor = std::sqrt(energy / static_cast<double>(in)) / exl3_target_rms;
  if (!(factor > 0)) return fit;
  for (double& s : fit.sv) s *= factor;
  const auto divisor = static_cast<float>(factor);
  for (float& w : fit.regularised) w /= divisor;
  return fit;
}

namespace {

// Largest and smallest magnitude but 0.
struct Range {
  double most = 0, least = HUGE_VAL;

  explicit Range(const std::vector<double>& values) {
    for (const double v : values) {
      if (v == 0) continue;
      most = std::max(most, std::abs(v));
      least = std::min(least, std::abs(v));
    }
  }
  bool fits() const { return most < 0x1p15 && least >= 0x1p-14; }
  // The exponent in the middle, doubled.
  int middle() const { return most == 0 ? 0 : std::ilogb(most) + std::ilogb(least); }
};

std::vector<uint16_t> to_half(std::string_view name, const char* vector, const std::vector<double>& values) {
  std::vector<uint16_t> halves(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    halves[i] = float_to_half(static_cast<float>(values[i]));
    if (!std::isfinite(half_to_float(halves[i])))
      throw Error(ErrorCode::bad_file, fmt::format("{} of {}", vector, name), fmt::format("{} at {}", values[i], i),
                  "a value that fp16 holds: the weights are too large");
  }
  return halves;
}

}  // namespace

Exl3Vectors exl3_store_vectors(std::string_view name, const Exl3Fit& fit, double scale) {
  std::vector<double> su = fit.su, sv = fit.sv;
  if (!fit.su_given) {
    for (double& s : su) s /= scale;
  } else if (!fit.sv_given) {
    for (double& s : sv) s /= scale;
  }
  if (!fit.su_given && !fit.sv_given) {
    const Range inputs(su), outputs(sv);
    if (outputs.most > 0 && (!inputs.fits() || !outputs.fits())) {
      const int move = (outputs.middle() - inputs.middle()) / 4;  // both middles are doubled, and both sides move
      for (double& s : su) s = std::ldexp(s, move);
      for (double& s : sv) s = std::ldexp(s, -move);
    }
  }
  return {to_half(name, "suh", su), to_half(name, "svh", sv)};
}

std::vector<float> exl3_regularise(const Exl3Source& source, std::span<const float> suh, std::span<const float> svh,
                                   device::Threads& threads) {
  std::vector<float> weights = rotate_outputs<float>(source, svh, threads);
  rotate_inputs<float>(weights, source.padded_in(), source.padded_out(), suh, threads);
  return weights;
}

}  // namespace tandem::quant
