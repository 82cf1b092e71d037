// The input side of a layer made ready for error feedback (spec/quantization.md 2.3): the second moment of its inputs,
// damped, then rotated as one matrix is and factored.
//
// The spec rotates with the signs of suh alone, which is exact only where all magnitudes of suh are equal. Here H is
// scaled by the stored suh itself, as in 3.3, so that the feedback minimises the error of the layer's outputs; it takes
// a factorisation a matrix (encoder.md: what it costs and gains).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "device/threads.h"
#include "quant/exl3_encode.h"

namespace tandem::quant {

constexpr double exl3_damping = 0.025;  // of the mean of the diagonal
constexpr int exl3_damping_retries = 10;

struct Exl3Finalised {
  int64_t features = 0, padded = 0;  // the model's, and in whole blocks of 128
  bool fallback = true;              // no moment: what follows the signs is empty
  int retries = 0;
  std::vector<float> signs;    // ±1 [padded]
  std::vector<double> moment;  // moment/weight + damping, [features, features], symmetric, positive definite
  double padding = 0;          // what stands on the diagonal for padded inputs: the damping
};

struct Exl3Factor {
  // H = Had·diag(s)·moment·diag(s)·Had, [padded, padded], symmetric; s = suh / mean|suh|. Both empty for a fallback.
  std::vector<float> hessian;
  // Lᵀ of H = L·D·Lᵀ with L unit block lower triangular in blocks of 16 and D block diagonal, [padded, padded]: row r
  // holds what the errors of inputs past r's block add to input r's target. Zero up to the end of r's block.
  std::vector<float> feedback;

  bool fallback() const { return feedback.empty(); }
};

// Throws as Exl3Hessian's constructor does.
Exl3Finalised exl3_finalise(std::string_view name, const Exl3Moments& moments, uint64_t sign_seed,
                            device::Threads& threads);

// `suh` as stored, [padded]. Throws Error(failed_check) naming `name` where rounding leaves no positive matrix.
Exl3Factor exl3_factor(std::string_view name, const Exl3Finalised& finalised, std::span<const float> suh,
                       device::Threads& threads);

// Random signs, a function of (seed, side, index): `side` keeps inputs and outputs of one seed apart.
enum class Exl3Side { input, output };
std::vector<float> exl3_signs(uint64_t seed, Exl3Side side, int64_t count);

constexpr int64_t exl3_padded(int64_t features) { return (features + 127) / 128 * 128; }

// A = UᵀU in place, [n, n] row-major; only the upper triangle is read and written. Every element is one chain of
// subtractions in ascending order: the same bits on any number of threads. False where a pivot is not positive.
bool exl3_cholesky(double* a, int64_t n, device::Threads& threads);

}  // namespace tandem::quant
