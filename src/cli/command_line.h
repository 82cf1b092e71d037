// The program's command line: `tandem COMMAND [MODEL] [options]`.
#pragma once

namespace tandem::cli {

// Runs the command and returns the exit status of decisions.md: 0 ok, 1 failed check, 2 usage, 3 bad file, 4 does not
// fit, 5 port or device, 70 engine broken. On failure one line "tandem: error: …" goes to standard error. Throws
// nothing.
int run_command_line(int argc, const char* const* argv);

}  // namespace tandem::cli
