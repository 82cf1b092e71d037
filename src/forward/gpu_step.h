// A step in a GPU's memory: forward/step.h's arrays as one block that is uploaded in one copy (ops/step_view.h).
#pragma once

#include <cstdint>
#include <span>

#include "cache/gpu_context_ring.h"
#include "device/gpu.h"
#include "forward/step_book.h"
#include "ops/rows/rows_args.h"
#include "ops/sample/sample_args.h"
#include "ops/step_view.h"

namespace tandem::forward {

class GpuStep {
 public:
  // Room for the steps that `capacity` allows, and for blocks of block_size rows (0: no drafter).
  GpuStep(device::Gpu& gpu, const Capacity& capacity, int64_t block_size = 0);
  static int64_t bytes(const Capacity& capacity, int64_t block_size);  // in device memory; as much is pinned

  // Queues the upload of a text or MTP step. kda_blocks: of the slots, before the step. The last upload's step must be
  // done. context: of a drafter, whose book learns of a text step's rows here; nullptr: none.
  void upload(const Step& step, const StepBook& book, std::span<const int64_t> kda_blocks, cache::ContextBook* context);
  // The same of a dflash2 step: each segment's token becomes a block, the token and then mask tokens.
  void upload_blocks(const Step& step, const cache::ContextBook& context, int64_t block_size, int32_t mask_token);

  const ops::StepView& view() const { return view_; }
  // What the head is asked for: logit rows, then the head rows of head_slots. [logit_count()]
  const ops::RowSource* logit_sources() const { return logit_sources_; }
  const int32_t* logit_count() const { return view_.counts + ops::step_logit_rows; }
  // Rows whose token is wanted, and the ids that some of them may not have. [*sample_count()]
  const int32_t* sample_count() const { return view_.counts + step_samples; }
  const ops::SampleRow* samples() const { return samples_; }
  const int32_t* masked_tokens() const { return masked_tokens_; }
  // The hidden rows of an MTP step's rows.
  const ops::RowSource* hidden_sources() const { return hidden_sources_; }

  // Rows of a text step that leave context for the drafter: their numbers, slots and positions. [*context_count()]
  const int32_t* context_count() const { return view_.counts + step_context_rows; }
  const int32_t* context_rows() const { return context_rows_; }
  const int32_t* context_slots() const { return context_slots_; }
  const int32_t* context_positions() const { return context_positions_; }
  // Of a dflash2 step: by block the first context position that may be read, and the pending token; where each draft
  // row lies among the rows of all blocks. [*draft_count()]
  const int32_t* context_first() const { return context_first_; }
  const int32_t* pending() const { return pending_; }
  const ops::RowSource* draft_sources() const { return logit_sources_; }
  const int32_t* draft_count() const { return logit_count(); }
  const int32_t* block_positions() const { return view_.positions; }  // [blocks], of the first rows

 private:
  static constexpr int32_t step_context_rows = ops::step_logit_rows + 1,  // in StepView::counts
      step_samples = step_context_rows + 1;
  struct Layout;

  void write_samples(const Step& step, const Layout& at);
  void write_context(const Step& step, const Layout& at, cache::ContextBook& context);
  template <typename T>
  T* host(int64_t offset) const {
    return reinterpret_cast<T*>(host_.data() + offset);
  }

  device::Gpu& gpu_;
  Capacity capacity_;
  int64_t block_size_;
  device::PinnedMemory host_;
  device::GpuMemory device_;
  ops::StepView view_{};
  const ops::SampleRow* samples_ = nullptr;
  const ops::RowSource *logit_sources_ = nullptr, *hidden_sources_ = nullptr;
  const int32_t *context_rows_ = nullptr, *context_slots_ = nullptr, *context_positions_ = nullptr,
                *context_first_ = nullptr, *pending_ = nullptr, *masked_tokens_ = nullptr;
};

}  // namespace tandem::forward
