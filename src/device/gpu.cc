// Ownership of device and pinned memory.
#include "device/gpu.h"

#include <utility>

namespace tandem::device {

template <MemoryKind Kind>
OwnedMemory<Kind>::~OwnedMemory() {
  if (gpu_ == nullptr || data_ == nullptr) return;
  if constexpr (Kind == MemoryKind::device) {
    gpu_->free_device(data_);
  } else {
    gpu_->free_pinned(data_);
  }
}

template <MemoryKind Kind>
OwnedMemory<Kind>::OwnedMemory(OwnedMemory&& other) noexcept
    : gpu_(std::exchange(other.gpu_, nullptr)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

template <MemoryKind Kind>
OwnedMemory<Kind>& OwnedMemory<Kind>::operator=(OwnedMemory&& other) noexcept {
  std::swap(gpu_, other.gpu_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

template class OwnedMemory<MemoryKind::device>;
template class OwnedMemory<MemoryKind::pinned>;

}  // namespace tandem::device
