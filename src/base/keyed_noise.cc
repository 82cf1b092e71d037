// The generator of spec/speculation.md 3.5, all of it in 64-bit arithmetic that wraps around.
#include "base/keyed_noise.h"

#include <algorithm>

#include "base/portable_math.h"

namespace tandem {
namespace {

uint64_t mix(uint64_t z) {
  z ^= z >> 30;
  z *= 0xBF58476D1CE4E5B9ULL;
  z ^= z >> 27;
  z *= 0x94D049BB133111EBULL;
  return z ^ (z >> 31);
}

}  // namespace

double keyed_uniform(uint64_t seed, int64_t position, int32_t token) {
  const uint64_t a = mix(seed + 0x9E3779B97F4A7C15ULL);
  const uint64_t b = mix(a ^ (static_cast<uint64_t>(position) * 0xD1B54A32D192ED03ULL));
  const uint64_t c = mix(b ^ static_cast<uint64_t>(token));
  return std::min(static_cast<double>(c >> 11) * 0x1p-53 + 0x1p-54, 1.0 - 0x1p-53);
}

double keyed_gumbel(uint64_t seed, int64_t position, int32_t token) {
  return -portable_log(-portable_log(keyed_uniform(seed, position, token)));
}

}  // namespace tandem
