// What gpu_bench measures, each into the report. The order matters: measure_limits() first.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <span>

#include "synthetic_rank.h"
#include "timing.h"

namespace tandem::bench {

struct RankPlan {
  std::string name;  // of the report's sections
  model::Shape shape;
  int64_t held_experts, shared_width, leaves;
  forward::Capacity capacity;
  struct Load {
    int64_t streams, rows, position;  // rows of each stream
  };
  std::vector<Load> loads;
  // Operations and single kernels of loads up to this many rows; larger ones get layers alone.
  int64_t most_rows_of_operations;
  std::vector<Load> selections;  // index selection alone
};

// Copy, read and matrix rates and the time of an empty launch. `most_bytes`: of the largest stream.
void measure_limits(Bench& bench, Report& report, const std::vector<std::string>& defines, int64_t most_bytes,
                    int64_t matrix_size);
// Operations, layers of each kind and a whole step of one rank with random weights.
void measure_rank(const Bench& bench, Report& report, const RankPlan& plan);
// The bundled model: steps of one and of several streams, prompts. `folder`: the source tree.
void measure_nano(const Bench& bench, Report& report, const std::filesystem::path& folder,
                  std::span<const int32_t> stream_counts, int64_t steps);
// The head and the choice of tokens in the step, against copied logits and the host's sampler.
void measure_sampling(const Bench& bench, Report& report, const std::vector<std::string>& defines, int64_t vocab,
                      int64_t hidden, std::span<const int64_t> row_counts);
// Device memory ready for the bundled model from nothing: compiling and loading kernels, weights, graphs.
double start_nano(device::Gpu& gpu, const std::filesystem::path& folder);

}  // namespace tandem::bench
