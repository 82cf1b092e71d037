// The emulator behind gpu_under_test().
#include "device/test_gpu.h"
#include "emulated_gpu.h"

namespace tandem::device {

Gpu& gpu_under_test() {
  static const std::unique_ptr<Gpu> gpu = emulator::make_gpu();
  return *gpu;
}

Gpu& second_gpu_under_test() {
  static const std::unique_ptr<Gpu> gpu = emulator::make_gpu(2);
  return *gpu;
}

bool gpu_is_emulated() { return true; }

}  // namespace tandem::device
