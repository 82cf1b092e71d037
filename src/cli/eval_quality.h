// `tandem eval kld` and `tandem eval ppl`: what a format or another model costs in quality.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace tandem::cli {

struct KldCommandOptions {
  std::filesystem::path teacher;        // --teacher: a model folder or a capture; empty: the bundled model
  std::filesystem::path student;        // --student; empty: the teacher's folder, or with --capture none
  std::string text;                     // --text; empty: eval_text.jsonl of the student's or teacher's folder; -: stdin
  int64_t window = 2048;                // --window, tokens
  int32_t runs = 1;                     // --runs: each with models loaded anew
  std::string device = "auto";          // --device, of the student; the teacher runs on the CPU
  std::string compute = "auto";         // --compute, of the student; the teacher's is f32
  std::string kv_cache_dtype = "auto";  // --kv-cache-dtype, of the student; the teacher's is f32
  std::string kv_scales = "auto";       // --kv-scales, likewise
  std::string nvfp4_nibble_order = "low";    // --nvfp4-nibble-order, of both models
  int threads = 0;                           // --threads, of each rank
  int32_t tensor_parallel_size = 1;          // --tensor-parallel-size, of both models
  int32_t decode_context_parallel_size = 1;  // --decode-context-parallel-size
  std::filesystem::path capture;             // --capture: file for the teacher's logits; empty: none
  std::filesystem::path svg;                 // --svg: file for the picture; empty: none
  bool json = false;
};

// Returns 0. Throws Error: failed_check, after the report, if the offset audit shows that teacher and student are not
// of the same rows.
int run_eval_kld(const KldCommandOptions& options);

struct PplCommandOptions {
  std::filesystem::path model;  // empty: the bundled model
  std::string text;             // --text; empty: eval_text.jsonl of the model folder; -: standard input
  int64_t window = 2048;
  std::string device = "auto";
  std::string compute = "auto";
  std::string kv_cache_dtype = "auto";
  std::string kv_scales = "auto";
  std::string nvfp4_nibble_order = "low";
  int threads = 0;
  int32_t tensor_parallel_size = 1, decode_context_parallel_size = 1;
  bool json = false;
};

int run_eval_ppl(const PplCommandOptions& options);

}  // namespace tandem::cli
