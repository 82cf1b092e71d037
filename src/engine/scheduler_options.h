// What the scheduler may use and how it divides it; sizes are the plan's.
#pragma once

#include <chrono>
#include <cstdint>

#include "draft/policy.h"
#include "draft/proposal.h"
#include "draft/timing_table.h"
#include "engine/keep_points.h"
#include "forward/text_model.h"

namespace tandem::engine {

// A point in time since an epoch of the caller's choice: the scheduler has no clock of its own.
using Time = std::chrono::nanoseconds;

constexpr int64_t most_waiting = 1'000'000;
constexpr double smallest_fill_share = 0.01;  // below, prompts would all but stop

// How drafts are verified: exactly, so that tokens are those of a run without drafts, or by the ratio rule, which keeps
// the distribution only and accepts more (spec/speculation.md 3.2, 3.4).
enum class DraftVerify : uint8_t { exact, ratio };

struct DraftOptions {
  draft::Choice choice = draft::Choice::none;                   // of requests that do not say
  bool has_copy = false, has_mtp = false, has_dflash2 = false;  // what there is to choose
  draft::Policy policy;
  draft::TimingTable table = draft::built_in_table();
  DraftVerify verify = DraftVerify::exact;
  int64_t context_rows = 0;  // rows before its block that DFlash2 sees (window − 1)
};

struct SchedulerOptions {
  int32_t vocab_size = 0;      // rows of the embedding and of the head
  int32_t sampled_tokens = 0;  // ids from here on have no text and are never sampled (the tokenizer's size)
  int64_t max_model_len = 0;   // tokens of prompt and reply together

  // slots: streams at a time; max_rows: rows of one step, at least one for each slot; max_logit_rows: at least slots.
  forward::Capacity capacity;
  int32_t page_groups = 1;       // decode-context-parallel size: table entry j is a page of group j mod page_groups
  int64_t kept_state_bytes = 0;  // of one record, for Status

  int64_t max_waiting = 256;      // requests beyond those in slots, 1 to most_waiting
  bool samples_in_step = false;   // the model takes forward::Step::samples
  double prefill_slice_ms = 200;  // longest step with prompt rows while others decode; 0: no bound
  double fill_share = 0.5;        // share of the time that prompts get while others decode, smallest_fill_share to 1
  KeepRules keep;
  DraftOptions draft;
};

// Throws Error(usage) naming the setting that is out of its range.
void check_options(const SchedulerOptions& options);

}  // namespace tandem::engine
