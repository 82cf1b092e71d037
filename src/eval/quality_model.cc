// Chunks of rows through the forward pass; a row's bits do not depend on how the window was cut (design.md 1).
#include "eval/quality_model.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "forward/step.h"

namespace tandem::eval {
namespace {

int32_t pages_for(int64_t window, const model::Shape& shape) {
  if (window > shape.max_position_embeddings)
    throw Error(ErrorCode::usage, "--window", std::to_string(window),
                "at most max_position_embeddings " + std::to_string(shape.max_position_embeddings));
  constexpr int64_t rows = forward::TextModel::page_rows;
  return static_cast<int32_t>((window + rows - 1) / rows);
}

const forward::Ranks& checked(const forward::Ranks& ranks) {
  const int32_t tensor = ranks.tensor_parallel_size, context = ranks.decode_context_parallel_size;
  if (tensor != 1 && tensor != 2)
    throw Error(ErrorCode::usage, "--tensor-parallel-size", std::to_string(tensor), "1 or 2");
  if (context != 1 && context != tensor)
    throw Error(ErrorCode::usage, "--decode-context-parallel-size", std::to_string(context),
                "1, or 2 with --tensor-parallel-size 2");
  return ranks;
}

forward::Capacity capacity_for(const ModelLogitsOptions& options, int64_t vocab_size, int32_t pages) {
  const int32_t groups = options.ranks.decode_context_parallel_size;
  forward::Capacity capacity;
  capacity.pages = 1 + (pages + groups - 1) / groups;
  capacity.max_stream_pages = pages;
  const int64_t chunk = options.chunk_rows > 0 ? options.chunk_rows : chunk_rows_for(vocab_size);
  capacity.max_rows = static_cast<int32_t>(std::min(chunk, options.window));
  capacity.max_logit_rows = capacity.max_rows;
  capacity.cache_type = options.cache_type;
  capacity.compute = options.compute;
  capacity.latent_scales = options.latent_scales;
  capacity.mtp = false;
  return capacity;
}

std::unique_ptr<engine::StepRunner> runner_for(const model::Shape& shape, const model::TextWeights& weights,
                                               const ModelLogitsOptions& options, int32_t pages) {
  const forward::Capacity capacity = capacity_for(options, shape.vocab_size, pages);
  if (options.gpu != nullptr) return engine::run_on_gpu(*options.gpu, shape, weights, capacity);
  return engine::run_on_cpu(shape, weights, capacity, options.ranks,
                            engine::threads_of_rank(options.threads, options.ranks));
}

}  // namespace

ModelLogits::ModelLogits(const std::filesystem::path& folder, const ModelLogitsOptions& options)
    : name_(folder.string()),
      shape_(model::read_shape(folder)),
      checkpoint_(model::Checkpoint::open(folder)),
      weights_(model::load_text_weights(checkpoint_, shape_, options.weights)),
      pages_(pages_for(options.window, shape_)),
      page_groups_(checked(options.ranks).decode_context_parallel_size),
      runner_(runner_for(shape_, weights_, options, pages_)) {}

void ModelLogits::start(const Windows& windows, size_t window) {
  ids_ = windows.windows[window].ids;
  position_ = 0;
}

std::span<const float> ModelLogits::next(int64_t rows) {
  if (rows < 1 || position_ + rows >= std::ssize(ids_))
    throw Error(ErrorCode::internal, name_, "rows beyond the window were asked for");
  forward::Step step = forward::single_stream_step(
      ids_.subspan(static_cast<size_t>(position_), static_cast<size_t>(rows)), position_, pages_);
  for (size_t entry = 0; entry < step.page_tables.size(); ++entry)
    step.page_tables[entry] = 1 + static_cast<int32_t>(entry) / page_groups_;
  step.logit_rows.resize(static_cast<size_t>(rows));
  std::iota(step.logit_rows.begin(), step.logit_rows.end(), 0);
  runner_->run(step);
  position_ += rows;
  return runner_->logits();
}

}  // namespace tandem::eval
