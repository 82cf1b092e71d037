// fuzz-room: quant
// Any tensor as the block scales of an FP8 weight of any shape: either refused with an Error that names it or read as
// scales of which every block has one that is a finite number.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "coded_input.h"
#include "quant/fp8.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using tandem::quant::fp8_blocks;
  using tandem::quant::Fp8Scales;
  using tandem::quant::TensorFacts;
  constexpr std::string_view names[] = {"weight_scale_inv", "weight_scale"};
  constexpr std::string_view dtypes[] = {"F32", "BF16", "F16", "F8_E4M3", "I32"};
  tandem::fuzz::Input input(data, size);
  const std::vector<int64_t> shape = input.shape();
  const std::vector<TensorFacts> tensors = input.tensors(names, dtypes, 2);
  for (const TensorFacts& tensor : tensors) {
    try {
      const Fp8Scales scales = read_fp8_scales("layer", tensor, shape);
      int64_t matrices = 1;
      for (size_t i = 0; i + 2 < shape.size(); ++i) matrices *= shape[i];
      if (scales.matrix != fp8_blocks(shape[shape.size() - 2]) * fp8_blocks(shape.back())) std::abort();
      for (int64_t i = 0; i < matrices * scales.matrix; ++i) {
        const float scale = tandem::quant::fp8_scale(scales.data, scales.format, i);
        if (!std::isfinite(scale) || scale < 0) std::abort();
      }
    } catch (const tandem::Error& error) {
      if (error.code() != tandem::ErrorCode::bad_file || error.where().rfind("layer.", 0) != 0) std::abort();
    }
  }
  return 0;
}
