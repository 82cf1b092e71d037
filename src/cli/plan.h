// `tandem plan`: what a model needs on given devices, and how many tokens it then serves, without loading it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "cli/plan_report.h"
#include "engine/plan.h"

namespace tandem::cli {

struct PlanOptions {
  std::filesystem::path model;          // a folder or a config.json; empty: the bundled model
  std::string gpus;                     // --gpus 2x96GiB; empty: the host's memory
  std::string host_memory;              // --host-memory 64GiB; empty: this machine's
  std::string kv_cache_dtype = "auto";  // auto: f32 in host memory, bf16 on GPUs
  std::string drafter = "auto";         // as of serve (cli/drafting.h)
  std::filesystem::path drafter_model;  // folder of a DFlash2 drafter; empty: beside the model; of a bare config.json
                                        // with --drafter dflash2 the published one
  std::string vision = "off";
  std::string weights;                        // format of a bare config.json's weights; empty: what the config says
  std::optional<double> bytes_per_parameter;  // none given: by format
  int32_t tensor_parallel_size = 0;           // 0: one rank a GPU, at most two
  int32_t decode_context_parallel_size = 1;
  int32_t max_num_seqs = engine::default_max_num_seqs;
  int64_t max_model_len = 0;
  int32_t max_num_batched_tokens = 0;
  int64_t kv_cache_memory = 0;                // 0: 1 GiB in host memory, on GPUs what is left
  std::optional<int64_t> kept_states_memory;  // none given: 256 MiB in host memory, 1 GiB on GPUs
  double gpu_memory_utilization = 0.95;       // share of a GPU's memory that is planned
  int threads = 0;  // --threads, of a rank, whose scratch is planned; 0: the cores divided among the ranks
  bool json = false;
};

// "64GiB", "1.5TB", "512 MiB", "4096": bytes; K, M, G and T are powers of 1,000, Ki, Mi, Gi and Ti of 1,024. Throws
// Error(usage) naming the flag.
int64_t parse_size(const std::string& flag, std::string_view text);

struct Gpus {
  int32_t count = 0;
  int64_t memory = 0;  // bytes of each
};
Gpus parse_gpus(std::string_view text);  // "2x96GiB"; throws Error(usage)

// The plan, or why there is none. Throws Error: usage, bad_file; what does not fit is part of the report.
PlanReport make_report(const PlanOptions& options);

// Prints the report. Returns 0. Throws Error(does_not_fit) after it where the plan does not fit.
int run_plan(const PlanOptions& options);

}  // namespace tandem::cli
