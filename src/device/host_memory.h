// Large blocks of host memory: zeroed and touched when they are made, so that nothing grows and nothing can fail later.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace tandem::device {

class HostMemory {
 public:
  HostMemory() = default;
  // `bytes` of zeros, aligned to a page at least, in huge pages where the system has them (a pool of 1 GiB in small
  // pages takes most of a second to touch). `what` names the block in errors, `remedy` what to ask for
  // instead. Throws Error(does_not_fit).
  HostMemory(int64_t bytes, const std::string& what, const std::string& remedy);
  ~HostMemory();
  HostMemory(HostMemory&& other) noexcept;
  HostMemory& operator=(HostMemory&& other) noexcept;

  std::byte* data() const { return data_; }
  float* floats() const { return reinterpret_cast<float*>(data_); }
  int64_t size() const { return size_; }

 private:
  std::byte* data_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace tandem::device
