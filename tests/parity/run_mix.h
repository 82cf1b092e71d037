// A mix run: every request alone on a fresh engine, then all of them together; the token ids must be equal.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/step_runner.h"
#include "forward/text_model.h"
#include "mix.h"
#include "model/checkpoint.h"
#include "model/shape.h"
#include "model/weights.h"

namespace tandem::parity {

// A model's weights, shared by all engines over it.
struct LoadedWeights {
  model::Shape shape;
  model::Checkpoint checkpoint;
  model::TextWeights weights;
  explicit LoadedWeights(const std::string& folder);
  ModelFacts facts() const;
};

struct MixReport {
  std::vector<std::string> failures;  // one line each; empty: the mix passed
  int64_t requests = 0, tokens = 0, steps = 0, cached_tokens = 0, preemptions = 0, evictions = 0;
};

class MixRunner {
 public:
  // `folder` of a model by its name.
  explicit MixRunner(std::map<std::string, std::string> folders);

  // Runs the mix of this seed, together on these ranks and alone on one. Never throws: whatever goes wrong is a failure
  // of the report.
  MixReport run(uint64_t seed, forward::Ranks ranks);

 private:
  const LoadedWeights& weights(const std::string& model);

  std::map<std::string, std::string> folders_;
  std::map<std::string, std::unique_ptr<LoadedWeights>> weights_;
};

}  // namespace tandem::parity
