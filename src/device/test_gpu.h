// The GPU that a *_gpu_test.cc runs on: an emulated one in `./dev test` (tests/emulator), a real one in the program
// that
// `./dev gpu-test` builds. One test body for both.
#pragma once

#include <cstring>
#include <span>
#include <vector>

#include "device/gpu.h"

namespace tandem::device {

Gpu& gpu_under_test();
// The same GPU with a queue of its own: of another rank.
Gpu& second_gpu_under_test();
// Real dimensions take the emulator too long, and a real GPU under compute-sanitizer, which says the same here; tests
// that use them ask first.
bool gpu_is_emulated();

// Device memory that holds `values`.
template <typename T>
GpuMemory on_gpu(std::span<const T> values) {
  Gpu& gpu = gpu_under_test();
  GpuMemory memory = gpu.allocate(static_cast<int64_t>(values.size_bytes()), "a test's values");
  gpu.upload(memory.data(), values.data(), static_cast<int64_t>(values.size_bytes()));
  gpu.synchronize();
  return memory;
}
template <typename T>
GpuMemory on_gpu(const std::vector<T>& values) {
  return on_gpu(std::span<const T>(values));
}

// The first `count` values of device memory, when everything queued is done.
template <typename T>
std::vector<T> from_gpu(const void* data, int64_t count) {
  Gpu& gpu = gpu_under_test();
  std::vector<T> values(static_cast<size_t>(count));
  gpu.download(values.data(), data, count * static_cast<int64_t>(sizeof(T)));
  gpu.synchronize();
  return values;
}

}  // namespace tandem::device
