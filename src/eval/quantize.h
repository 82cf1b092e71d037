// `tandem quantize`: a model folder with its BF16 or F32 projections in FP8 blocks or NVFP4, rounded to nearest without
// calibration. A plain converter: what better encoders are measured against.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "model/weight_layout.h"

namespace tandem::eval {

enum class Coding { keep, fp8, nvfp4 };
std::string_view name_of(Coding coding);  // "keep", "fp8", "nvfp4"

struct QuantizeOptions {
  std::filesystem::path model, out;  // folders
  // Routed and shared experts, those of the MTP layer too.
  Coding experts = Coding::keep;
  // keep or fp8: the dense MLP and q_a, q_b, kv_a and o of sparse attention: the set of the published FP8 checkpoint
  // (spec/model.md 8.2). KDA, kv_b, indexer, embedding, head, router, norms, mHC, eh_proj and vision are copied.
  Coding dense = Coding::keep;
  int threads = 1;  // 0: one for each core; what is written does not depend on it
};

struct QuantizeRow {
  model::Component component = model::Component::embedding;
  Coding coding = Coding::keep;
  int64_t weights = 0, parameters = 0, source_bytes = 0, bytes = 0;  // bytes: with the scales
};

struct QuantizeReport {
  std::string model, out;
  Coding experts = Coding::keep, dense = Coding::keep;
  std::vector<QuantizeRow> rows;  // what was converted, by component
  int64_t copied_tensors = 0, copied_bytes = 0;
  int64_t source_bytes = 0, bytes = 0;  // of all tensor data
  int64_t shards = 0;
};

// Called by the thread that called quantize().
using QuantizeProgress = std::function<void(int64_t bytes_read, int64_t bytes)>;

// Writes options.out: a shard for each of the model's with its index, config.json with a quantization_config, and the
// other files of the folder but weights. It appears whole or not at all: everything is written into "<out>.tmp", which
// is renamed, and removed after an error. FP8: weight F8_E4M3 and weight_scale_inv F32 in blocks of 128x128. NVFP4:
// ModelOpt's weight U8, weight_scale F8_E4M3 and weight_scale_2 F32. Experts that transformers stacked are taken apart.
// Throws Error: usage for an `out` that is there, nothing to convert or a width that NVFP4 cannot have; bad_file for a
// model that cannot be loaded, is quantised already or holds a value that is not finite; resource for a full disk.
QuantizeReport quantize(const QuantizeOptions& options, const QuantizeProgress& progress);

std::string quantize_text(const QuantizeReport& report);
std::string quantize_json(const QuantizeReport& report);  // {"schema": "tandem.quantize/1", …}

}  // namespace tandem::eval
