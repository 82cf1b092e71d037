// Anonymous mappings, touched page by page.
#include "device/host_memory.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace tandem::device {
namespace {

constexpr int64_t huge_page = int64_t{2} << 20, small_page = 4096;

[[noreturn]] void does_not_fit(int64_t bytes, const std::string& what, const std::string& remedy) {
  throw Error(ErrorCode::does_not_fit, what, fmt::format("{} bytes could not be had ({})", bytes, std::strerror(errno)),
              remedy);
}

}  // namespace

HostMemory::HostMemory(int64_t bytes, const std::string& what, const std::string& remedy) {
  if (bytes <= 0) return;
  size_ = (bytes + huge_page - 1) / huge_page * huge_page;
  void* block = mmap(nullptr, static_cast<size_t>(size_), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (block == MAP_FAILED) {
    size_ = 0;
    does_not_fit(bytes, what, remedy);
  }
  data_ = static_cast<std::byte*>(block);
  if (size_ > huge_page) madvise(block, static_cast<size_t>(size_), MADV_HUGEPAGE);  // a wish; small pages work too
  for (int64_t at = 0; at < bytes; at += small_page) *static_cast<volatile std::byte*>(data_ + at) = std::byte{0};
}

HostMemory::~HostMemory() {
  if (data_ != nullptr) munmap(data_, static_cast<size_t>(size_));
}

HostMemory::HostMemory(HostMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

HostMemory& HostMemory::operator=(HostMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

}  // namespace tandem::device
