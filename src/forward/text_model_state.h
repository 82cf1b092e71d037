// The text model's insides: what its parts (layers, checks and moves of a step, MTP) share.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cache/kept_states.h"
#include "device/host_memory.h"
#include "forward/dflash2.h"
#include "forward/mtp_slot.h"
#include "forward/pass.h"
#include "forward/text_model.h"

namespace tandem::forward {

// Throws Error(internal).
[[noreturn]] void bad_step(const std::string& what);

struct TextModel::State {
  Group group;
  const model::Shape shape;                             // this rank's
  const std::optional<model::TextWeights> own_weights;  // of one of two ranks
  const model::TextWeights& weights;
  device::Threads& threads;
  device::Threads one_thread{1};
  Capacity capacity;
  Mutation mutation;
  cache::TokenPool pool;
  cache::Slots slots;
  cache::KeptStates kept;
  ops::ExpertScratch expert_scratch;
  device::HostMemory memory;
  Scratch scratch{};
  std::vector<PreparedLayer> layers;
  std::vector<PreparedLayer> mtp_layer;            // none or one
  std::vector<int64_t> end, certain_end;           // [slots] of the last step
  std::vector<uint8_t> in_step;                    // [slots] has a segment in the step that is being checked
  std::vector<MtpSlot> mtp_slots;                  // [slots]
  int64_t rows = 0, logit_rows = 0, mtp_rows = 0;  // of the last text step, of the last run, of the last MTP step

  std::unique_ptr<Dflash2> drafter;  // may be none

  // `whole` and `w`: of all ranks.
  State(const model::Shape& whole, const model::TextWeights& w, device::Threads& t, const Capacity& c, Mutation m,
        const Group& g, const DrafterModel& d);
  Pass pass(const Step& step, Probe* probe);

  // check_step.cc: what a step may say, and its moves
  void check_slot(int32_t slot) const;
  void check_record(int32_t record) const;
  void check_segment(const Segment& segment, const Step& step, bool text) const;
  void check(const Step& step, bool text);
  static bool has_moves(const Step& step);
  void keep(const StateMove& move);
  void restore(const StateMove& move);
  void copy_page(const PageCopy& copy);
  void run_moves(const Step& step);

  // text_model.cc: the layers
  template <typename SubLayer>
  void site(const model::MhcWeights& w, const model::Vector& norm, const SubLayer& sub_layer);
  void transpose_comb();
  void run_layer(const Pass& pass, int64_t number);
  void collapse();
  void head(const Step& step, const float* hidden, float* logits, bool text);
  void head_rows(int64_t count, float* logits);
  void embed(std::span<const int32_t> tokens, int64_t copies, float* out, int64_t out_stride);
  void commit(const Segment& segment);
  void run(const Step& step, Probe* probe);
  void run_rows(const Step& step, Probe* probe);

  // dflash2_step.cc
  void check_dflash2(const Step& step);
  void run_dflash2(const Step& step);

  // mtp.cc
  const float* mtp_input_hidden(const Step& step, const Segment& segment, int64_t row);
  void check_mtp(const Step& step);
  template <typename HiddenOf>
  void mtp_enter(const Step& step, const HiddenOf& hidden_of, bool zero_first_embedding);
  template <typename SubLayer>
  void mtp_residual(const model::Vector& norm, const SubLayer& sub_layer);
  void mtp_rows_of(const Step& step, Probe* probe);
  void run_mtp_step(const Step& step, Probe* probe);
  void run_mtp(const Step& step, std::span<const float> hidden_rows, bool zero_first_embedding, Probe* probe);
};

}  // namespace tandem::forward
