// The DFlash2 drafter on a GPU: dflash2.h has the formulas and what a step leaves.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cache/gpu_context_ring.h"
#include "device/gpu.h"
#include "forward/gpu_group.h"
#include "forward/gpu_ops.h"
#include "forward/gpu_step.h"
#include "forward/scratch.h"
#include "forward/step_runner.h"
#include "forward/text_model.h"
#include "model/drafter.h"
#include "ops/block_attend/block_attend_cuda.h"
#include "ops/block_conv/block_conv_cuda.h"
#include "ops/draft_select/draft_select_cuda.h"
#include "ops/rope/rope_cuda.h"

namespace tandem::forward {

struct GpuDrafterLayer {
  const float *input_layernorm, *post_attention_layernorm, *q_norm, *k_norm;
  ops::CudaMatrix q_proj, k_proj, v_proj, o_proj;
  ops::ExpertPointers mlp;
  const float *attention_base, *mlp_base;  // [2 sides, 2 taps, hidden]
  ops::CudaMatrix attention_delta, mlp_delta;
};

class GpuDflash2 {
 public:
  // Throws Error(bad_file) if the drafter does not fit the target, Error(does_not_fit).
  GpuDflash2(device::Gpu& gpu, const std::vector<std::string>& defines, const DrafterModel& model,
             const model::Shape& target, const Capacity& capacity, const GpuOps& ops, const GpuStep& step);
  // What the constructor allocates on the device, weights included.
  static int64_t bytes(const model::DrafterShape& shape, const model::DrafterWeights* weights,
                       const Capacity& capacity);

  // Queued inside a text step's launches: the means of the streams after `layer`, and at the end the context rows.
  void queue_tap(int64_t layer, const device::bf16* streams, int64_t max_rows) const;
  void queue_context(int64_t max_rows) const;
  // The launches of a dflash2 step of at most so many blocks.
  // The drafter is whole on every rank, the target's vocabulary is not.
  void queue_blocks(GpuGroup& group, const ops::CudaMatrix& embed_tokens, const ops::CudaMatrix& lm_head,
                    int64_t max_blocks) const;
  // Copies of the slots' rows to records and back, after the model has checked the moves.
  void queue_moves(const Step& step);

  cache::ContextBook& book() { return ring_.book(); }
  const model::DrafterShape& shape() const { return s_; }
  // Queues the copy of the lattices of so many blocks to the host. Returns their bytes.
  int64_t queue_download(int64_t blocks);
  DraftLattices lattices() const;  // of the last download, when it is done
  void clear_lattices() { blocks_ = 0; }

 private:
  using bf16 = device::bf16;
  // Rows: context rows of a text step, or rows of all blocks.
  struct Work {
    bf16 *taps, *context, *key, *value;     // [context rows, taps·hidden], [.., hidden], [.., layers·key width]
    bf16 *x, *normed, *a, *y, *delta;       // [block rows, hidden]; delta [.., 4·groups]
    bf16 *query, *block_key, *block_value;  // [block rows, query width], [.., key width]
    bf16* attended;                         // [.., query width]
    bf16 *h, *g;                            // [draft rows, hidden], [draft rows, selector_rank]
    float *logits, *unary, *edges;          // [draft rows, vocab], [.., top_k], [.., top_k, top_k]
    int32_t* ids;
    std::byte *attend, *select, *mlp;
    void lay_out(Arena& arena, const model::DrafterShape& shape, const Capacity& capacity);
  };

  void load(const model::DrafterWeights& weights);
  ops::BlockAttendArgs attend_of(size_t layer) const;
  void convolve(const float* base, int64_t side, const bf16* in, bf16* out, bool accumulate, int64_t blocks) const;
  void norm(const bf16* x, const float* weight, bf16* y, const int32_t* rows, int64_t max_rows) const;
  void queue_attention(size_t layer, int64_t blocks) const;
  void queue_mlp(const GpuDrafterLayer& layer, int64_t blocks) const;

  device::Gpu& gpu_;
  const model::DrafterShape s_;
  const Capacity capacity_;
  const GpuOps& ops_;
  const GpuStep& step_;
  ops::CudaBlockAttend attend_;
  ops::CudaBlockConv conv_;
  ops::CudaDraftSelect select_;
  ops::CudaRope rope_;
  cache::GpuContextRing ring_;
  device::GpuMemory weights_memory_, memory_;
  device::PinnedMemory host_;
  std::vector<GpuDrafterLayer> layers_;
  ops::CudaMatrix fc_{}, hidden_projection_{}, predecessor_{}, successor_{};
  const float *hidden_norm_ = nullptr, *norm_ = nullptr, *frequencies_ = nullptr;
  Work w_{};
  int64_t blocks_ = 0;
};

}  // namespace tandem::forward
