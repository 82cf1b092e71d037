// How many tokens the steps of a reply yield with a drafter, over a file of prompts (spec/speculation.md 6.1), and
// whether that is what the reference loop yielded, where the file says so.
//
// A step's τ is the number of tokens that it gave the reply: accepted drafts and the model's own one. The stop token is
// a token of its step; a last step is cut there or at the length limit; the token that the prompt gives is outside.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "text/tokenizer.h"

namespace tandem::eval {

// The reference loops of models/nano/acceptance_prompts.jsonl: three drafts of the MTP layer, whole DFlash2 blocks.
enum class ReferenceLoop : uint8_t { none, mtp, dflash2 };

struct AcceptancePrompt {
  std::string name;  // its skill; of a chat body its user or "line N"
  std::vector<int32_t> ids;
  std::vector<int32_t> output;  // greedy reply of the reference, stop token included; empty: not known
  std::vector<int64_t> mtp_taus,
      dflash2_taus;  // of the reference's steps; their sum is the output less its first token
};

// JSONL: each line a chat body, or an object {prompt_ids, output_ids, mtp3_tokens_per_step, dflash2_tokens_per_step,
// skill?}. Empty lines are skipped. Ids lie below `vocab_size`. Throws Error(bad_file) naming line and key.
std::vector<AcceptancePrompt> parse_acceptance_prompts(std::string_view jsonl, const std::string& where,
                                                       const text::Tokenizer& tokenizer, int64_t vocab_size);
std::vector<AcceptancePrompt> read_acceptance_prompts(const std::filesystem::path& path,
                                                      const text::Tokenizer& tokenizer, int64_t vocab_size);

// Where a reply parts from the reference's.
struct Difference {
  bool in_tokens = false;  // the reply itself is another; else only how many tokens a step yields
  int64_t step = -1;       // the first step that yields more or fewer; −1: none does as far as the reply is the same
  int64_t token = 0;       // place in the reply of the token on which that hangs
  double margin = 0;       // between the model's two best logits there
};

struct AcceptanceResult {
  std::string name;
  int64_t prompt_tokens = 0, reply_tokens = 0;  // of the reply, its first and its stop token included
  std::vector<int64_t> taus;
  engine::DraftStats drafts;
  std::optional<Difference> difference;

  double mean() const;  // 0 without a step
};

struct AcceptanceOptions {
  engine::SamplingParams sampling;                // of every request
  int64_t max_tokens = 512;                       // of a prompt without a reference; clamped to what the model can hold
  std::vector<int32_t> stop_ids;                  // the model's own
  ReferenceLoop reference = ReferenceLoop::none;  // what to compare with; needs temperature 0
  double tie = 1e-3;                              // steps may differ where the model's two best logits are closer
  // bf16: the reference's fp32 decides another way now and then, in the drafter as in the model. One prompt in 50 may
  // hang on no tie, at least one, and the request mean may be 1 % below the reference's.
  bool is_rounded = false;
};

struct AcceptanceReport {
  std::string drafter, policy;  // as they were asked for
  bool taps_in_fp32 = false;    // what DFlash2 saw of the model: not rounded to bf16
  AcceptanceOptions options;
  std::vector<AcceptanceResult> results;  // in the order of the file
  engine::DraftStats drafts;              // of all of them
  int64_t compared = 0;                   // results with a reference
  std::vector<double> reference_means;    // of those, the reference's mean τ
  int64_t reference_tokens = 0, reference_steps = 0;
  double seconds = 0;

  int64_t steps() const, tokens() const;       // tokens: the sum of all τ
  double request_mean() const;                 // mean over prompts of their mean τ; those without a step are left out
  double token_weighted_mean() const;          // tokens() / steps()
  std::vector<int64_t> histogram() const;      // [n]: steps that yielded n tokens
  std::vector<double> accepted_rates() const;  // [i]: of all steps, those that accepted a draft at place i
  double reference_request_mean() const, reference_token_weighted_mean() const;
  int64_t different() const;    // prompts with a difference
  int64_t unexplained() const;  // of them, those that hang on no tie
  bool passed() const;          // true where there is no reference
};

// Runs the prompts one after another. `progress` (may be empty) is called after each with how many are done. Throws
// Error from the engine.
AcceptanceReport run_acceptance(engine::Engine& engine, const std::vector<AcceptancePrompt>& prompts,
                                const AcceptanceOptions& options, const std::function<void(int64_t)>& progress);

// Means by skill, the histogram and rates, then every difference.
std::string acceptance_text(const AcceptanceReport& report);
// One object, first key "schema": "tandem.eval_acceptance/1".
std::string acceptance_json(const AcceptanceReport& report);

}  // namespace tandem::eval
