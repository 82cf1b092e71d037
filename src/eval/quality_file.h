// A result file that appears whole or not at all: written beside its place and renamed.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>

namespace tandem::eval {

class NewFile {
 public:
  // Makes the file beside `path`, so that a path that cannot be written shows before a long run. All of these throw
  // Error(resource) naming the file.
  explicit NewFile(const std::filesystem::path& path);
  ~NewFile();  // what was not put in place is removed
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  void put_in_place();  // on disk, under its own name

  const std::string& written_path() const { return written_; }  // where its bytes lie before put_in_place()

 private:
  [[noreturn]] void fail() const;

  std::filesystem::path path_;
  std::string written_;
  int file_ = -1;
  bool is_in_place_ = false;
};

}  // namespace tandem::eval
