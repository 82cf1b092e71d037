// What the program asks of the system before anything else.
#pragma once

namespace tandem::cli {

// Readers that leave and files that may not grow make a write fail instead of ending the program, and what is opened
// later never gets the number of a standard stream that was closed by whoever started the program.
void prepare_process();

}  // namespace tandem::cli
