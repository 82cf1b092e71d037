// What a caller may watch inside a step: the parity check compares these with the reference.
#pragma once

#include <cstdint>

namespace tandem::forward {

// The values that a group of linear layers multiplies: what their calibration wants to see (spec/quantization.md 2.2).
enum class LinearInput {
  attention,         // after the norm: q, k, v, f_a, g_a, b; q_a, kv_a and the indexer's
  query,             // sparse attention: q_b and the indexer's wq_b, after q_a's norm
  attention_output,  // o_proj
  feed_forward,      // after the norm: gate and up of all experts or of the dense MLP
};

class Probe {
 public:
  virtual ~Probe() = default;
  // The mHC streams that enter the first layer: [rows, hc_mult, hidden_size]. What is left there is what the layers
  // get, so that a model of one layer can go on where others ended.
  virtual void embedded(int64_t /*rows*/, float* /*streams*/) {}
  // x [rows, width], valid during the call. Of one rank's model alone: with two, a rank sees its own heads.
  virtual void inputs(int64_t /*layer*/, LinearInput /*which*/, int64_t /*rows*/, int64_t /*width*/,
                      const float* /*x*/) {}
  // The mHC streams after a layer: [rows, hc_mult, hidden_size].
  virtual void streams(int64_t /*layer*/, int64_t /*rows*/, const float* /*values*/) {}
  // Latent rows after their norm, before they are stored: [rows, kv_lora_rank]. The MTP layer's number is
  // num_hidden_layers.
  virtual void latents(int64_t /*layer*/, int64_t /*rows*/, int64_t /*width*/, const float* /*values*/) {}
  // Token positions each row attends to, ascending: [rows, max_selected] and their counts; gaps: score distance at the
  // cut.
  virtual void selection(int64_t /*layer*/, int64_t /*first_row*/, int64_t /*rows*/, const int32_t* /*selected*/,
                         int64_t /*max_selected*/, const int32_t* /*counts*/, const float* /*gaps*/) {}
  // Chosen experts ascending and their weights: [rows, per_token]; gaps: distance at the cut.
  virtual void routing(int64_t /*layer*/, int64_t /*rows*/, int64_t /*per_token*/, const int32_t* /*chosen*/,
                       const float* /*weights*/, const float* /*gaps*/) {}
};

}  // namespace tandem::forward
