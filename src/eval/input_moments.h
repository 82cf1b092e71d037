// What the inputs of linear layers are like over calibration text: sums of x·xᵀ at the places where the layers of one
// decoder layer read (spec/quantization.md 2.2, 3.3).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "device/threads.h"
#include "forward/probe.h"
#include "model/shape.h"
#include "model/weights.h"
#include "quant/exl3_encode.h"

namespace tandem::eval {

// Linear layers that read the same values share a place.
enum class InputSite {
  attention,         // q, k, v; q_a, kv_a
  query,             // q_b
  attention_output,  // o_proj
  mlp,               // gate and up of the shared expert or of the dense MLP: all tokens
  mlp_down,          // down of these
  expert,            // gate and up of a routed expert: the tokens routed to it
  expert_down,       // its down
  head,              // lm_head
};

struct InputKey {
  InputSite site = InputSite::attention;
  int64_t expert = 0;  // of expert and expert_down

  bool operator==(const InputKey&) const = default;
  bool operator<(const InputKey& other) const { return std::pair(site, expert) < std::pair(other.site, other.expert); }
};
std::string name_of(const InputKey& key);  // "attention", "expert 3 down"

// How much each row counts.
enum class RowWeight {
  one,              // every row the same
  squared_routing,  // of routed experts: the square of the weight that the row's output is multiplied by (3.3)
};

// Adds the outer products of `rows` rows of moments.features values to the lower triangle, each times its weight
// (nullptr: 1), in the order of the rows whatever the number of threads. Rows with a value that is not finite are
// counted in dropped_rows and left out. Without features only rows and weights are counted.
void add_rows(quant::Exl3Moments& moments, const float* x, int64_t rows, const float* weights,
              device::Threads& threads);

// Sums at the places that `moments` has keys for, of the layer that a step calls `layer`. A routed expert's down sees
// what its own gate and up, as they are in `weights`, make of the rows, with the clamp of the model.
class MomentProbe final : public forward::Probe {
 public:
  MomentProbe(int64_t layer, const model::LayerWeights& weights, const model::Shape& shape, RowWeight weight,
              std::map<InputKey, quant::Exl3Moments>& moments, device::Threads& threads);

  void inputs(int64_t layer, forward::LinearInput which, int64_t rows, int64_t width, const float* x) override;
  void routing(int64_t layer, int64_t rows, int64_t per_token, const int32_t* chosen, const float* weights,
               const float* gaps) override;

 private:
  quant::Exl3Moments* wanted(InputKey key);
  void add_mlp(const model::MlpWeights& mlp, InputKey in, InputKey down, const float* x, int64_t rows,
               const float* weights);

  int64_t layer_;
  const model::LayerWeights& weights_;
  const model::Shape& shape_;
  RowWeight weight_;
  std::map<InputKey, quant::Exl3Moments>& moments_;
  device::Threads& threads_;
  const float* x_ = nullptr;  // of the feed-forward that routing() is about to tell more of
  std::vector<float> packed_, row_weights_, gate_, up_;
};

}  // namespace tandem::eval
