// One weight matrix made ready for the trellis (spec/quantization.md 2.4): scaled by its two vectors and rotated, so
// that its entries look like Gaussian noise of RMS 1.2437.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "device/threads.h"
#include "quant/exl3_encode.h"
#include "quant/exl3_finalise.h"

namespace tandem::quant {

constexpr double exl3_target_rms = 1.24371088;  // the spec's codebook_scale, for every codebook

// fp32 [out, in] of the model's own size.
struct Exl3Source {
  const float* weight = nullptr;
  int64_t out_features = 0, in_features = 0;

  int64_t padded_out() const { return exl3_padded(out_features); }
  int64_t padded_in() const { return exl3_padded(in_features); }
};

struct Exl3Fit {
  std::vector<double> su, sv;  // padded, unrounded, without the global scale
  bool su_given = false, sv_given = false;
  bool all_zero = false;           // nothing to search a scale for
  std::vector<float> regularised;  // [in, out] padded
};

// The vectors of 2.4, or those that are given. Dead outputs get 0. Throws Error(failed_check) naming `name` for given
// vectors of another size, that fp16 does not hold, or that are 0 for an input.
Exl3Fit exl3_fit(std::string_view name, const Exl3Source& source, const Exl3Finalised& hessian,
                 const Exl3EncodeSettings& settings, const Exl3GivenVectors& given, device::Threads& threads);

// The vectors as they are stored: the global scale folded into the free one (suh where both are), and where both are, a
// power of two moved between them if either would leave fp16's normal range (8, trap 35).
struct Exl3Vectors {
  std::vector<uint16_t> suh, svh;  // fp16
};
Exl3Vectors exl3_store_vectors(std::string_view name, const Exl3Fit& fit, double scale);

// H·(diag(1/suh)·W·diag(1/svh))·H, [in, out] padded; rows or columns whose scale is 0 are 0.
std::vector<float> exl3_regularise(const Exl3Source& source, std::span<const float> suh, std::span<const float> svh,
                                   device::Threads& threads);

}  // namespace tandem::quant
