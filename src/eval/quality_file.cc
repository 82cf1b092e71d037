// Plain system calls, so that every failure is seen.
#include "eval/quality_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace tandem::eval {

NewFile::NewFile(const std::filesystem::path& path)
    : path_(path),
      written_(fmt::format("{}.{}.new", path.string(), ::getpid())),
      file_(::open(written_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)) {
  if (file_ < 0) fail();
}

NewFile::~NewFile() {
  if (file_ >= 0) ::close(file_);
  if (file_ >= 0 && !is_in_place_) ::unlink(written_.c_str());
}

void NewFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(file_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) fail();
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
}

void NewFile::put_in_place() {
  if (::fsync(file_) != 0 || ::rename(written_.c_str(), path_.c_str()) != 0) fail();
  is_in_place_ = true;
}

void NewFile::fail() const {
  throw Error(ErrorCode::resource, path_.string(), std::strerror(errno), "a file to write");
}

}  // namespace tandem::eval
