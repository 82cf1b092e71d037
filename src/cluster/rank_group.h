// All ranks of a model as threads of one process: --tensor-parallel-size and --decode-context-parallel-size on the CPU.
// Every rank gets the step as bytes, as ranks on other machines would, and runs it by itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "forward/mutation.h"
#include "forward/step.h"
#include "forward/text_model.h"
#include "model/shape.h"
#include "model/weights.h"

namespace tandem::cluster {

struct GroupSize {
  int32_t tensor_parallel_size = 1;          // 1 or 2
  int32_t decode_context_parallel_size = 1;  // 1 or 2; then tensor_parallel_size is 2
};

// Every rank computes the same; results are rank 0's and valid until the next run. Only one thread may use the group at
// a time.
//
// A rank that throws makes run() throw its error once all ranks have stopped. The ranks' states may differ then, so
// from there on every call of run() throws Error(internal).
class RankGroup {
 public:
  // `shape` and `weights` must outlive the group. `capacity` is that of each rank: under decode-context parallelism
  // `pages` pages of its own. Each rank has `threads` worker threads. Throws Error(usage) for sizes that there are not
  // and Error(does_not_fit).
  RankGroup(const model::Shape& shape, const model::TextWeights& weights, GroupSize size,
            const forward::Capacity& capacity, int threads, forward::Mutation mutation = forward::Mutation::none,
            forward::DrafterModel drafter = {});
  ~RankGroup();

  // What all ranks allocate together.
  static int64_t planned_bytes(const model::Shape& shape, GroupSize size, const forward::Capacity& capacity,
                               int threads = 1, const model::DrafterShape* drafter = nullptr);

  int ranks() const;

  // forward::TextModel's calls. `probe` watches rank 0. Steps given as bytes must be those of forward::write_step().
  void run(std::span<const std::byte> step, forward::Probe* probe = nullptr);
  void run(const forward::Step& step, forward::Probe* probe = nullptr);
  void run_mtp(const forward::Step& step, std::span<const float> hidden_rows, bool zero_first_embedding = true,
               forward::Probe* probe = nullptr);
  std::span<const float> logits() const;
  std::span<const float> hidden() const;
  forward::DraftLattices lattices() const;
  std::span<const float> mtp_hidden() const;
  std::span<const float> mtp_logits() const;
  // With the heads of all ranks.
  void read_kda_state(int32_t slot, int64_t kda_layer, std::span<float> state, std::span<float> conv) const;

  // Since the start: exchanges, and bytes that each rank got from the other.
  int64_t exchanges() const;
  int64_t exchanged_bytes() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tandem::cluster
