// Random request mixes: which requests arrive when, what they share with earlier ones, and how small the machine is on
// which they meet. Everything follows from the seed.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/scheduler_options.h"

namespace tandem::parity {

// Numbers from a seed; the same on every standard library.
class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  int64_t below(int64_t n) { return static_cast<int64_t>(engine_() % static_cast<uint64_t>(n)); }
  int64_t between(int64_t first, int64_t last) { return first + below(last - first + 1); }
  bool chance(int percent) { return below(100) < percent; }
  uint64_t bits() { return engine_(); }
  template <typename T>
  const T& of(const std::vector<T>& values) {
    return values[static_cast<size_t>(below(std::ssize(values)))];
  }

 private:
  std::mt19937_64 engine_;
};

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
};

// How the model and the engine are cut.
struct MixMachine {
  forward::Capacity capacity;
  engine::SchedulerOptions options;  // vocab_size and so on come from the model
  int64_t step_ms_a_row = 1;         // of the virtual clock
  bool through_bytes = false;        // steps go through write_step and read_step
};

struct Mix {
  uint64_t seed = 0;
  std::string model;  // tinyA, tinyB or nano
  MixMachine machine;
  std::vector<MixRequest> requests;
};

// What a mix needs to know of the model.
struct ModelFacts {
  int32_t vocab_size = 0, index_kpool = 0;
};

// Mix `seed`: every tenth runs on nano, every tenth on tinyB, the others on tinyA.
std::string model_of_mix(uint64_t seed);
Mix make_mix(uint64_t seed, const std::string& model, const ModelFacts& facts);

// The prompt of request `i` when the prompts and solo replies of the earlier ones are known.
std::vector<int32_t> resolve_prompt(const Mix& mix, size_t i, const std::vector<std::vector<int32_t>>& prompts,
                                    const std::vector<std::vector<int32_t>>& replies);

}  // namespace tandem::parity
