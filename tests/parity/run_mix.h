// A mix run: every request alone on a fresh engine, then all of them together; the token ids must be equal.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/step_runner.h"
#include "forward/text_model.h"
#include "mix.h"
#include "model/checkpoint.h"
#include "model/drafter.h"
#include "model/shape.h"
#include "model/weights.h"
#include "scripted_drafter.h"

namespace tandem::parity {

// Where a model lies.
struct MixModel {
  std::string folder;
  std::string drafter = {};  // folder of its DFlash2 drafter; empty: random ones are made
  std::string text = {};     // a safetensors file with `ids` that the model was trained to go on with; may be empty
};

// A model's weights, shared by all engines over it.
struct LoadedWeights {
  struct Drafter {
    model::DrafterShape shape;
    model::Checkpoint checkpoint;
    model::DrafterWeights weights;
    explicit Drafter(const std::string& folder);
  };
  model::Shape shape;
  model::Checkpoint checkpoint;
  model::TextWeights weights;
  std::unique_ptr<Drafter> drafter;
  std::vector<int32_t> text;
  explicit LoadedWeights(const MixModel& model);
  ModelFacts facts() const;
};

struct MixReport {
  std::vector<std::string> failures;  // one line each; empty: the mix passed
  int64_t requests = 0, tokens = 0, steps = 0, cached_tokens = 0, preemptions = 0, evictions = 0;
  engine::DraftStats steps_with_drafters;  // of mixes that have any
  int64_t invalid_proposals = 0;
  bool drafts = false;
  DraftTallies tallies;

  void add(const MixReport& report);  // all but failures
};

// Makes a model of these weights; by default engine::run_on_cpu with a thread a rank.
using ModelFactory =
    std::function<std::unique_ptr<engine::StepRunner>(const LoadedWeights& weights, const forward::Capacity& capacity,
                                                      forward::Ranks ranks, forward::DrafterModel drafter)>;

class MixRunner {
 public:
  explicit MixRunner(std::map<std::string, MixModel> models, ModelFactory make = {});  // by name

  // Runs the mix of this seed, together on these ranks and alone on one. Never throws: whatever goes wrong is a failure
  // of the report. A mix of a model that is not among `models` is run with the first of them. `spoil`: drafts are run
  // as other tokens than those that are verified, which must be noticed.
  MixReport run(uint64_t seed, forward::Ranks ranks, bool spoil = false, const MixSetting& setting = {});

 private:
  const LoadedWeights& weights(const std::string& model);

  std::map<std::string, MixModel> models_;
  std::map<std::string, std::unique_ptr<LoadedWeights>> weights_;
  ModelFactory make_;
};

}  // namespace tandem::parity
