// `tandem generate`: one prompt, one reply.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/loaded_model.h"
#include "cli/sampling_options.h"

namespace tandem::cli {

struct GenerateOptions {
  LoadOptions load;
  // Exactly one of these.
  std::optional<std::string> prompt;      // text; spellings of added tokens become those tokens; "-": standard input
  std::optional<std::string> prompt_ids;  // "1,2,3"
  std::optional<std::string> messages;    // path of one chat body (JSON); "-": standard input
  SamplingOptions sampling;
  std::optional<int64_t> min_tokens;  // --min-tokens
  std::vector<std::string> stop;      // --stop, repeatable
  bool ignore_eos = false;            // --ignore-eos: only --max-tokens and --stop end the reply
  bool add_special_tokens = true;     // text prompts start with [gMASK]<sop>, unless they do already
  bool json = false;
};

// Prints the reply's text as it comes, or with --json one object at the end. Returns 0. Throws Error.
int run_generate(const GenerateOptions& options);

// Ids of a list such as "1, 2,3". Throws Error(usage) naming what is no id.
std::vector<int32_t> parse_ids(const std::string& text);

}  // namespace tandem::cli
