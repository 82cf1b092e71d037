// The DFlash2 drafter beside the text model (spec/speculation.md 1.3 to 1.6): context rows from the text model's
// streams in every text step, and blocks of drafts from them in dflash2 steps.
//
// Floor of a block pass. Bytes: every weight once, whatever the number of blocks, but of the codebooks only the rows of
// candidates, fc not at all, and the target's head once: 2·(parameters − fc − codebooks) + head, 2.02 GB + 1.27 GB for
// the published drafter in bf16, 5.9 MB + 1.0 MB for nano's; and the context in the window, layers·(W − 1)·2·key width
// values a stream (42 MB published, bf16). Multiply-adds: that many weights for each of block_size rows, the head and
// the selector for one row less, attention 2·query width·(W − 1 + block_size) a row and layer. A context row reads fc
// and the K and V projections: 125.8 M weights published, once for all rows of a step. On a CPU at one stream the block
// is bound by bytes up to about 8 rows, at more streams by multiply-adds.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cache/context_ring.h"
#include "device/host_memory.h"
#include "device/threads.h"
#include "forward/rounded_weights.h"
#include "forward/scratch.h"
#include "forward/step.h"
#include "forward/step_runner.h"
#include "forward/text_model.h"
#include "model/drafter.h"

namespace tandem::forward {

class Dflash2 {
 public:
  // `model` must be there and outlive this object. Throws Error(bad_file) if the drafter does not fit the target,
  // Error(does_not_fit) when memory cannot be had.
  Dflash2(const DrafterModel& model, const model::Shape& target, const Capacity& capacity, device::Threads& threads);
  // What the constructor allocates, records included.
  static int64_t bytes(const model::DrafterShape& shape, const Capacity& capacity, int64_t threads);
  static int64_t record_bytes(const model::DrafterShape& shape, CacheType type);

  // Inside a text step, in this order: which rows leave context, their taps after each layer, their context rows.
  void begin_text(const Step& step);
  void tap(int64_t layer, int64_t streams_of_row, const float* streams);  // [rows of the step, streams, hidden]
  void store_context();
  // The slots' rows to records and back, after the model has checked the moves and made its own.
  void run_moves(const Step& step);

  // A dflash2 step: the caller puts the embedding rows of the pending tokens at block_input(), block_size rows apart,
  // and that of the mask token at mask_input(), runs the blocks, gives the head's logits of draft_hidden() in pieces in
  // ascending order of rows, then asks for the edges.
  float* block_input() { return w_.x; }
  int64_t block_stride() const { return s_.block_size * s_.hidden_size; }
  float* mask_input() { return w_.mask; }
  void run_blocks(const Step& step);
  const float* draft_hidden() const { return w_.h; }  // [streams·draft_rows, hidden] after the drafter's own norm
  int64_t draft_rows() const { return streams_ * s_.draft_rows(); }
  void candidates(int64_t first_row, int64_t rows, const float* logits);
  void finish(const Step& step);

  const model::DrafterShape& shape() const { return s_; }
  DraftLattices lattices() const;
  void clear_lattices() { streams_ = 0; }
  // Of the text step in progress or the last one: [rows that leave context, taps·hidden] and, after store_context(),
  // [rows, hidden].
  std::span<float> taps() const;
  std::span<const float> context() const;

 private:
  struct ContextRow {
    int32_t row = 0, slot = 0;
    int64_t position = 0;
  };
  // Rows: context rows of a text step, or rows of all blocks.
  struct Work {
    float *frequencies, *turns;        // [head_dim / 2]; [rows, head_dim]
    float *taps, *context;             // [context rows, taps·hidden], [context rows, hidden]
    float *key, *value;                // [rows, key width]
    float *mask, *x, *normed, *a, *y;  // [hidden]; [block rows, hidden]
    float* delta;                      // [block rows, 4·groups]
    float *query, *attended;           // [block rows, query width]
    float *gate, *up;                  // [block rows, intermediate]
    float *h, *g;                      // [draft rows, hidden], [draft rows, selector_rank]
    float *attend, *select;            // [threads, …]
    int32_t* ids;                      // [draft rows, top_k]
    float *unary, *edges;              // [draft rows, top_k], [draft rows, top_k, top_k]
    void lay_out(Arena& arena, const model::DrafterShape& shape, const Capacity& capacity, int64_t threads);
  };

  void turns_of(std::span<const int64_t> positions);
  void norm_rows(const float* x, const std::vector<float>& weight, int64_t rows, float* y);
  void turn_heads(const std::vector<float>& norm, int64_t heads, int64_t rows, float* x);
  void convolve(const std::vector<float>& base, int64_t side, const float* in, float* out, bool accumulate);
  void attention(size_t layer);
  void mlp(const model::DrafterLayer& w);

  const model::DrafterShape s_;
  RoundedMatrices rounded_;              // bf16 mode: what is stored as F32
  const model::DrafterWeights weights_;  // views
  const Compute compute_;
  const bool taps_in_fp32_;
  device::Threads& threads_;
  cache::ContextRing ring_;
  device::HostMemory memory_;
  Work w_{};
  std::vector<ContextRow> context_rows_;
  std::vector<int64_t> positions_;        // of context rows, or of the rows of all blocks
  std::vector<int64_t> block_positions_;  // [streams]
  std::vector<ops::ContextRows> seen_;    // [streams]
  std::vector<int32_t> block_slots_;      // [streams]
  int64_t streams_ = 0;                   // of the last dflash2 step
};

}  // namespace tandem::forward
