// What a thread does between two looks at a value that another thread is about to change.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tandem::device {

inline void relax() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace tandem::device
