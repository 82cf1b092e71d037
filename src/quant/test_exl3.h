// An EXL3 layer in memory, filled as the golden matrices of spec/quantization.md 1.13 (b) are. Only tests include this.
#pragma once

#include "quant/exl3_matrix.h"
#include "quant/half.h"
#include "quant/test_golden.h"

namespace tandem::quant {

struct StoredExl3 {
  int64_t in, out;
  int bits;
  std::vector<uint16_t> trellis, suh, svh;

  StoredExl3(int64_t in_features, int64_t out_features, int bits_)
      : in(in_features), out(out_features), bits(bits_), trellis(in * out * bits / 16), suh(in), svh(out) {
    Lcg random(777);
    for (uint16_t& unit : trellis) unit = static_cast<uint16_t>(random.next16());
    for (int64_t i = 0; i < in; ++i) {
      const auto magnitude = static_cast<float>(0.0625 * static_cast<double>(1 + i % 7));
      suh[i] = float_to_half((5 * i + 1) % 3 == 0 ? -magnitude : magnitude);
    }
    for (int64_t n = 0; n < out; ++n) {
      const auto magnitude = static_cast<float>(0.75 + 0.0625 * static_cast<double>(n % 8));
      svh[n] = float_to_half((11 * n + 2) % 5 < 2 ? -magnitude : magnitude);
    }
  }

  template <class T>
  static std::span<const std::byte> bytes(const std::vector<T>& values) {
    return std::as_bytes(std::span<const T>(values));
  }

  Exl3Matrix matrix(Exl3Codebook codebook) const {
    Exl3Matrix m;
    m.trellis = bytes(trellis);
    m.bits = bits;
    m.in_features = in;
    m.out_features = out;
    m.codebook = codebook;
    m.suh = bytes(suh);
    m.svh = bytes(svh);
    return m;
  }
};

}  // namespace tandem::quant
