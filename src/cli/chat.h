// `tandem chat`: a conversation in the terminal.
#pragma once

#include <string>

#include "cli/loaded_model.h"
#include "cli/sampling_options.h"

namespace tandem::cli {

struct ChatOptions {
  LoadOptions load;
  SamplingOptions sampling;
  std::string system;           // --system: system message
  std::string effort = "high";  // --effort low|high|max: how much the model thinks
  bool show_reasoning = false;  // --show-reasoning: also when the output is no terminal
};

// Reads lines and prints replies until the end of input or /quit. Ctrl-C ends a reply, not the program. Returns 0. On a
// terminal an error of one turn is printed and the conversation goes on; otherwise it is thrown.
int run_chat(const ChatOptions& options);

}  // namespace tandem::cli
