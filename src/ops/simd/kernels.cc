// Chooses the kernels for the machine that the program runs on.
#include "ops/simd/kernels.h"

#include <atomic>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace tandem::ops {

namespace scalar {
extern const Kernels table;
}
#if defined(__x86_64__)
namespace avx2 {
extern const Kernels table;
}
namespace avx512 {
extern const Kernels table;
}
#elif defined(__aarch64__)
namespace neon {
extern const Kernels table;
}
#endif

namespace {

#if defined(__x86_64__)
// Clang 14 does not know this name in __builtin_cpu_supports. Bit 29 of ECX of leaf 1; the system's part is AVX's.
bool has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
#endif

const Kernels& table_of(SimdLevel level) {
  switch (level) {
#if defined(__x86_64__)
    case SimdLevel::avx2: return avx2::table;
    case SimdLevel::avx512: return avx512::table;
#elif defined(__aarch64__)
    case SimdLevel::neon: return neon::table;
#endif
    default: return scalar::table;
  }
}

const Kernels* best() {
  for (const SimdLevel level : {SimdLevel::avx512, SimdLevel::avx2, SimdLevel::neon}) {
    if (simd_level_available(level)) return &table_of(level);
  }
  return &table_of(SimdLevel::scalar);
}

std::atomic<const Kernels*>& current() {
  static std::atomic<const Kernels*> chosen{best()};
  return chosen;
}

}  // namespace

bool simd_level_available(SimdLevel level) {
  switch (level) {
    case SimdLevel::scalar: return true;
#if defined(__x86_64__)
    case SimdLevel::avx2: return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
    case SimdLevel::avx512:
      return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
             __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
#elif defined(__aarch64__)
    case SimdLevel::neon: return true;
#endif
    default: return false;
  }
}

const Kernels& kernels() { return *current().load(std::memory_order_relaxed); }
void use_simd_level(SimdLevel level) { current() = &table_of(level); }

}  // namespace tandem::ops
