// fuzz-room: quant
// Any tensors under one prefix as an NVFP4 weight: either refused with an Error that names one of them or read into a
// matrix whose values are numbers. Then the same bytes as cache records of every kind.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "coded_input.h"
#include "quant/cache_records.h"
#include "quant/nvfp4.h"

namespace {

using tandem::quant::cache_record;
using tandem::quant::CacheRecord;
using tandem::quant::decode_record;
using tandem::quant::is_nvfp4;
using tandem::quant::NibbleOrder;
using tandem::quant::nvfp4_decode_rows;
using tandem::quant::Nvfp4Matrix;
using tandem::quant::read_nvfp4;
using tandem::quant::record_is_sound;
using tandem::quant::RecordKind;
using tandem::quant::TensorFacts;

// What passes record_is_sound must hold no NaN; what does not must still be safe to read.
void read_records(const uint8_t* data, size_t size) {
  for (const RecordKind kind :
       {RecordKind::latent_fp8, RecordKind::latent_fp8_row, RecordKind::latent_nvfp4, RecordKind::index_fp8})
    for (const int64_t width : {16, 128, 512}) {
      const CacheRecord record = cache_record(kind, width);
      if (size < static_cast<size_t>(record.bytes)) continue;
      // Copies of their exact length, so that a read beyond them is seen.
      const auto* bytes = reinterpret_cast<const std::byte*>(data);
      const std::vector<std::byte> plane0(bytes, bytes + record.plane_bytes[0]);
      const std::vector<std::byte> plane1(bytes + record.plane_bytes[0], bytes + record.bytes);
      std::vector<float> row(width);
      decode_record(record, plane0.data(), plane1.data(), row.data());
      if (!record_is_sound(record, plane0.data(), plane1.data())) continue;
      for (const float value : row)
        if (std::isnan(value)) std::abort();
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr std::string_view names[] = {
      "weight",      "weight_scale",       "weight_scale_2", "weight_packed", "weight_global_scale",
      "input_scale", "input_global_scale", "bias",           "other"};
  constexpr std::string_view dtypes[] = {"U8", "F8_E4M3", "F32", "BF16"};
  read_records(data, size);
  tandem::fuzz::Input input(data, size);
  const int64_t rows = input.byte(), columns = input.number();
  const NibbleOrder order = input.byte() % 2 == 0 ? NibbleOrder::low_first : NibbleOrder::high_first;
  const std::vector<TensorFacts> tensors = input.tensors(names, dtypes, 6);
  is_nvfp4(tensors);
  try {
    const Nvfp4Matrix m = read_nvfp4("layer", tensors, rows, columns, order);
    std::vector<float> values(rows * columns);
    nvfp4_decode_rows(m, 0, rows, values.data());
    for (const float value : values)
      if (std::isnan(value)) std::abort();
  } catch (const tandem::Error& error) {
    if (error.code() != tandem::ErrorCode::bad_file || error.where().rfind("layer.", 0) != 0) std::abort();
  }
  return 0;
}
