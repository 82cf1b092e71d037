// A file mapped read-only into memory: weights are used where the kernel keeps them, without a copy of our own.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string_view>

namespace tandem {

class MappedFile {
 public:
  // Maps a regular file. Throws Error(bad_file) if it does not exist or is no regular file, Error(resource) if it may
  // not be read or cannot be mapped. An empty file gives empty bytes.
  static MappedFile open(const std::filesystem::path& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  // Valid as long as this object. The file must not shrink meanwhile: reading a page that is gone ends the process.
  std::span<const std::byte> bytes() const { return {data_, size_}; }
  std::string_view text() const { return {reinterpret_cast<const char*>(data_), size_}; }

 private:
  MappedFile(const std::byte* data, size_t size) : data_(data), size_(size) {}
  void unmap() noexcept;

  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace tandem
