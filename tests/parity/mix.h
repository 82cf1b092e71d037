// Random request mixes: which requests arrive when, what they share with earlier ones, and how small the machine is on
// which they meet. Everything follows from the seed.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/scheduler_options.h"
#include "mix_drafting.h"

namespace tandem::parity {

// How the prompt of a request is made. `source`: an earlier request of the mix, −1 for none.
struct PromptRecipe {
  enum class Kind {
    fresh,   // new tokens, perhaps behind the mix's common beginning
    repeat,  // the source's prompt
    extend,  // the source's prompt and reply, and new tokens: the next turn
    fork,    // a beginning of the source's prompt and reply, and new tokens
    edit,    // the source's prompt with one token changed
  };
  Kind kind = Kind::fresh;
  int32_t source = -1;
  int64_t cut = 0;              // fork: tokens kept, edit: the position; taken modulo what is there
  std::vector<int32_t> tokens;  // the new ones; edit: the first
};

struct MixRequest {
  engine::Request request;  // without its prompt
  PromptRecipe prompt;
  int64_t arrival = 0;               // step before which it arrives
  int64_t cancel_at = -1;            // step before which its client goes; −1: it stays
  int64_t cancel_after_tokens = -1;  // or after this many tokens
  int32_t ends_modulus = 0;          // above 0: the reply ends after a token that it divides, as after a stop string
  int32_t rule_modulus = 0;          // above 0: a rule forbids tokens by this and the token before them
  bool rule_looks_ahead = false;     // the rule says how many drafts it allows
};

// How the model and the engine are cut.
struct MixMachine {
  forward::Capacity capacity;
  engine::SchedulerOptions options;  // vocab_size and so on come from the model
  int64_t step_ms_a_row = 1;         // of the virtual clock
  bool through_bytes = false;        // steps go through write_step and read_step
  int64_t longest_stream = 0;        // rows; 0: what the pool has
};

struct Mix {
  uint64_t seed = 0;
  std::string model;  // tinyA, tinyB or nano
  MixMachine machine;
  MixDrafting drafting;
  std::vector<MixRequest> requests;
};

// What a mix needs to know of the model.
struct ModelFacts {
  int32_t vocab_size = 0, index_kpool = 0;
  bool has_mtp = false;
  int64_t cached_layers = 0;
  std::vector<int32_t> text = {};  // that the model knows how to go on with; may be empty
};

// Mix `seed`: three of twenty run on nano, two on tinyB, the others on tinyA.
std::string model_of_mix(uint64_t seed);
// What all mixes of a run have in common.
// Who chooses tokens when all requests run together; alone it is always the scheduler, from whole logits.
enum class MixSampling {
  scheduler,
  step,     // the model does where it can (forward::Step::samples)
  on_host,  // the same by engine::SampleOnHost, for models on a CPU
};
struct MixSetting {
  std::optional<forward::CacheType> cache_type;  // none: each draws its own
  forward::Compute compute = forward::Compute::f32;
  MixSampling sampling = MixSampling::scheduler;
};
Mix make_mix(uint64_t seed, const std::string& model, const ModelFacts& facts, const MixSetting& setting = {});

// The request's rule, afresh; null: it has none.
std::shared_ptr<engine::TokenRule> make_rule(const MixRequest& request, int32_t vocab_size);

// The prompt of request `i` when the prompts and solo replies of the earlier ones are known.
std::vector<int32_t> resolve_prompt(const Mix& mix, size_t i, const std::vector<std::vector<int32_t>>& prompts,
                                    const std::vector<std::vector<int32_t>>& replies);

}  // namespace tandem::parity
