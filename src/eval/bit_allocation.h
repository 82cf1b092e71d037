// Which matrix gets how many bits, by measured error at a given total (spec/quantization.md 2.10, "measured
// optimiser").
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "device/threads.h"
#include "eval/quantize.h"
#include "eval/quantize_weights.h"
#include "model/shape.h"
#include "model/weights.h"

namespace tandem::eval {

// A group of matrices that have one width: its alternatives in ascending width, the first being the one of the base.
struct AllocationGroup {
  std::string name;          // "layer 3 experts gate and up"
  int64_t weights = 0;       // stored, with padding
  std::vector<int> bits;     // of each alternative
  std::vector<double> gain;  // KLD with this group alone at the alternative − KLD of the base; [0] is 0
};

// The chosen alternative of each group. Greedy: from the base on, as long as one lowers the measure, the alternative
// with the most negative 1e10·(a(new) − a(current)) / (bits added + 1) among those whose bits fit what is left of
// `budget_bits` trellis bits; a(d) = d for d > 0, else −|d|^0.69. Ties: the first group, the narrower alternative.
std::vector<size_t> allocate(const std::vector<AllocationGroup>& groups, double budget_bits);

// The widths that a target chooses among: ceil(target) − 1 and the three above, within 1 to 8.
std::vector<int> candidate_bits(double target);

// Encodes every matrix of experts and dense at all candidate widths (in `folder`/candidates, without a scale search and
// with the source's layers before them), measures what each group gains by the KLD from the source over calibration
// text, and sets the widths in `plan`. The MTP layer, which no logits tell of, has floor(target) bits and is outside
// the budget, as is the head. What was chosen is kept in `folder`/allocation.json for a run that is resumed. Returns a
// line for each group. Throws what ModelWalk throws, and Error(usage) for a target outside 1 to 8.
std::vector<std::string> allocate_bits(const QuantizeOptions& options, const model::Shape& shape,
                                       const model::TextWeights& weights, const std::filesystem::path& folder,
                                       device::Threads& threads, const QuantizeProgress& progress,
                                       ConversionPlan& plan);

// Sets a matrix's width and the shapes that follow from it.
void set_bits(ConvertedWeight& weight, int bits, const Exl3Options& options);

}  // namespace tandem::eval
