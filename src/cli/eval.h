// `tandem eval …`: checks of a model that are not serving.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "cli/loaded_model.h"

namespace tandem::cli {

struct SkillsCommandOptions {
  LoadOptions load;
  std::filesystem::path skills;    // --skills; empty: skills.json of the model folder
  std::optional<int64_t> minimum;  // --min: exact answers needed; absent: all but one
  bool json = false;
};

// Returns 0, or 1 if fewer answers than wanted are exact. Throws Error.
int run_eval_skills(const SkillsCommandOptions& options);

}  // namespace tandem::cli
