// `tandem eval …`: checks of a model that are not serving.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "cli/loaded_model.h"

namespace tandem::cli {

struct SkillsCommandOptions {
  LoadOptions load;
  std::filesystem::path skills;    // --skills; empty: skills.json of the model folder
  std::optional<int64_t> minimum;  // --min: exact answers needed; absent: all but one
  bool json = false;
};

// Returns 0. Throws Error: failed_check, after the report, if fewer answers than wanted are exact.
int run_eval_skills(const SkillsCommandOptions& options);

struct ParityCommandOptions {
  std::filesystem::path golden;  // --golden: folder with one folder of vectors a model
  std::filesystem::path
      models;        // --models: where models without weights of their own lie; empty: beside the bundled model
  std::string only;  // --only: "model" or "model/case"; empty: all
  int threads = 0;
  bool json = false;
};

// Returns 0. Throws Error: failed_check, after the report, if something is outside its tolerance.
int run_eval_parity(const ParityCommandOptions& options);

}  // namespace tandem::cli
