// A model folder made ready to generate: what every command that runs the model shares.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "api/served_model.h"
#include "cli/device_choice.h"
#include "cli/drafting.h"
#include "engine/batch_engine.h"
#include "engine/plan.h"
#include "engine/step_runner.h"
#include "model/checkpoint.h"
#include "model/shape.h"
#include "model/weights.h"
#include "text/tokenizer.h"

namespace tandem::cli {

struct LoadOptions {
  std::filesystem::path model;                    // a model folder; empty: default_model()
  int threads = 0;                                // --threads, of each rank; 0: the cores divided among the ranks
  int64_t max_model_len = 0;                      // --max-model-len, tokens; 0: what config and pool allow
  int64_t kv_cache_memory = 0;                    // --kv-cache-memory, bytes; 0: 1 GiB, what is left on a GPU
  int32_t max_num_batched_tokens = 0;             // --max-num-batched-tokens; 0: 512, 2048 on a GPU
  int32_t max_num_seqs = 1;                       // --max-num-seqs: streams at a time
  std::optional<int64_t> kept_states_memory = 0;  // --kept-states-memory, bytes; 0: nothing is kept; none: by device
  std::string device = "cpu";                     // --device: auto (what the flag says if it is not given), cpu, cuda
  bool check_numerics = false;                    // --check-numerics
  bool announce_device = false;                   // the log says which device it is, whichever it is
  double gpu_memory_utilization = 0.9;            // --gpu-memory-utilization: share of a GPU's memory that is planned
  std::string compute = "auto";                   // --compute: auto (f32), f32 or bf16
  std::string kv_cache_dtype = "auto";            // --kv-cache-dtype: auto, or a name of model/cache_bytes.h
  std::string kv_scales = "auto";                 // --kv-scales, of nvfp4 (cli/kv_scales.h)
  std::string nvfp4_nibble_order = "low";         // --nvfp4-nibble-order
  int32_t tensor_parallel_size = 1;               // --tensor-parallel-size: ranks as threads of this process
  int32_t decode_context_parallel_size = 1;       // --decode-context-parallel-size

  double prefill_slice_ms = 200;       // --prefill-slice-ms
  double fill_share = 0.5;             // --fill-share
  int64_t max_waiting = 256;           // --max-queued-requests
  double watchdog_s = 0;               // --watchdog-s; 0: none
  bool watchdog_exit = false;          // --watchdog-exit: the process ends with status 70 when the engine is stuck
  std::filesystem::path record_steps;  // --record-steps; empty: none
  DraftingFlags drafting;
};

// The bundled model: $TANDEM_HOME/models/nano, else <folder of the program>/../share/tandem/models/nano, else
// models/nano of the source tree that the program was built from. Throws Error(bad_file) when none of them exists.
std::filesystem::path default_model();

// --threads as it may be. Throws Error(usage).
int checked_threads(int threads);

// --compute as it may be on a CPU. Throws Error(usage).
forward::Compute compute_type(const std::string& name);
std::string name_of(forward::Compute compute);

// --kv-cache-dtype as it may be on a CPU; auto: f32, as bf16 mode on a GPU has them: bf16. Throws Error(usage).
forward::CacheType cache_type(const std::string& name, forward::Compute compute);

// How weights are read with this --nvfp4-nibble-order. Throws Error(usage).
model::WeightOptions weight_options(const std::string& nvfp4_nibble_order);

// A model folder that may be read: `given`, or the bundled model's. Throws Error naming it.
std::filesystem::path checked_folder(const std::filesystem::path& given);

// What a recording of steps says of the model that it was made with.
uint32_t config_crc(const std::filesystem::path& folder);

// What `weights` bytes of mapped weights leave of this machine's memory; 0: not known, not checked. Throws
// Error(does_not_fit) when that is nothing.
int64_t memory_beside(int64_t weights);

// Throws what LoadedModel would throw for its settings (usage, does_not_fit), its folder, config.json and the names and
// sizes of its tensors, without loading anything.
void check_load(const LoadOptions& options);

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
  int threads() const { return threads_; }  // of all ranks
  engine::Engine& engine() { return *engine_; }
  std::string name() const;  // the folder's own name
  const DeviceChoice& device() const { return device_; }
  std::string device_text() const;  // which device runs it and why, for people
  const Drafting& drafting() const { return drafting_; }
  const draft::TimingTable& table() const { return table_; }
  // Everything that shapes a timing table of this model as it is loaded.
  std::string calibration_key() const;
  // The model itself. Only for a caller that knows that no request runs: the engine's thread uses it, too.
  engine::StepRunner& runner() { return *runner_; }
  bool samples_in_step() const { return device_.on_gpu(); }  // the runner takes forward::Step::samples
  // What the dialects need; `names` empty: name(). Points into this object.
  api::ServedModel served(std::vector<std::string> names = {});

 private:
  void record_steps(const LoadOptions& options);
  int64_t weight_bytes() const;
  std::unique_ptr<engine::StepRunner> make_runner() const;

  LoadOptions options_;
  std::filesystem::path folder_;
  model::Shape shape_;
  text::Tokenizer tokenizer_;
  api::GenerationDefaults defaults_;
  model::Checkpoint checkpoint_;
  model::TextWeights weights_;
  Drafting drafting_;
  std::unique_ptr<DrafterFiles> drafter_files_;
  DeviceChoice device_;
  engine::Plan plan_;
  int threads_;
  draft::TimingTable table_;
  std::unique_ptr<engine::StepRunner> runner_, recorder_;
  std::unique_ptr<draft::ModelDrafter> drafter_;
  std::unique_ptr<engine::Engine> engine_;
};

}  // namespace tandem::cli
