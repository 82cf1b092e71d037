// Damping, rotation, Cholesky and the block LDL of spec/quantization.md 2.3, all in fp64 and in fixed orders.
#include "quant/exl3_finalise.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "base/error.h"
#include "base/keyed_noise.h"
#include "quant/exl3_tile.h"
#include "quant/exl3_viterbi_levels.h"
#include "quant/hadamard.h"

namespace tandem::quant {
namespace {

constexpr int64_t panel = 64;            // rows of U that are factored at a time
constexpr int64_t finalise_chunk = 128;  // columns of one task
constexpr int64_t depth =
    32;  // rows subtracted at a time: with a finalise_chunk's columns they fit into the first cache

std::string where_of(std::string_view name) { return fmt::format("second moment of the inputs of {}", name); }

[[noreturn]] void refuse_moment(std::string_view name, int retries) {
  throw Error(ErrorCode::failed_check, where_of(name),
              fmt::format("no Cholesky factor after {} additions to its diagonal", retries),
              "a positive semidefinite matrix");
}

void check(std::string_view name, const Exl3Moments& moments) {
  const int64_t n = moments.features;
  if (n <= 0 || static_cast<int64_t>(moments.sums.size()) != n * n)
    throw Error(ErrorCode::failed_check, where_of(name), fmt::format("{} sums", moments.sums.size()),
                fmt::format("{} × {}", n, n));
  if (!std::isfinite(moments.weight) || moments.weight < 0)
    throw Error(ErrorCode::failed_check, where_of(name), fmt::format("a weight of {}", moments.weight), "0 or more");
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j <= i; ++j) {
      const double sum = moments.sums[static_cast<size_t>(i * n + j)];
      if (!std::isfinite(sum) || (i == j && sum < 0))
        throw Error(ErrorCode::failed_check, where_of(name), fmt::format("{} at [{}, {}]", sum, i, j),
                    i == j ? "a finite sum of squares" : "a finite sum");
    }
  }
}

void transpose(std::vector<double>& h, int64_t n) {
  constexpr int64_t side = 16;  // n is a multiple of 128
  for (int64_t top = 0; top < n; top += side)
    for (int64_t left = 0; left <= top; left += side)
      for (int64_t i = top; i < top + side; ++i)
        for (int64_t j = left; j < std::min(left + side, i); ++j)
          std::swap(h[static_cast<size_t>(i * n + j)], h[static_cast<size_t>(j * n + i)]);
}

// Rows of U within one block of 16 times the inverse of its diagonal block: U_mm⁻¹·U, bottom row first.
void normalise_block(double* u, int64_t n, int64_t first, float* feedback) {
  for (int64_t r = first + exl3_tile - 1; r >= first; --r) {
    double* const row = u + r * n;
    const int64_t after = first + exl3_tile;
    for (int64_t s = r + 1; s < after; ++s) {
      const double factor = row[s];
      for (int64_t j = after; j < n; ++j) row[j] -= factor * u[s * n + j];
    }
    for (int64_t j = after; j < n; ++j) row[j] /= row[r];
    for (int64_t j = after; j < n; ++j) feedback[r * n + j] = static_cast<float>(row[j]);
  }
}

}  // namespace

std::vector<float> exl3_signs(uint64_t seed, Exl3Side side, int64_t count) {
  std::vector<float> signs(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i)
    signs[static_cast<size_t>(i)] = keyed_uniform(seed, i, side == Exl3Side::input ? 0 : 1) < 0.5 ? -1.0f : 1.0f;
  return signs;
}

bool exl3_cholesky(double* a, int64_t n, device::Threads& threads) {
  const Exl3Kernels& kernels = exl3_kernels();
  for (int64_t first = 0; first < n; first += panel) {
    const int64_t rows = std::min(panel, n - first), end = first + rows;
    const auto row = [a, n](int64_t i) { return a + i * n; };
    // What the rows above contribute, then the panel's own triangle, then the rest of its rows.
    const int64_t chunks = (n - first + finalise_chunk - 1) / finalise_chunk;
    threads.run(chunks, [&](int64_t c) {
      const int64_t left = first + c * finalise_chunk, right = std::min(n, left + finalise_chunk);
      for (int64_t top = 0; top < first; top += depth) {
        for (int64_t i = first; i < end; ++i) {
          const int64_t from = std::max(left, i);
          if (from < right)
            kernels.subtract_rows(row(top) + i, n, row(top) + from, n, std::min(depth, first - top), row(i) + from,
                                  right - from);
        }
      }
    });
    for (int64_t i = first; i < end; ++i) {
      kernels.subtract_rows(row(first) + i, n, row(first) + i, n, i - first, row(i) + i, end - i);
      const double pivot = row(i)[i];
      if (!(pivot > 0) || !std::isfinite(pivot)) return false;
      const double root = std::sqrt(pivot);
      row(i)[i] = root;
      for (int64_t j = i + 1; j < end; ++j) row(i)[j] /= root;
    }
    const int64_t rest = (n - end + finalise_chunk - 1) / finalise_chunk;
    threads.run(rest, [&](int64_t c) {
      const int64_t left = end + c * finalise_chunk, right = std::min(n, left + finalise_chunk);
      for (int64_t i = first; i < end; ++i) {
        kernels.subtract_rows(row(first) + i, n, row(first) + left, n, i - first, row(i) + left, right - left);
        for (int64_t j = left; j < right; ++j) row(i)[j] /= row(i)[i];
      }
    });
  }
  return true;
}

