// What a launch moves and computes at the least, so that metrics, benchmarks and the profiler can print its share of
// the hardware's limit (design.md 4).
#pragma once

#include <cstdint>

namespace tandem::device {

struct KernelCost {
  int64_t bytes = 0;       // of device memory: every input read once, every output written once
  int64_t operations = 0;  // floating-point, a multiply-add counts as two
};

}  // namespace tandem::device
