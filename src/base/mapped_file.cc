// mmap behind an owning type, with errors that say which file and why.
#include "base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "base/error.h"

namespace tandem {
namespace {

struct Descriptor {
  int value = -1;
  ~Descriptor() {
    if (value >= 0) ::close(value);
  }
};

std::string error_text(int number) { return std::generic_category().message(number); }

[[noreturn]] void cannot_open(const std::string& where, int number) {
  if (number == ENOENT || number == ENOTDIR) throw Error(ErrorCode::bad_file, where, "does not exist", "a file");
  throw Error(ErrorCode::resource, where, "cannot be opened: " + error_text(number), "a readable file");
}

}  // namespace

MappedFile MappedFile::open(const std::filesystem::path& path) {
  const std::string where = path.string();
  // O_NONBLOCK: opening a pipe must not wait for a writer before we can refuse it.
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.value < 0) cannot_open(where, errno);
  struct stat info {};
  if (::fstat(file.value, &info) != 0) throw Error(ErrorCode::resource, where, error_text(errno), "a readable file");
  if (S_ISDIR(info.st_mode)) throw Error(ErrorCode::bad_file, where, "is a folder", "a file");
  if (!S_ISREG(info.st_mode)) throw Error(ErrorCode::bad_file, where, "is not a regular file", "a file");
  const auto size = static_cast<size_t>(info.st_size);
  if (size == 0) return MappedFile(nullptr, 0);
  void* const data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.value, 0);
  if (data == MAP_FAILED) throw Error(ErrorCode::resource, where, "cannot be mapped: " + error_text(errno));
  return MappedFile(static_cast<const std::byte*>(data), size);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  if (this != &other) {
    unmap();
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
  }
  return *this;
}

MappedFile::~MappedFile() { unmap(); }

void MappedFile::unmap() noexcept {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
  data_ = nullptr;
}

}  // namespace tandem
