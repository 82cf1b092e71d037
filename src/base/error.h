// The one error type of the program. Bad input always says where it was found, what was found and what was expected.
#pragma once

#include <exception>
#include <string>

namespace tandem {

enum class ErrorCode {
  failed_check,  // a comparison or check that the user asked for did not hold
  usage,         // wrong command line or wrong field of a request
  bad_file,      // a file is missing, damaged, or says something that cannot be
  does_not_fit,  // memory or context is too small for what was asked
  resource,      // a port, device or permission could not be had
  internal,      // our own mistake, or an engine that can no longer be trusted
};

// Process exit status of a command that ended with this error (decisions.md, "exit codes"): 1 failed check, 2 usage,
// 3 bad file, 4 does not fit, 5 port or device, 70 engine broken.
int exit_status(ErrorCode code);

// Thrown inside a thread; carried as a value across queues. `where` names the field, file or tensor ("config.json:
// text_config.hidden_size"), `found` and `expected` complete the sentence; either may be empty.
class Error : public std::exception {
 public:
  Error(ErrorCode code, std::string where, std::string found, std::string expected = {});

  const char* what() const noexcept override { return message_.c_str(); }
  ErrorCode code() const { return code_; }
  const std::string& where() const { return where_; }
  const std::string& found() const { return found_; }
  const std::string& expected() const { return expected_; }

 private:
  ErrorCode code_;
  std::string where_, found_, expected_;
  std::string message_;  // "<where>: <found>; expected <expected>"
};

}  // namespace tandem
