// From a DFlash2 block's candidates and edges to drafts (spec/speculation.md 1.6): the path's picks, how sure they are,
// and for ratio verification what they were drawn from. Host work of 7·16 numbers; the model is not asked again.
#pragma once

#include <cstdint>

#include "draft/proposal.h"
#include "forward/step_runner.h"

namespace tandem::draft {

struct WalkOptions {
  double edge_weight = 1.0;       // of the selector's edges; the reference's
  double noise_weight = 0.7;      // of the request's own noise in picks that verification will sample (3.5)
  double confidence_scale = 2.0;  // β of the noise-aware confidence (5.2, fnc)
};

struct Walk {
  int64_t stream = 0;    // of the lattices
  int64_t position = 0;  // of the first draft
  int32_t most = 0;      // drafts wanted
  double temperature = 0;
  uint64_t seed = 0;
  bool draws = false;  // drawn from softmax(score / T), with noise that verification does not use
};

// Fills the proposal with up to `most` drafts of the lattice's rows; confidences are raw. The walk ends before a
// candidate outside [0, vocab_size) or a score that is no number, and then gives false.
bool walk_lattice(const forward::DraftLattices& lattices, const Walk& walk, const WalkOptions& options,
                  int64_t vocab_size, Proposal& proposal);

// The seed of draws that verification's own noise must be independent of (3.4).
uint64_t draft_seed(uint64_t seed);

}  // namespace tandem::draft
