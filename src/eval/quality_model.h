// A model as a source of logits: teacher-forced rows of one stream, window after window.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "device/gpu.h"
#include "engine/step_runner.h"
#include "eval/quality.h"
#include "forward/text_model.h"
#include "model/checkpoint.h"
#include "model/shape.h"
#include "model/weights.h"

namespace tandem::eval {

struct ModelLogitsOptions {
  int64_t window = 2048;   // tokens of the longest window
  int64_t chunk_rows = 0;  // the most rows of next(); 0: chunk_rows_for the vocabulary
  forward::CacheType cache_type = forward::CacheType::f32;
  forward::Compute compute = forward::Compute::f32;
  model::WeightOptions weights = {};
  std::vector<float> latent_scales = {};  // forward::Capacity
  int threads = 0;                        // of each rank; 0: the cores divided among the ranks
  forward::Ranks ranks = {};              // sizes; no bit of the logits depends on them
  device::Gpu* gpu = nullptr;             // runs the model in place of the CPU; must outlive the source
};

class ModelLogits : public LogitSource {
 public:
  // Loads the folder and makes a model of its own. Throws Error: bad_file, does_not_fit, usage for a window longer than
  // the model's max_position_embeddings and for ranks that there are not; on a GPU also what forward::GpuModel throws.
  ModelLogits(const std::filesystem::path& folder, const ModelLogitsOptions& options);

  const model::Shape& shape() const { return shape_; }
  const std::string& name() const override { return name_; }
  int64_t vocab_size() const override { return shape_.vocab_size; }
  void start(const Windows& windows, size_t window) override;
  std::span<const float> next(int64_t rows) override;

 private:
  std::string name_;
  model::Shape shape_;
  model::Checkpoint checkpoint_;
  model::TextWeights weights_;
  int32_t pages_, page_groups_;  // page groups: ranks that the entries of the page table alternate between
  std::unique_ptr<engine::StepRunner> runner_;
  std::span<const int32_t> ids_;  // of the window
  int64_t position_ = 0;
};

}  // namespace tandem::eval
