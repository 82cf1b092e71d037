// What the dialects need to know of the model that is being served. The command `serve` fills it once the model is
// loaded; nothing here is owned, so the loaded model must outlive the server.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "grammar/compiler.h"
#include "text/tokenizer.h"

namespace tandem::api {

// Sampling values for fields that a request leaves out: generation_config.json, else neutral
// (spec/frontend.md D.2, "Defaults").
struct GenerationDefaults {
  double temperature = 1.0;
  double top_p = 1.0;
  int32_t top_k = 0;
  double min_p = 0.0;
  std::vector<int32_t> eos_token_ids;  // the model's own stop ids: generation_config.json, else config.json
};

struct ServedModel {
  std::vector<std::string> names;               // served names, at least one; the first is the default
  engine::Engine* engine = nullptr;             // thread-safe
  const text::Tokenizer* tokenizer = nullptr;   // thread-safe
  const grammar::Compiler* grammars = nullptr;  // thread-safe; null: without structured output
  GenerationDefaults defaults;
  int64_t vocab_size = 0;     // rows of the head; ids from tokenizer->size() on are padding
  int64_t max_model_len = 0;  // prompt and reply together, tokens
  int64_t max_running = 1;    // streams that the engine computes at once
  // Labels of vllm:cache_config_info ("block_size", "cache_dtype", …); empty: the metric is left out.
  std::vector<std::pair<std::string, std::string>> cache_config;
  // Of a model on a GPU: labels of tandem:gpu_info ("name", "driver", …) and the GPU's memory, bytes; empty: the
  // metrics of GPUs are left out.
  std::vector<std::pair<std::string, std::string>> gpu;
  int64_t gpu_memory = 0;
};

}  // namespace tandem::api
