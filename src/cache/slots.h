// What a stream remembers beside its token rows, in fixed slots: KDA states and logs, rings of raw convolution rows, of
// raw index rows and of head rows. Everything is found by absolute position, so commit and roll-back are "set length"
// (design.md 5).
#pragma once

#include <cstdint>
#include <vector>

#include "model/shape.h"
#include "ops/kda_block/kda_block.h"

namespace tandem::cache {

// Rows that a step may hold beyond its certain rows (drafts).
constexpr int64_t max_window = 16;
// Rows of the rings and logs: a live block of 16, or the rows that a convolution or pool looks back to, and a window.
constexpr int64_t ring_rows = 32;

class Slots {
 public:
  // `index_layers`: DSA layers and the MTP layer.
  Slots(const model::Shape& shape, int64_t kda_layers, int64_t index_layers, int64_t slots);
  static int64_t bytes_of_slot(const model::Shape& shape, int64_t kda_layers, int64_t index_layers);

  // The state's block is the slot's (the same for all layers).
  ops::KdaState kda(int64_t slot, int64_t layer);
  float* conv_ring(int64_t slot, int64_t layer);       // [ring_rows, 3·heads·dim]
  float* index_key_ring(int64_t slot, int64_t layer);  // [ring_rows, index_head_dim]
  float* index_gate_ring(int64_t slot, int64_t layer);
  // Post-final-norm hidden row of a position among the last ring_rows ones: [hidden_size].
  float* head_row(int64_t slot, int64_t position);

  int64_t kda_block(int64_t slot) const { return block_[static_cast<size_t>(slot)]; }
  void set_kda_block(int64_t slot, int64_t block) { block_[static_cast<size_t>(slot)] = block; }
  int64_t slots() const { return static_cast<int64_t>(block_.size()); }
  // An empty stream: zero states, block 0. Rings and logs need no clearing.
  void reset(int64_t slot);

 private:
  int64_t kda_layers_, index_layers_, heads_, dim_, index_width_, hidden_;
  std::vector<float> s0_, log_, conv_, index_, head_;
  std::vector<int64_t> block_;
};

}  // namespace tandem::cache
