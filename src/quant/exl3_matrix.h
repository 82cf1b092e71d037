// One linear layer stored as EXL3: what its tensors are, what makes them unreadable, and the reference decoding that
// kernels are tested against (spec/quantization.md 1.1–1.3, 1.11, 3.6, 7).
//
//   W[k, n] = suh[k]·svh[n] · (H · Wq · H)[k, n]        y = ((((x ∘ suh) H) Wq) H) ∘ svh + bias
//
// W is [in, out], the transpose of Hugging Face's weight; H is hadamard128 on every block of 128.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quant/exl3_codebook.h"
#include "quant/tensor_facts.h"

namespace tandem::quant {

// A view. Sizes are the stored ones: multiples of 128, a smaller layer is padded with zeros at the end (1.2).
struct Exl3Matrix {
  std::span<const std::byte> trellis;  // from the first tile on
  int bits = 0;                        // a weight, 1–8
  int64_t in_features = 0;
  int64_t out_features = 0;
  Exl3Codebook codebook = Exl3Codebook::three_inst;
  std::span<const std::byte> suh, svh;  // fp16 [in], [out]; empty: su and sv
  std::span<const std::byte> su, sv;    // legacy signs, one bit each, bit set = −1, bit 0 of the first byte first
  std::span<const std::byte> bias;      // fp16 [out], empty: none
  int64_t tile_stride = 0;              // tiles from one row of tiles to the next; 0: out_features / 16

  int64_t stride() const { return tile_stride == 0 ? out_features / 16 : tile_stride; }
  // Tile of inputs 16·tk.. and outputs 16·tn.. .
  const std::byte* tile(int64_t tk, int64_t tn) const { return trellis.data() + (tk * stride() + tn) * 32 * bits; }
};

// From the tensors that share `prefix`. in_features and out_features are the model's; stored sizes must be these
// rounded up to 128. Throws Error(bad_file) that names the tensor, what was found and what was expected for everything
// in section 7, items 3–5 and 10. What is odd but readable is appended to `warnings` (may be nullptr).
Exl3Matrix read_exl3(std::string_view prefix, std::span<const TensorFacts> tensors, int64_t in_features,
                     int64_t out_features, std::vector<std::string>* warnings);

// One value of quantization_config: unknown values of keys that change the meaning of the data (quant_method,
// tile_order, codebook, scope, rotation_layout, tensor_schema) are refused; other keys are informative (item 7).
void check_exl3_setting(std::string_view file, std::string_view key, std::string_view value);

// Item 6: the width comes from the shape; a per-tensor figure in the configuration that contradicts it is refused.
void check_exl3_stated_bits(std::string_view where, int bits, double stated);

// Inputs or outputs [first, first + count) as a view of their own; both multiples of 128 (3.6). Partial sums over
// inputs add up to the whole layer's y; a slice of inputs carries no bias, its owner adds it once.
Exl3Matrix exl3_inputs(const Exl3Matrix& m, int64_t first, int64_t count);
Exl3Matrix exl3_outputs(const Exl3Matrix& m, int64_t first, int64_t count);

// suh and svh as fp32, or ±1 from the legacy signs.
std::vector<float> exl3_input_scales(const Exl3Matrix& m);
std::vector<float> exl3_output_scales(const Exl3Matrix& m);

// The decoded trellis Wq, row-major [in, out].
std::vector<float> exl3_decode(const Exl3Matrix& m);

// The dense W, row-major [in, out]: everything after the decoding in fp64, and the same in fp32.
std::vector<double> exl3_dense(const Exl3Matrix& m);
std::vector<float> exl3_dense_f32(const Exl3Matrix& m);

// y = xW + bias in fp64 by the run-time path (transforms around Wq), x of in_features values.
std::vector<double> exl3_multiply(const Exl3Matrix& m, std::span<const double> x);

// Item 12. A correctly read mcg matrix of 3 or more bits decodes to an RMS well below the codebook's own 1.2441; equal
// to it within 0.5 % means uniformly random states: wrong width, word order or window. Empty where nothing is wrong,
// else one sentence. Needs about 65,536 weights to be told from chance; smaller matrices are not judged.
std::string exl3_suspicion(const Exl3Matrix& m);

}  // namespace tandem::quant
