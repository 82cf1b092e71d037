// `tandem eval …`: checks of a model that are not serving.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "cli/loaded_model.h"
#include "cli/sampling_options.h"

namespace tandem::cli {

struct SkillsCommandOptions {
  LoadOptions load;
  std::filesystem::path skills;    // --skills; empty: skills.json of the model folder
  std::optional<int64_t> minimum;  // --min: exact answers needed; absent: all but one
  std::filesystem::path compare;   // --compare: a model that gets the same prompts, with an f32 cache; empty: none
  bool json = false;
};

// Returns 0. Throws Error: failed_check, after the report, if fewer answers than wanted are exact.
int run_eval_skills(const SkillsCommandOptions& options);

struct ParityCommandOptions {
  std::filesystem::path golden;  // --golden: folder with one folder of vectors a model
  std::filesystem::path
      models;        // --models: where models without weights of their own lie; empty: beside the bundled model
  std::string only;  // --only: "model" or "model/case"; empty: all
  std::string device = "cpu";    // --device: cpu or cuda
  std::string compute = "auto";  // --compute: auto is f32 on a CPU, bf16 on a GPU
  int threads = 0;
  bool json = false;
};

// Returns 0. Throws Error: failed_check, after the report, if something is outside its tolerance.
int run_eval_parity(const ParityCommandOptions& options);

struct AcceptanceCommandOptions {
  LoadOptions load;
  std::filesystem::path prompts;  // --prompts; empty: acceptance_prompts.jsonl of the model folder
  SamplingOptions sampling;       // without a temperature: greedy
  bool json = false;
};

// Returns 0. Throws Error: failed_check, after the report, if steps yield other numbers of tokens than in the reference
// loop that the file tells of, and the model's logits are no tie there. Compared are greedy runs with the reference's
// drafts: mtp or dflash2, all of them verified.
int run_eval_acceptance(const AcceptanceCommandOptions& options);

}  // namespace tandem::cli
