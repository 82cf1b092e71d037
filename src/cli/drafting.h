// Which drafters a model folder has, which of them are loaded, and by what their depth is chosen: the flags --drafter,
// --drafter-model, --draft-policy, --num-speculative-tokens, --draft-verify and --cache-dir.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "draft/model_drafter.h"
#include "engine/scheduler_options.h"
#include "forward/text_model.h"
#include "model/checkpoint.h"
#include "model/drafter.h"
#include "model/shape.h"

namespace tandem::cli {

struct DraftingFlags {
  std::string drafter = "auto";                   // --drafter
  std::filesystem::path drafter_model;            // --drafter-model; empty: <MODEL>-dflash2, if it is there
  std::string policy = "joint";                   // --draft-policy
  std::optional<int32_t> num_speculative_tokens;  // --num-speculative-tokens; not given: as many as the drafter makes
  std::string verify = "exact";                   // --draft-verify
  std::filesystem::path cache_dir;                // --cache-dir; empty: $XDG_CACHE_HOME/tandem or ~/.cache/tandem
  // No flags: what tandem eval acceptance wants otherwise.
  bool copy_beside_model = true;  // copies of earlier text come before drafts of mtp and dflash2
  bool taps_in_fp32 = false;      // forward::DrafterModel
};

// What is loaded beside the text model, and what its drafts are chosen by.
struct Drafting {
  draft::Choice choice = draft::Choice::none;  // of requests that do not say
  bool copy = false, mtp = false, taps_in_fp32 = false;
  std::filesystem::path folder;              // of the DFlash2 drafter
  std::optional<model::DrafterShape> shape;  // its shape; none: not loaded
  draft::Policy policy;
  engine::DraftVerify verify = engine::DraftVerify::exact;

  const model::DrafterShape* drafter_shape() const { return shape ? &*shape : nullptr; }
  // Rows with logits that a step may need beside those of the pending tokens.
  int32_t draft_rows(int32_t streams) const;
};

// `has_mtp`: the checkpoint holds the MTP layer. Throws Error(usage) naming the flag, Error(bad_file) naming the
// drafter's file and key where it does not fit the model.
Drafting resolve_drafting(const DraftingFlags& flags, const std::filesystem::path& model, const model::Shape& shape,
                          bool has_mtp);
// The checkpoint holds any tensor of the MTP layer.
bool holds_mtp(const model::Checkpoint& checkpoint, const model::Shape& shape);

// What is loaded and how depths are chosen, for people.
std::string text_of(const Drafting& drafting, const draft::TimingTable& table);

// The DFlash2 drafter's weights. Matrices are views into the file, so it does not move.
class DrafterFiles {
 public:
  // Throws Error(bad_file) naming file and tensor.
  explicit DrafterFiles(const Drafting& drafting);
  forward::DrafterModel model() const { return {&shape_, &weights_, taps_in_fp32_}; }

 private:
  model::DrafterShape shape_;
  model::Checkpoint checkpoint_;
  model::DrafterWeights weights_;
  bool taps_in_fp32_;
};

engine::DraftOptions draft_options(const Drafting& drafting, const draft::TimingTable& table);
draft::ModelDrafterOptions drafter_options(const Drafting& drafting, const draft::TimingTable& table,
                                           const forward::Capacity& capacity, int64_t vocab_size);

// The folder of measured tables, and one table's file in it. `key` says everything that shaped the table.
std::filesystem::path calibration_file(const DraftingFlags& flags, const std::string& key);
// The built-in table for this pair of model and drafter.
draft::TimingTable unmeasured_table(const Drafting& drafting, const model::Shape& shape);
// The table measured under this key, or the other one; a file that cannot be used is named in the log.
draft::TimingTable stored_table(const DraftingFlags& flags, const std::string& key,
                                const draft::TimingTable& unmeasured);

}  // namespace tandem::cli
