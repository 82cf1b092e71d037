// The EXL3 encoder: one linear layer and the second moment of its inputs to a trellis and its two scale vectors
// (spec/quantization.md 2). Everything here is a function of its arguments: the same bytes on any number of threads,
// with scalar and SIMD code, at any optimisation level.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "device/threads.h"
#include "quant/exl3_codebook.h"
#include "quant/exl3_matrix.h"

namespace tandem::quant {

// Sums over calibration rows x of weight·x·xᵀ at the input of a layer (2.2; 3.3 with weights), the model's own size.
struct Exl3Moments {
  int64_t features = 0;
  std::vector<double> sums;  // [features, features], row-major; the lower triangle is read
  double weight = 0;         // the sum of the rows' weights: their number where each has weight 1
  int64_t rows = 0, dropped_rows = 0;
};

struct Exl3Finalised;  // exl3_finalise.h

// An input side that layers share: damped (2.3); each matrix rotates and factors it with its own suh, as 3.3 does.
// Immutable, can be used from any thread.
class Exl3Hessian {
 public:
  // `sign_seed` alone decides the random signs of the inputs (of suh where it is not given). The features are padded to
  // a multiple of 128: padded inputs are zeros, so what the trellis says there does not matter (1.2). `threads` only
  // speeds it up. Throws Error(failed_check) naming `name` for a moment that is not finite, or that no damping makes
  // positive.
  Exl3Hessian(std::string_view name, const Exl3Moments& moments, uint64_t sign_seed, device::Threads& threads);
  // Without calibration: layers of this size are encoded without error feedback.
  Exl3Hessian(std::string_view name, int64_t features, uint64_t sign_seed);
  ~Exl3Hessian();
  Exl3Hessian(Exl3Hessian&&) noexcept;
  Exl3Hessian& operator=(Exl3Hessian&&) noexcept;

  // No row reached the layer, or all that did were zero: no feedback, errors are plain squares (2.3 "fallback").
  bool is_fallback() const;
  int damping_retries() const;  // 0 unless the factorisation had to be repeated with more damping
  const Exl3Finalised& finalised() const { return *finalised_; }

 private:
  std::unique_ptr<Exl3Finalised> finalised_;
};

enum class Exl3OutScales { always, never, automatic };  // 2.4
enum class Exl3ScaleSearch { full, small, none };       // 2.5; small: fewer tiles; none: the table of 2.9

struct Exl3EncodeSettings {
  int bits = 4;  // 1–8
  Exl3Codebook codebook = Exl3Codebook::mul1;
  Exl3OutScales out_scales = Exl3OutScales::always;
  Exl3ScaleSearch scale_search = Exl3ScaleSearch::full;
  uint64_t sign_seed = 0;  // of the output signs
};

struct Exl3Encoded {
  int bits = 0;
  int64_t in_features = 0, out_features = 0;  // padded to multiples of 128
  std::vector<std::byte> trellis;             // [in/16, out/16, 16·bits] int16
  std::vector<uint16_t> suh, svh;             // fp16 [in], [out]
  double scale = 0;                           // g
  double proxy_error = 0;  // 2.8, with the Hessian of the stored suh; plain relative squares where it
                           // is a fallback
  double relative_mse = 0;  // Σ(Ŵ − W)² / ΣW² of the unpadded matrix in its own domain, decoded from what is stored
};

// What was encoded as a reader would give it: a view.
Exl3Matrix stored_matrix(const Exl3Encoded& encoded, Exl3Codebook codebook);

// `weight`: fp32 [out_features, in_features], Hugging Face's orientation, finite. in_features is the Hessian's.
// `threads` share the work. Throws Error(bad_file) naming `name` and the element for a value that is not finite.
Exl3Encoded exl3_encode(std::string_view name, const float* weight, int64_t out_features, int64_t in_features,
                        const Exl3Hessian& hessian, const Exl3EncodeSettings& settings, device::Threads& threads);

// Vectors that several matrices share (TR3's layout, 3.2): given, not searched; any signs. Throws Error(failed_check)
// for another size, a value that fp16 does not hold, or a suh of 0.
struct Exl3GivenVectors {
  std::vector<float> suh, svh;  // [in], [out] padded; empty: free. The global scale is folded into the free one
};
Exl3Encoded exl3_encode(std::string_view name, const float* weight, int64_t out_features, int64_t in_features,
                        const Exl3Hessian& hessian, const Exl3EncodeSettings& settings, const Exl3GivenVectors& given,
                        device::Threads& threads);

}  // namespace tandem::quant