Exl3Finalised exl3_finalise(std::string_view name, const Exl3Moments& moments, uint64_t sign_seed,
                            device::Threads& threads) {
  check(name, moments);
  const int64_t features = moments.features, n = exl3_padded(features);
  Exl3Finalised out;
  out.features = features;
  out.padded = n;
  out.signs = exl3_signs(sign_seed, Exl3Side::input, n);
  if (moments.weight == 0) return out;

  double mean = 0;
  for (int64_t i = 0; i < features; ++i) mean += moments.sums[static_cast<size_t>(i * features + i)] / moments.weight;
  mean /= static_cast<double>(features);
  if (mean < 1e-20) return out;
  if (!std::isfinite(mean))
    throw Error(ErrorCode::failed_check, where_of(name), "a mean square beyond fp64", "a finite one");
  std::vector<double>& h = out.moment;
  h.resize(moments.sums.size());
  for (int64_t i = 0; i < features; ++i)
    for (int64_t j = 0; j <= i; ++j)
      h[static_cast<size_t>(i * features + j)] = h[static_cast<size_t>(j * features + i)] =
          moments.sums[static_cast<size_t>(i * features + j)] / moments.weight;
  out.padding = exl3_damping * mean;
  for (int64_t i = 0; i < features; ++i) h[static_cast<size_t>(i * features + i)] += out.padding;

  // Scaling and rotation keep a positive matrix positive, so it is damped here, once for all matrices.
  for (std::vector<double> factor;; ++out.retries) {
    factor = h;
    if (exl3_cholesky(factor.data(), features, threads)) break;
    if (out.retries == exl3_damping_retries) refuse_moment(name, out.retries);
    double trace = 0;
    for (int64_t i = 0; i < features; ++i) trace += h[static_cast<size_t>(i * features + i)];
    const double more = 2 * exl3_damping * trace / static_cast<double>(features);
    for (int64_t i = 0; i < features; ++i) h[static_cast<size_t>(i * features + i)] += more;
    out.padding += more;
  }
  out.fallback = false;
  return out;
}

Exl3Factor exl3_factor(std::string_view name, const Exl3Finalised& finalised, std::span<const float> suh,
                       device::Threads& threads) {
  Exl3Factor out;
  if (finalised.fallback) return out;
  const int64_t features = finalised.features, n = finalised.padded;
  double mean = 0;
  for (int64_t i = 0; i < features; ++i) mean += std::abs(suh[static_cast<size_t>(i)]);
  mean /= static_cast<double>(features);
  std::vector<double> scale(static_cast<size_t>(n));
  for (size_t i = 0; i < scale.size(); ++i) {
    // An input that suh all but drops stays in the matrix, which must remain invertible.
    const double magnitude = mean > 0 ? std::max(std::abs(suh[i]) / mean, 1e-3) : 1;
    scale[i] = suh[i] < 0 ? -magnitude : magnitude;
  }
  std::vector<double> h(static_cast<size_t>(n * n));
  threads.run(n, [&](int64_t i) {
    double* const row = h.data() + i * n;
    if (i >= features) {
      row[i] = finalised.padding * scale[static_cast<size_t>(i)] * scale[static_cast<size_t>(i)];
    } else {
      const double* const from = finalised.moment.data() + i * features;
      for (int64_t j = 0; j < features; ++j)
        row[j] = from[j] * (scale[static_cast<size_t>(i)] * scale[static_cast<size_t>(j)]);
    }
    hadamard128(row, n / hadamard_block);
  });
  transpose(h, n);
  threads.run(n, [&](int64_t i) { hadamard128(h.data() + i * n, n / hadamard_block); });

  out.hessian.resize(h.size());
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = i; j < n; ++j)
      out.hessian[static_cast<size_t>(i * n + j)] = out.hessian[static_cast<size_t>(j * n + i)] =
          static_cast<float>(h[static_cast<size_t>(i * n + j)]);
  if (!exl3_cholesky(h.data(), n, threads)) refuse_moment(name, finalised.retries);
  out.feedback.resize(h.size());
  threads.run(n / exl3_tile,
              [&](int64_t block) { normalise_block(h.data(), n, block * exl3_tile, out.feedback.data()); });
  return out;
}

Exl3Hessian::Exl3Hessian(std::string_view name, const Exl3Moments& moments, uint64_t sign_seed,
                         device::Threads& threads)
    : finalised_(std::make_unique<Exl3Finalised>(exl3_finalise(name, moments, sign_seed, threads))) {}

Exl3Hessian::Exl3Hessian(std::string_view name, int64_t features, uint64_t sign_seed)
    : finalised_(std::make_unique<Exl3Finalised>()) {
  if (features <= 0)
    throw Error(ErrorCode::internal, std::string(name), fmt::format("{} input features", features), "1 or more");
  finalised_->features = features;
  finalised_->padded = exl3_padded(features);
  finalised_->signs = exl3_signs(sign_seed, Exl3Side::input, finalised_->padded);
}

Exl3Hessian::~Exl3Hessian() = default;
Exl3Hessian::Exl3Hessian(Exl3Hessian&&) noexcept = default;
Exl3Hessian& Exl3Hessian::operator=(Exl3Hessian&&) noexcept = default;

bool Exl3Hessian::is_fallback() const { return finalised_->fallback; }
int Exl3Hessian::damping_retries() const { return finalised_->retries; }

}  // namespace tandem::quant
