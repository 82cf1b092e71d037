// A model folder made ready to generate: what every command that runs the model shares.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "api/served_model.h"
#include "device/threads.h"
#include "engine/batch_engine.h"
#include "engine/plan.h"
#include "engine/step_runner.h"
#include "forward/text_model.h"
#include "model/checkpoint.h"
#include "model/shape.h"
#include "model/weights.h"
#include "text/tokenizer.h"

namespace tandem::cli {

struct LoadOptions {
  std::filesystem::path model;         // a model folder; empty: default_model()
  int threads = 0;                     // --threads; 0: one for each core
  int64_t max_model_len = 0;           // --max-model-len, tokens; 0: what config and pool allow
  int64_t kv_cache_memory = 0;         // --kv-cache-memory, bytes; 0: 1 GiB
  int32_t max_num_batched_tokens = 0;  // --max-num-batched-tokens; 0: 512
};

// The bundled model: $TANDEM_HOME/models/nano, else <folder of the program>/../share/tandem/models/nano, else
// models/nano of the source tree that the program was built from. Throws Error(bad_file) when none of them exists.
std::filesystem::path default_model();

// --threads as it may be. Throws Error(usage).
int checked_threads(int threads);

// generation_config.json of a folder; without that file the neutral values and config.json's stop ids. Throws
// Error(bad_file) naming the key.
api::GenerationDefaults read_generation_defaults(const std::filesystem::path& folder, const model::Shape& shape);

// Throws Error from any step: bad_file, does_not_fit, usage. The order of the members is the order of their life.
class LoadedModel {
 public:
  explicit LoadedModel(const LoadOptions& options);
  ~LoadedModel();
  LoadedModel(const LoadedModel&) = delete;
  LoadedModel& operator=(const LoadedModel&) = delete;

  const std::filesystem::path& folder() const { return folder_; }
  const model::Shape& shape() const { return shape_; }
  const text::Tokenizer& tokenizer() const { return tokenizer_; }
  const api::GenerationDefaults& defaults() const { return defaults_; }
  const engine::Plan& plan() const { return plan_; }
  int64_t max_model_len() const { return plan_.max_model_len; }
  int threads() const { return threads_.count(); }
  engine::Engine& engine() { return *engine_; }
  std::string name() const;  // the folder's own name
  // What the dialects need; `names` empty: name(). Points into this object.
  api::ServedModel served(std::vector<std::string> names = {});

 private:
  engine::BatchEngineOptions engine_options() const;

  std::filesystem::path folder_;
  model::Shape shape_;
  text::Tokenizer tokenizer_;
  api::GenerationDefaults defaults_;
  model::Checkpoint checkpoint_;
  model::TextWeights weights_;
  engine::Plan plan_;
  device::Threads threads_;
  std::unique_ptr<forward::TextModel> text_model_;
  std::unique_ptr<engine::StepRunner> runner_;
  std::unique_ptr<engine::Engine> engine_;
};

}  // namespace tandem::cli
