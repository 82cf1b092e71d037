// What host code tells sample.cu.
#pragma once

#include "device/kernel_types.h"

namespace tandem::ops {

// How one row's token is chosen (engine/sampler.h has the rule and the order of its steps).
struct SampleRow {
  double temperature;  // below 1e-5: greedy
  double top_p;        // 1 or more: no nucleus
  double min_p;        // 0: none
  uint64_t seed;
  int64_t position;      // that the token will have in its stream
  int32_t logits;        // row of SampleArgs::logits
  int32_t top_k;         // 0: all
  int32_t size;          // ids from here on are never chosen
  int32_t first_masked;  // these neither: SampleArgs::masked[first_masked … + masked)
  int32_t masked;
  int32_t wants_probability;  // not 0: Sampled::probability is computed
};

enum SampleStatus { sample_chosen = 0, sample_not_finite = 1, sample_all_masked = 2 };

struct Sampled {
  int32_t token;   // -1 where none could be chosen
  int32_t status;  // SampleStatus
  // The token's share of what top_k and top_p keep, at the row's temperature; of a greedy row: of all that may be
  // chosen, at temperature 1. By fp32 exponentials: near engine::Sampler::pick's, not its bits. 1 where it is not
  // wanted.
  double probability;
};

struct SampleArgs {
  static constexpr int32_t bins = 2048, listed = 1024;
  const int32_t* rows;      // how many there are
  const SampleRow* params;  // [rows]
  const int32_t* masked;    // ids
  const float* logits;      // [logit rows, vocab_size] at logits_stride; -inf means masked
  int64_t logits_stride;
  int32_t vocab_size;
  Sampled* out;  // [rows]
  // Scratch (CudaSample::run): blocks of a row; [rows, parts] the parts' best places; [rows, bins] a histogram.
  int32_t parts;
  uint64_t* best;
  uint64_t* weights;
};

}  // namespace tandem::ops
