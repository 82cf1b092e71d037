// Ownership of device and pinned memory.
#include "device/gpu.h"

#include <utility>

namespace tandem::device {

GpuMemory::~GpuMemory() {
  if (gpu_ != nullptr && data_ != nullptr) gpu_->free_device(data_);
}

GpuMemory::GpuMemory(GpuMemory&& other) noexcept
    : gpu_(std::exchange(other.gpu_, nullptr)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

GpuMemory& GpuMemory::operator=(GpuMemory&& other) noexcept {
  std::swap(gpu_, other.gpu_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

PinnedMemory::~PinnedMemory() {
  if (gpu_ != nullptr && data_ != nullptr) gpu_->free_pinned(data_);
}

PinnedMemory::PinnedMemory(PinnedMemory&& other) noexcept
    : gpu_(std::exchange(other.gpu_, nullptr)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

PinnedMemory& PinnedMemory::operator=(PinnedMemory&& other) noexcept {
  std::swap(gpu_, other.gpu_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

}  // namespace tandem::device
