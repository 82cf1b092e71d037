// What a model consists of: parameters by component, bytes of cache, and how a checkpoint differs from what its shape
// asks for. Needs no weights except for the comparison.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/checkpoint.h"
#include "model/shape.h"
#include "model/weight_layout.h"

namespace tandem::model {

const char* component_name(Component component);  // "routed_experts"

struct ParameterRow {  // a row of spec/model.md 1.3
  Component component = Component::embedding;
  int64_t per_unit = 0;  // parameters of one unit: a layer, or one expert for routed_experts
  int64_t units = 0;
  int64_t total() const { return per_unit * units; }
};

struct Inventory {
  std::vector<WeightSpec> main, mtp;  // every expected tensor, hub naming; mtp is empty without such a layer
  std::vector<ParameterRow> main_rows, mtp_rows;
  int64_t main_parameters = 0, mtp_parameters = 0;
  // Parameters that one token multiplies with: everything but the embedding table and the experts not chosen.
  int64_t active_parameters = 0;
};

Inventory make_inventory(const Shape& shape);

struct CacheRow {  // a row of spec/model.md 1.4
  std::string format;
  int64_t latent_bytes = 0;  // one token, one DSA layer
  int64_t pool_bytes = 0;    // one pooled index key (index_kpool tokens), one DSA layer
};

// Growing cache of each storage format, and what a sequence needs whatever its length.
struct CacheBytes {
  std::vector<CacheRow> rows;
  int64_t dsa_layers = 0;       // without MTP
  int64_t mtp_layers = 0;       // DSA layers that MTP adds
  int64_t tokens_per_pool = 1;  // index_kpool
  int64_t kda_state_bytes = 0;  // recurrent states of all KDA layers, fp32
  int64_t conv_bf16_bytes = 0;  // convolution windows of all KDA layers
  int64_t conv_f32_bytes = 0;

  double bytes_per_token(const CacheRow& row, bool with_mtp) const;
  int64_t bytes_for(const CacheRow& row, int64_t tokens, bool with_mtp) const;  // whole pools only
};

CacheBytes cache_bytes(const Shape& shape);

struct DTypeCount {
  DType dtype = DType::f32;
  int64_t tensors = 0, elements = 0, bytes = 0;
};

// Weights of one component in one format.
struct FormatRow {
  Component component = Component::embedding;
  bool mtp = false;
  std::string format;  // "BF16", "F8_E4M3 128x128 blocks", "NVFP4 (ModelOpt, low nibble first)", "EXL3 4 bits mcg"
  int64_t weights = 0, parameters = 0;  // matrices and vectors, and their elements without scales
  int64_t bytes = 0;                    // as stored, scales included
  double bits() const { return 8.0 * static_cast<double>(bytes) / static_cast<double>(parameters); }
};

// EXL3 experts of a layer may share their rotation: gate and up of all experts one suh, down one svh
// (spec/quantization.md 3.1). Counted by comparing the bytes; nothing depends on it.
struct SharedRotations {
  int64_t layers = 0;               // with EXL3 in every routed expert
  int64_t inputs = 0, outputs = 0;  // layers whose vectors are equal
};

struct Comparison {
  std::vector<std::string> missing;                   // hub names
  std::vector<std::string> wrong;                     // one line each: shape or dtype not as expected
  std::vector<std::string> unknown;                   // stored, but nothing of the text model
  int64_t text_tensors = 0;                           // stored and used, FP8 scales included
  int64_t vision_tensors = 0, vision_parameters = 0;  // known, and not used by the text model
  bool has_mtp = false;
  int64_t bytes = 0;
  std::vector<DTypeCount> dtypes;
  std::vector<FormatRow> formats;     // main model first, by component; weights that load
  std::vector<std::string> warnings;  // odd, but readable
  SharedRotations rotations;
  // Weights that one token reads without MTP: everything stored but the embedding table and the experts not chosen.
  int64_t bytes_per_token = 0;
  bool complete() const { return missing.empty() && wrong.empty(); }
};

// An MTP layer of which nothing is stored is reported by has_mtp alone, not as missing tensors.
Comparison compare(const Checkpoint& checkpoint, const Shape& shape, WeightOptions options = {});

}  // namespace tandem::model
