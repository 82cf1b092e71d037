// States to fp16. Sums and products before the one rounding are exact in fp32 (spec/quantization.md 1.12), so plain
// fp32 arithmetic gives the bits of the fp16 instructions.
#include "quant/exl3_codebook.h"

#include <vector>

#include "quant/half.h"

namespace tandem::quant {
namespace {

// Each half keeps its sign, two exponent bits and the mantissa; the value is the fp16 sum of the two halves.
uint16_t sum_of_halves(uint32_t x) {
  x = (x & 0x8FFF8FFFu) ^ 0x3B603B60u;
  const float low = half_to_float(static_cast<uint16_t>(x & 0xffffu));
  const float high = half_to_float(static_cast<uint16_t>(x >> 16));
  return float_to_half(low + high);
}

std::vector<float> build(Exl3Codebook codebook) {
  std::vector<float> values(exl3_states);
  for (uint32_t state = 0; state < exl3_states; ++state)
    values[state] = half_to_float(exl3_half(codebook, static_cast<uint16_t>(state)));
  return values;
}

}  // namespace

std::string_view name_of(Exl3Codebook codebook) {
  switch (codebook) {
    case Exl3Codebook::three_inst: return "3inst";
    case Exl3Codebook::mcg: return "mcg";
    case Exl3Codebook::mul1: return "mul1";
  }
  return "";
}

uint16_t exl3_half(Exl3Codebook codebook, uint16_t state) {
  switch (codebook) {
    case Exl3Codebook::three_inst: return sum_of_halves(state * 89226354u + 64248484u);
    case Exl3Codebook::mcg: return sum_of_halves(state * mcg_multiplier);
    case Exl3Codebook::mul1: break;
  }
  const uint32_t x = state * mul1_multiplier;
  const uint32_t sum = (x & 255u) + (x >> 8 & 255u) + (x >> 16 & 255u) + (x >> 24);
  return float_to_half(0.00676727294921875f * static_cast<float>(1024u + sum) - 10.3828125f);
}

const float* exl3_values(Exl3Codebook codebook) {
  // One static each, so that a program that reads one codebook builds one.
  switch (codebook) {
    case Exl3Codebook::three_inst: {
      static const std::vector<float> values = build(Exl3Codebook::three_inst);
      return values.data();
    }
    case Exl3Codebook::mcg: {
      static const std::vector<float> values = build(Exl3Codebook::mcg);
      return values.data();
    }
    case Exl3Codebook::mul1: break;
  }
  static const std::vector<float> values = build(Exl3Codebook::mul1);
  return values.data();
}

}  // namespace tandem::quant
