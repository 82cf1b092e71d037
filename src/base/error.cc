// How an error reads, and which exit status it becomes.
#include "base/error.h"

#include <utility>

namespace tandem {

int exit_status(ErrorCode code) {
  switch (code) {
    case ErrorCode::failed_check: return 1;
    case ErrorCode::usage: return 2;
    case ErrorCode::bad_file: return 3;
    case ErrorCode::does_not_fit: return 4;
    case ErrorCode::resource: return 5;
    case ErrorCode::internal: return 70;
  }
  return 70;
}

Error::Error(ErrorCode code, std::string where, std::string found, std::string expected)
    : code_(code), where_(std::move(where)), found_(std::move(found)), expected_(std::move(expected)) {
  message_ = where_;
  if (!found_.empty()) message_ += (message_.empty() ? "" : ": ") + found_;
  if (!expected_.empty()) message_ += "; expected " + expected_;
}

}  // namespace tandem
