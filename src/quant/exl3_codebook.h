// The three codebooks of EXL3: which fp16 number a 16-bit trellis state stands for (spec/quantization.md 1.7).
#pragma once

#include <cstdint>
#include <string_view>

namespace tandem::quant {

enum class Exl3Codebook { three_inst, mcg, mul1 };

// Values of the marker tensors `.mcg` and `.mul1`; they are also the multipliers.
constexpr uint32_t mcg_multiplier = 0xCBAC1FED;
constexpr uint32_t mul1_multiplier = 0x83DCD12D;

constexpr int64_t exl3_states = 65536;

std::string_view name_of(Exl3Codebook codebook);  // "3inst", "mcg", "mul1", as configuration files spell them

// The fp16 pattern of `state`, computed. Exact: kernels must give the same 65,536 patterns.
uint16_t exl3_half(Exl3Codebook codebook, uint16_t state);

// fp32 values of all 65,536 states, built at the first call (256 KiB a codebook, kept for the life of the program).
const float* exl3_values(Exl3Codebook codebook);

}  // namespace tandem::quant
