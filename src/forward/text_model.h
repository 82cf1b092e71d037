// The text model: Step in, logits out (spec/model.md 2). Written once for all devices.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "forward/mutation.h"
#include "forward/step.h"
#include "forward/step_runner.h"
#include "model/cache_bytes.h"
#include "model/drafter.h"
#include "model/shape.h"
#include "model/weights.h"
#include "ops/rounding.h"

namespace tandem::device {
class Exchange;
class Threads;
}  // namespace tandem::device

namespace tandem::forward {

class Probe;  // forward/probe.h: what parity wants to see inside a step

// How latent rows and pooled index keys are stored (--kv-cache-dtype). Rows are rounded once, when they are stored.
using model::CacheType;

// Whether activations are rounded to bf16 where GPUs round them (--compute; ops/rounding.h).
using ops::Compute;

// How much state the model keeps; everything is allocated in the constructor.
struct Capacity {
  int32_t slots = 1;             // streams at a time
  int64_t pages = 2;             // pages of a rank's token pool, the null page 0 included
  int64_t max_stream_pages = 0;  // entries of the longest page table; 0: pages
  int32_t max_rows = 512;        // rows of one step (the prefill chunk)
  int32_t max_logit_rows = 32;   // rows and head slots of one step whose logits may be asked for
  int32_t kept_states = 0;       // records of kept states
  int32_t page_rows = 256;       // token rows of a page: a multiple of index_kpool, at most 256
  CacheType cache_type = CacheType::f32;
  Compute compute = Compute::f32;
  // Calibrated outer scales of nvfp4 latents, of each layer with a cache (DSA layers in order, then the MTP layer, used
  // or not); none: every row has its own.
  std::vector<float> latent_scales = {};
  bool mtp = true;  // the MTP layer's caches and scratch, if the checkpoint has that layer; without them its steps are
                    // refused
  bool mtp_zero_first_embedding = true;  // the embedding half of the MTP row at position 0 is zero
  bool mtp_index_share = true;  // mtp_chain rows select what the slot's last absorbed row did (spec/model.md 6.4), if
                                // the checkpoint's index_share_for_mtp_iteration says so
};

// This model's part of a group of ranks (design.md 1, "two leaves"). One rank computes both leaves.
struct Ranks {
  int32_t rank = 0;
  int32_t tensor_parallel_size = 1;          // 1 or 2: heads, MLP width and experts by leaf, the vocabulary by halves
  int32_t decode_context_parallel_size = 1;  // 1 or 2 (then equal to tensor_parallel_size): pages by parity of their
                                             // entry; entry j of a page table is a page of rank j mod 2's pool
};

// A DFlash2 drafter that stands beside the model: then text steps leave context rows for it and dflash2 steps run.
// Every rank has the whole of it. Both must outlive the model.
struct DrafterModel {
  const model::DrafterShape* shape = nullptr;  // nullptr: no drafter
  const model::DrafterWeights* weights = nullptr;
  bool taps_in_fp32 = false;  // as the reference loop keeps them; else rounded to bf16, as in training
};

class TextModel {
 public:
  static constexpr int64_t page_rows = 256;  // Capacity::page_rows unless a test wants smaller pages

  // `shape` and `weights` must outlive the model. Throws Error(does_not_fit) when memory cannot be had,
  // Error(bad_file) for a drafter that does not fit the shape.
  TextModel(const model::Shape& shape, const model::TextWeights& weights, device::Threads& threads,
            const Capacity& capacity, Mutation mutation = Mutation::none, DrafterModel drafter = {});
  // One of `ranks.tensor_parallel_size` ranks, from the whole model's shape and weights. All ranks run the same steps;
  // each has all results (cluster/rank_group.h runs them as threads). `exchange` must outlive the model. Throws
  // Error(usage) for sizes that there are not.
  TextModel(const model::Shape& shape, const model::TextWeights& weights, device::Threads& threads,
            const Capacity& capacity, Ranks ranks, device::Exchange& exchange, Mutation mutation = Mutation::none,
            DrafterModel drafter = {});
  ~TextModel();

  // Bytes that a model of this capacity allocates (caches, slots, kept states, scratch), by the same formulas as the
  // constructor.
  static int64_t planned_bytes(const model::Shape& shape, const Capacity& capacity, int threads = 1, Ranks ranks = {},
                               const model::DrafterShape* drafter = nullptr);
  // Bytes of one kept-state record, with the context rows of a drafter, which are of `cache_type`.
  static int64_t kept_state_bytes(const model::Shape& shape, Ranks ranks = {}, bool mtp = true,
                                  const model::DrafterShape* drafter = nullptr, CacheType cache_type = CacheType::f32);

  // Runs the step: its moves, then its rows, then the logits. Rows must continue each stream at its committed length:
  // running a step at position p makes p the length, whatever was run beyond it before ("commit and roll-back are set
  // length"). p may lie below the end of the last step only by rows that were not certain. Slots start at length 0; a
  // segment at position 0 starts the slot afresh. Results are valid until the next run. Throws Error(internal) for a
  // step that breaks these rules.
  void run(const Step& step, Probe* probe = nullptr);

  // [logit_rows.size() + head_slots.size(), vocab_size] fp32 of the last run, whatever its kind, and the
  // post-final-norm hidden of all rows [rows, hidden_size] of the last text step.
  std::span<const float> logits() const;
  std::span<const float> hidden() const;
  // Of the last run if it was a dflash2 step, else empty.
  DraftLattices lattices() const;

  // MTP rows (spec/model.md 6.1): row j of the step pairs `hidden_rows[j]` (post-norm hidden of position p_j) with
  // step.tokens[j] = the token at p_j + 1; step.positions[j] = p_j. Writes the MTP caches of those positions.
  // Afterwards mtp_hidden() is [rows, hidden_size] after shared_head.norm and mtp_logits() the logits of
  // step.logit_rows, which logits() are too. zero_first_embedding: the embedding half of position 0 is zero (nano was
  // trained so). The same as an mtp_absorb step, but for where the hidden rows come from.
  void run_mtp(const Step& step, std::span<const float> hidden_rows, bool zero_first_embedding = true,
               Probe* probe = nullptr);
  // The KDA state of a stream after its last row, layer counted among the KDA layers: the recurrent state [heads, dim
  // (key), dim (value)] and the last kernel − 1 raw convolution rows [3·heads·dim, kernel − 1], oldest first. The heads
  // are this rank's.
  void read_kda_state(int32_t slot, int64_t kda_layer, std::span<float> state, std::span<float> conv) const;

  std::span<const float> mtp_hidden() const;
  std::span<const float> mtp_logits() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tandem::forward
