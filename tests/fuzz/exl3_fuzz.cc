// fuzz-room: quant
// Any tensors under one prefix as an EXL3 layer: either refused with an Error that names one of them or read into a
// matrix that decodes to finite numbers inside its data.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "coded_input.h"
#include "quant/exl3_matrix.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using tandem::quant::exl3_decode;
  using tandem::quant::exl3_multiply;
  using tandem::quant::exl3_suspicion;
  using tandem::quant::Exl3Matrix;
  using tandem::quant::read_exl3;
  using tandem::quant::TensorFacts;
  constexpr std::string_view names[] = {"trellis", "suh", "svh", "su", "sv", "mcg", "mul1", "bias", "scale", "other"};
  constexpr std::string_view dtypes[] = {"I16", "F16", "I32", "U16", "U32", "F32"};
  tandem::fuzz::Input input(data, size);
  const int64_t in = input.number(), out = input.number();
  const std::vector<TensorFacts> tensors = input.tensors(names, dtypes, 7);
  try {
    std::vector<std::string> warnings;
    const Exl3Matrix m = read_exl3("layer", tensors, in, out, &warnings);
    if (m.in_features < in || m.out_features < out || m.bits < 1 || m.bits > 8) std::abort();
    for (const float value : exl3_decode(m))
      if (!(std::abs(value) < 4)) std::abort();
    for (const double value : exl3_multiply(m, std::vector<double>(m.in_features, 1.0)))
      if (!std::isfinite(value)) std::abort();
    exl3_suspicion(m);
  } catch (const tandem::Error& error) {
    if (error.code() != tandem::ErrorCode::bad_file || error.where().rfind("layer.", 0) != 0) std::abort();
  }
  return 0;
}
