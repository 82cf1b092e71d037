// `tandem quantize`: a model folder with its BF16 or F32 projections in FP8 blocks or NVFP4, rounded to nearest without
// calibration, or in EXL3, encoded for the inputs that calibration text gives each layer (encode_model.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "eval/quality_text.h"
#include "model/weight_layout.h"
#include "quant/exl3_encode.h"

namespace tandem::eval {

enum class Coding { keep, fp8, nvfp4, exl3 };
std::string_view name_of(Coding coding);  // "keep", "fp8", "nvfp4", "exl3"

enum class Exl3Layout {
  exl3,  // every matrix has vectors of its own (spec/quantization.md 2)
  tr3,   // routed experts only; one suh for gate and up of a layer's experts, one svh for their down (3.1)
};
std::string_view name_of(Exl3Layout layout);

struct CalibrationFile {
  std::string name;
  int64_t bytes = 0;
  std::string sha256;
};

// Encodes one matrix, as quant::exl3_encode does with these arguments; `given` may be nullptr.
using EncodeMatrix = std::function<quant::Exl3Encoded(std::string_view name, const float* weight, int64_t out_features,
                                                      int64_t in_features, const quant::Exl3Hessian& hessian,
                                                      const quant::Exl3EncodeSettings& settings,
                                                      const quant::Exl3GivenVectors* given, device::Threads& threads)>;

// What EXL3 needs to know beyond FP8 and NVFP4.
struct Exl3Options {
  // Bits a weight, 1 to 8, of what is in EXL3; with bits_target those of the head alone count.
  int expert_bits = 0, dense_bits = 0, head_bits = 0;
  // 0: every matrix has its class's bits. Else each has the width that the allocator gives it (bit_allocation.h), with
  // this average over all experts and dense matrices in EXL3.
  double bits_target = 0;
  Exl3Layout layout = Exl3Layout::exl3;
  quant::Exl3Codebook codebook = quant::Exl3Codebook::mul1;
  quant::Exl3OutScales out_scales = quant::Exl3OutScales::always;
  quant::Exl3ScaleSearch scale_search = quant::Exl3ScaleSearch::full;
  uint64_t seed = 0;
  bool is_calibrated = true;  // false: no text; matrices are encoded without error feedback
  Windows calibration;
  std::vector<CalibrationFile> calibration_files;
  EncodeMatrix encode = {};  // tests of what is around the encoder have a quick one; none: quant::exl3_encode
};

struct QuantizeOptions {
  std::filesystem::path model, out;  // folders
  // Routed and shared experts, those of the MTP layer too.
  Coding experts = Coding::keep;
  // keep or fp8: the dense MLP and q_a, q_b, kv_a and o of sparse attention: the set of the published FP8 checkpoint
  // (spec/model.md 8.2). KDA, kv_b, indexer, embedding, head, router, norms, mHC, eh_proj and vision are copied.
  Coding dense = Coding::keep;
  int threads = 1;             // 0: one for each core; what is written does not depend on it
  Coding head = Coding::keep;  // or exl3
  Exl3Options exl3 = {};       // where any of the three is exl3; dense is then KDA's q, k, v and o, too

  bool has_exl3() const { return experts == Coding::exl3 || dense == Coding::exl3 || head == Coding::exl3; }
};

// One matrix in EXL3, as the manifest and the report tell of it.
struct EncodedTensor {
  std::string name;  // of the module, without a last dot
  int bits = 0;
  double scale = 0, relative_mse = 0, proxy_error = 0;  // quant::Exl3Encoded
  int64_t calibration_rows = 0, dropped_rows = 0;
  int damping_retries = 0;
  bool fallback = false;  // no calibration row reached it: encoded without error feedback
  double seconds = 0;     // of this run's encoding; 0 where an earlier run did it. Not in the manifest
};

struct QuantizeRow {
  model::Component component = model::Component::embedding;
  Coding coding = Coding::keep;
  int64_t weights = 0, parameters = 0, source_bytes = 0, bytes = 0;  // bytes: with the scales
};

struct QuantizeReport {
  std::string model, out;
  Coding experts = Coding::keep, dense = Coding::keep, head = Coding::keep;
  std::vector<QuantizeRow> rows;  // what was converted, by component
  int64_t copied_tensors = 0, copied_bytes = 0;
  int64_t source_bytes = 0, bytes = 0;  // of all tensor data
  int64_t shards = 0;
  // EXL3 only
  std::vector<EncodedTensor> encoded;
  int64_t resumed_tensors = 0;     // taken from an earlier run
  std::vector<std::string> notes;  // what was redone or could not be done as asked
  double seconds = 0;              // of this run
  double average_bits = 0;         // trellis bits a weight over experts and dense in EXL3
};

// Called by the thread that called quantize(): bytes of source weights that are done, and of all that the pass does.
// The choice of widths is a pass of its own, with another total.
using QuantizeProgress = std::function<void(int64_t bytes_read, int64_t bytes)>;

// Writes options.out: a shard for each of the model's with its index, config.json with a quantization_config, and the
// other files of the folder but weights. It appears whole or not at all: everything is written into "<out>.tmp", which
// is renamed, and removed after an error. FP8: weight F8_E4M3 and weight_scale_inv F32 in blocks of 128x128. NVFP4:
// ModelOpt's weight U8, weight_scale F8_E4M3 and weight_scale_2 F32. Experts that transformers stacked are taken apart.
// Throws Error: usage for an `out` that is there, nothing to convert or a width that NVFP4 or EXL3 cannot have;
// bad_file for a model that cannot be loaded, is quantised already or holds a value that is not finite; resource for a
// full disk. EXL3: as encode_model.h says, where "<out>.tmp" is kept, so that a run that was stopped can be resumed.
QuantizeReport quantize(const QuantizeOptions& options, const QuantizeProgress& progress);

std::string quantize_text(const QuantizeReport& report);
std::string quantize_json(const QuantizeReport& report);  // {"schema": "tandem.quantize/1", …}

}  // namespace tandem::eval
