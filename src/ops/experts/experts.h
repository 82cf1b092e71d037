// The feed-forward of a layer: routed experts, the shared expert, or a dense MLP, all with the clamped SwiGLU
// (spec/model.md 5). Sums over leaves: routed experts in ascending id into the leaf that owns them, then the shared
// expert's blocks of that leaf, then leaf 0 + leaf 1 (design.md 1).
#pragma once

#include <cstdint>
#include <vector>

#include "device/threads.h"
#include "ops/linear/matrix.h"
#include "ops/rounding.h"

namespace tandem::ops {

struct Mlp {
  Matrix gate, up;  // [width, hidden]
  Matrix down;      // [hidden, width]; leaves by 128-wide blocks where it is shared by ranks
};

// Scratch for up to max_rows rows; allocated once.
class ExpertScratch {
 public:
  // width: of a routed expert (0: none), shared_width: of the shared expert or the dense MLP.
  ExpertScratch(int64_t max_rows, int64_t hidden, int64_t experts, int64_t per_token, int64_t width,
                int64_t shared_width);
  static int64_t bytes(int64_t max_rows, int64_t hidden, int64_t experts, int64_t per_token, int64_t width,
                       int64_t shared_width);

 private:
  friend struct ExpertRun;
  std::vector<float> packed_x_, activation_, up_, output_, shared_activation_, shared_up_, shared_output_;
  std::vector<int32_t> first_, fill_, row_of_, place_of_;
};

struct Experts {
  int64_t hidden = 0;
  float swiglu_limit = 0.0f;
  const Mlp* routed = nullptr;  // [routed_count], nullptr with experts = 0 (dense layer)
  int64_t experts = 0, per_token = 0;
  // The experts that are here: all, or those of one leaf.
  int64_t first_routed = 0, routed_count = 0;
  const int32_t* chosen = nullptr;  // [rows, per_token] ascending
  const float* weights = nullptr;   // [rows, per_token]
  const Mlp* shared = nullptr;      // shared expert or dense MLP; nullptr: none
  int64_t rows = 0;
  const float* x = nullptr;  // [rows, hidden]
  float* y = nullptr;        // out [rows, hidden]
  ExpertScratch* scratch = nullptr;
  // Rounds the activation, and y of experts(). What experts_leaf() gives is fp32: the caller rounds leaf 0 + leaf 1.
  Compute compute = Compute::f32;
};
void experts(device::Threads& threads, const Experts& args);

// The sum of one leaf for a rank that holds nothing else: `routed` are the leaf's experts, `shared` the leaf's part of
// the shared expert. Rows that the leaf has nothing for (has_leaf() of the whole layer tells) are left alone in y.
void experts_leaf(device::Threads& threads, const Experts& args, int64_t leaf);

// Whether a row's sum has this leaf: an expert of its half is chosen, or the shared expert has width there.
// chosen [per_token].
bool has_leaf(const int32_t* chosen, int64_t per_token, int64_t experts, bool shared_has_leaf, int64_t leaf);

}  // namespace tandem::ops
