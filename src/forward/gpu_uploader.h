// Lays weights out in device memory and copies them there: first without memory, to count, then for real.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "device/gpu.h"
#include "ops/linear/linear_args.h"
#include "ops/linear/matrix.h"

namespace tandem::forward {

class GpuUploader {
 public:
  GpuUploader() = default;  // counts
  GpuUploader(device::Gpu& gpu, std::byte* memory);

  int64_t used() const { return used_; }
  // bf16, dense. `name` for errors. Throws Error(bad_file) for a format that is neither BF16 nor F32 or for columns
  // that are no multiple of 8.
  ops::CudaMatrix matrix(const ops::Matrix& m, const std::string& name);
  const float* floats(std::span<const float> values);
  const device::bf16* values(std::span<const device::bf16> values);
  template <typename T>
  const T* structs(const std::vector<T>& list) {
    return reinterpret_cast<const T*>(bytes(list.data(), static_cast<int64_t>(list.size() * sizeof(T))));
  }

 private:
  std::byte* take(int64_t bytes);
  const std::byte* bytes(const void* from, int64_t size);
  void copy(std::byte* to, const void* from, int64_t size);

  device::Gpu* gpu_ = nullptr;
  std::byte* memory_ = nullptr;
  int64_t used_ = 0;
  device::PinnedMemory staging_;
};

// Row-major values of a BF16 or F32 matrix, F32 rounded to nearest even.
std::vector<device::bf16> bf16_values(const ops::Matrix& m, const std::string& name);

}  // namespace tandem::forward
