// The server's drafter: copies of earlier text first, else the MTP layer or DFlash2 blocks, all run as steps of the
// model (spec/speculation.md 1.8, 2.3, 5). It also keeps the MTP layer's rows up with the text model's.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "draft/acceptance.h"
#include "draft/arms.h"
#include "draft/copy_drafts.h"
#include "draft/drafter.h"
#include "draft/lattice_walk.h"
#include "draft/plain_rounds.h"
#include "draft/policy.h"
#include "draft/timing_table.h"
#include "forward/step_runner.h"

namespace tandem::draft {

struct ModelDrafterOptions {
  int32_t slots = 1;
  int64_t max_rows = 512;          // of a step
  int32_t page_rows = 256;         // token rows of a page
  int64_t max_stream_pages = 256;  // entries of the longest page table
  int64_t vocab_size = 0;

  bool copy = true;  // what is loaded; choices of what is not propose nothing
  bool mtp = false;
  bool dflash2 = false;
  int32_t mtp_depth = 3;   // drafts of an MTP chain, at most
  int32_t block_rows = 8;  // of a DFlash2 block, its pending token included

  Policy policy;  // how far an MTP chain goes; allocate() has the last word on what is verified
  TimingTable table = built_in_table();
  CopyOptions copies;
  WalkOptions walk;
};

class ModelDrafter : public Drafter {
 public:
  // Hidden rows of the text model that a slot holds beyond those of its last step.
  static constexpr int64_t head_rows = 32;
  // MTP rows of a stream that may be missing while nothing needs them: with a window of 16 more they are still held.
  static constexpr int64_t most_behind = 16;

  // `runner` must outlive the drafter. Everything is allocated here. Throws Error(usage) for options that cannot be.
  ModelDrafter(forward::StepRunner& runner, const ModelDrafterOptions& options);

  void start(int32_t slot, std::span<const int32_t> ids, int64_t length) override;
  void propose(std::span<const StreamView> streams, TokenPicker& picker) override;
  void verified(int32_t slot, const Proposal& proposal, int32_t tried, int32_t accepted) override;

  const AcceptanceStatistics& statistics() const { return statistics_; }
  int64_t invalid_drafts() const { return invalid_drafts_; }  // proposals cut at an id outside the vocabulary
  int64_t skipped_rows() const { return skipped_rows_; }      // MTP rows left out, their hiddens being gone
  void set_table(const TimingTable& table) { options_.table = table; }

  static int64_t planned_bytes(const ModelDrafterOptions& options);

 private:
  struct Slot {
    int64_t length = 0;     // rows kept of the text model
    int64_t last_step = 0;  // first row of the last step that had rows of the stream
    int64_t absorbed = 0;   // rows [0, absorbed) of the MTP layer are of the true tokens and hiddens
    bool by_arms = false;   // the last model drafter was chosen by the arms
    Arms arms{};
    PlainRounds plain{};
    std::array<double, most_drafts> raw{};  // confidences of the last proposal as the model gave them
  };
  // What is done for one stream in a propose().
  struct Plan {
    const StreamView* view = nullptr;
    Slot* slot = nullptr;
    Source source = Source::none;  // of a model
    int32_t wanted = 0;            // drafts of the model
    int64_t absorb_from = 0, absorb_to = 0;
    double reach = 1;  // product of the drafts' corrected confidences
    bool goes_on = false;
    bool is_sampled = false;  // the step picks its next draft
  };

  Slot& slot_of(int32_t slot);
  void plan(const StreamView& view);
  bool wants_drafts(const StreamView& view) const;
  void plan_copies(const StreamView& view, Slot& slot);
  void plan_model(Plan& plan);
  Source choose_model(const StreamView& view, Slot& slot) const;
  void plan_absorb(Plan& plan);

  void add_segment(const Plan& plan, int64_t position, int64_t rows);
  void absorb(TokenPicker& picker);
  void run_absorb(TokenPicker& picker);
  void chain(TokenPicker& picker);
  void run_chain(TokenPicker& picker);
  void run_blocks();
  void walk_blocks();
  void ask(Plan& plan, TokenPicker& picker);
  void add_mtp_drafts(TokenPicker& picker);
  void add_mtp_draft(Plan& plan, const TokenPicker::Pick& pick);
  bool pays_on(const Plan& plan, int32_t drafts) const;
  void correct(const StreamView& view, Slot& slot, int32_t draft);

  forward::StepRunner& runner_;
  ModelDrafterOptions options_;
  std::vector<Slot> slots_;
  std::vector<CopyIndex> copies_;  // by slot; none without copies
  AcceptanceStatistics statistics_;
  Arms arms_;  // of all streams' rounds: where a new stream begins
  int64_t invalid_drafts_ = 0, skipped_rows_ = 0;

  forward::Step step_;
  std::vector<Plan> plans_;
  std::vector<Plan*> asked_;  // of the step's logit rows, or of its blocks
};

}  // namespace tandem::draft
