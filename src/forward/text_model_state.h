// The text model's insides: what its parts (layers, checks and moves of a step, MTP) share.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cache/kept_states.h"
#include "device/host_memory.h"
#include "forward/dflash2.h"
#include "forward/pass.h"
#include "forward/rounded_weights.h"
#include "forward/step_book.h"
#include "forward/text_model.h"

namespace tandem::forward {

struct TextModel::State : StepBook {
  Group group;
  const model::Shape shape;                             // this rank's
  RoundedMatrices rounded;                              // bf16 mode: what is stored as F32
  const std::optional<model::TextWeights> own_weights;  // of one of two ranks, or with rounded matrices
  const model::TextWeights& weights;
  device::Threads& threads;
  device::Threads one_thread{1};
  Mutation mutation;
  cache::TokenPool pool;
  cache::Slots slots;
  cache::KeptStates kept;
  ops::ExpertScratch expert_scratch;
  device::HostMemory memory;
  Scratch scratch{};
  std::vector<PreparedLayer> layers;
  std::vector<PreparedLayer> mtp_layer;            // none or one
  int64_t rows = 0, logit_rows = 0, mtp_rows = 0;  // of the last text step, of the last run, of the last MTP step

  std::unique_ptr<Dflash2> drafter;  // may be none

  // `whole` and `w`: of all ranks.
  State(const model::Shape& whole, const model::TextWeights& w, device::Threads& t, const Capacity& c, Mutation m,
        const Group& g, const DrafterModel& d);
  Pass pass(const Step& step, Probe* probe);

  void run_moves(const Step& step);  // state_moves.cc

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
