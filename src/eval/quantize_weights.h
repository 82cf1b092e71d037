// What becomes of every tensor in a conversion, and the conversion of one.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "device/threads.h"
#include "eval/quantize.h"
#include "model/checkpoint.h"
#include "model/safetensors_writer.h"
#include "model/shape.h"

namespace tandem::eval {

// A projection that is converted: rows of a stored tensor, which may hold several.
struct ConvertedWeight {
  std::string name;  // "….weight"
  model::Component component = model::Component::embedding;
  Coding coding = Coding::keep;
  model::Matrix matrix;                      // BF16 or F32, points into the checkpoint
  std::vector<model::TensorHeader> tensors;  // in the order in which encoded() returns their bytes
  int64_t layer = -1;                        // of the model; num_hidden_layers for MTP
  int bits = 0;                              // EXL3
  std::string place;                         // the loader's name, without the prefix of the checkpoint's names

  std::string module() const;  // the name without ".weight"
  // Sizes as EXL3 stores them: multiples of 128 (spec/quantization.md 1.2).
  int64_t padded_in() const, padded_out() const;

  int64_t parameters() const { return matrix.out_features * matrix.in_features; }
  int64_t source_bytes() const;
  int64_t bytes() const;
};

struct ConversionPlan {
  std::map<std::string, std::vector<ConvertedWeight>> converted;  // by the name of the stored tensor
  std::set<std::string> kept_modules;                             // linear layers that stay; "….mlp.experts" for all
  std::map<std::string, Coding> converted_modules;                // the others, likewise
};

// The tensors of an EXL3 matrix of this width: trellis, suh, svh and the codebook's marker, if it has one (1.1).
std::vector<model::TensorHeader> exl3_tensors(const ConvertedWeight& weight, int bits, const Exl3Options& options);

// Every tensor that the loader asks for is looked up and checked. Throws as quantize() does.
ConversionPlan plan_conversion(const model::Checkpoint& checkpoint, const model::Shape& shape,
                               const QuantizeOptions& options);

// The weight as fp32 [out, in]. Throws Error(bad_file) for a value that is not finite.
std::vector<float> values_of(const ConvertedWeight& weight);

// The bytes of weight.tensors one after the other, of FP8 and NVFP4. Throws as values_of() does.
std::vector<std::byte> encoded(const ConvertedWeight& weight);

// The weight as the loader would read these bytes, which must outlive the result.
model::Matrix coded_matrix(const ConvertedWeight& weight, std::span<const std::byte> bytes,
                           quant::Exl3Codebook codebook);

// The weights of a shard, encoded by all threads some at a time and handed to `write` in their order: the same bytes
// for any number of threads. A weight is one thread's work. At most about 1 GiB of results waits to be written, and
// each thread has one weight in fp32 (0.3 GB for the largest of GLM-5.3-Flash). Throws as encoded() does, the first
// weight that fails in their order, and what `write` throws.
using WriteEncoded = std::function<void(const ConvertedWeight&, std::span<const std::byte>)>;
void encode_in_order(device::Threads& threads, std::span<const ConvertedWeight* const> weights,
                     const WriteEncoded& write);

}  // namespace tandem::eval
