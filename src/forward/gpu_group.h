// The ranks that run a step together on GPUs: forward/group.h's rules (design.md 1, "two leaves"). A rank alone has
// both leaves inside its kernels and exchanges nothing.
#pragma once

#include <array>
#include <cstdint>

#include "device/gpu_exchange.h"
#include "forward/gpu_ops.h"
#include "forward/group.h"
#include "model/drafter.h"

namespace tandem::forward {

class GpuGroup {
 public:
  using bf16 = device::bf16;

  // `exchange`: of two ranks; nullptr for one. Throws Error(usage) for sizes that there are not on GPUs.
  GpuGroup(const model::Shape& whole, const Ranks& ranks, device::GpuExchange* exchange);

  bool alone() const { return ranks_.tensor_parallel_size == 1; }
  const Ranks& ranks() const { return ranks_; }
  const model::RankParts& own() const { return parts_[static_cast<size_t>(ranks_.rank)]; }
  bool second_has_kda_heads() const { return parts_[1].kda_heads.count > 0; }
  bool second_has_attention_heads() const { return parts_[1].attention_heads.count > 0; }
  // Whether a step may be recorded as a graph.
  bool can_be_captured() const { return alone() || exchange_->can_be_captured(); }

  // The most bytes that a rank gives at a time; of a rank alone 0.
  static int64_t exchange_bytes(const model::Shape& whole, const Capacity& capacity, const Ranks& ranks,
                                const model::DrafterShape* drafter);
  // Four times as many: two pieces of all ranks.
  void use(std::byte* memory, int64_t exchange_bytes);

  // The embedding rows of all tokens: args without the table and its first token.
  void embed(const GpuOps& ops, const ops::CudaMatrix& table, ops::EmbedArgs args, int64_t max_rows);
  // y [rows, out] = o_proj x, a sum over the heads of both ranks: x [rows, in] has this rank's. second: rank 1 has any.
  void project_heads(const GpuOps& ops, const ops::CudaMatrix& o_proj, const bf16* x, bool second, bf16* y,
                     const int32_t* rows, int64_t max_rows);
  // rows.y [rows, hidden]: the feed-forward's sum over the experts and the MLP width of both ranks.
  void feed_forward(const GpuOps& ops, const ops::ExpertShape& shape, ops::ExpertRows rows, int64_t max_rows);
  // logits [rows, vocab] of x [rows, hidden].
  void head(const GpuOps& ops, const ops::CudaMatrix& lm_head, const bf16* x, float* logits, const int32_t* rows,
            int64_t max_rows);

 private:
  // A new exchange of `bytes` bytes of each rank: where this rank puts its own …
  std::byte* begin(int64_t bytes);
  template <typename T>
  T* begin(int64_t values) {
    return reinterpret_cast<T*>(begin(values * static_cast<int64_t>(sizeof(T))));
  }
  // … which then all have, and where rank `rank`'s lie.
  void gather() { exchange_->all_gather(memory_, bytes_); }
  template <typename T>
  const T* of(int64_t rank) const {
    return reinterpret_cast<const T*>(memory_ + rank * bytes_);
  }

  Ranks ranks_;
  std::array<model::RankParts, 2> parts_;
  device::GpuExchange* exchange_;
  std::array<std::byte*, 2> memories_{};
  int64_t limit_ = 0;
  size_t turn_ = 0;
  std::byte* memory_ = nullptr;  // of the exchange under way
  int64_t bytes_ = 0;
};

}  // namespace tandem::forward
