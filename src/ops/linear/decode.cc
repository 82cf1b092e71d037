// Weights as fp32, by the reference arithmetic of quant/.
#include "ops/linear/decode.h"

#include <cstring>
#include <span>

#include "quant/exl3_matrix.h"
#include "quant/exl3_tile.h"
#include "quant/nvfp4.h"

namespace tandem::ops {
namespace {

void decode_plain_row(const Matrix& m, int64_t row, float* out) {
  const int64_t bytes = m.format == WeightFormat::f32 ? 4 : 2;
  const std::byte* stored = m.data + row * m.stride() * bytes;
  for (int64_t i = 0; i < m.in_features; ++i) {
    uint32_t bits = 0;  // of BF16 the upper half
    std::memcpy(reinterpret_cast<std::byte*>(&bits) + 4 - bytes, stored + i * bytes, static_cast<size_t>(bytes));
    std::memcpy(out + i, &bits, 4);
  }
}

void decode_fp8_row(const Matrix& m, int64_t row, float* out) {
  const int64_t first_scale = (m.block_row + row) / quant::fp8_block * quant::fp8_blocks(m.stride());
  for (int64_t i = 0; i < m.in_features; ++i) {
    const int64_t block = first_scale + (m.first_column + i) / quant::fp8_block;
    out[i] = quant::e4m3_values[static_cast<uint8_t>(m.data[row * m.stride() + i])] *
             quant::fp8_scale(m.block_scales, m.scale_format, block);
  }
}

void decode_nvfp4_row(const Matrix& m, int64_t row, float* out) {
  const int64_t first = row * m.stride();
  quant::nvfp4_decode_run(m.data + first / 2, m.block_scales + first / quant::nvfp4_group, m.outer_scale, m.in_features,
                          m.high_nibble_first ? quant::NibbleOrder::high_first : quant::NibbleOrder::low_first, out);
}

std::vector<float> decode_exl3(const Matrix& m) {
  const auto padded = [](int64_t size) { return (size + exl3_block - 1) / exl3_block * exl3_block; };
  const Exl3Parts& parts = m.exl3;
  quant::Exl3Matrix stored;
  stored.bits = parts.bits;
  stored.codebook = parts.codebook;
  stored.in_features = padded(m.in_features);
  stored.out_features = padded(m.out_features);
  stored.tile_stride = parts.tile_stride;
  const int64_t rows = stored.in_features / quant::exl3_tile, columns = stored.out_features / quant::exl3_tile;
  stored.trellis = {
      m.data, static_cast<size_t>(((rows - 1) * parts.tile_stride + columns) * quant::exl3_tile_bytes(parts.bits))};
  const auto vector = [](const std::byte* data, bool signs, int64_t count) {
    return std::span(data, static_cast<size_t>(signs ? count / 8 : 2 * count));
  };
  (parts.suh_is_signs ? stored.su : stored.suh) = vector(parts.suh, parts.suh_is_signs, stored.in_features);
  (parts.svh_is_signs ? stored.sv : stored.svh) = vector(parts.svh, parts.svh_is_signs, stored.out_features);
  const std::vector<float> dense = quant::exl3_dense_f32(stored);  // [in, out]
  std::vector<float> values(static_cast<size_t>(m.out_features * m.in_features));
  for (int64_t o = 0; o < m.out_features; ++o)
    for (int64_t i = 0; i < m.in_features; ++i)
      values[static_cast<size_t>(o * m.in_features + i)] = dense[static_cast<size_t>(i * stored.out_features + o)];
  return values;
}

}  // namespace

std::vector<float> decode(const Matrix& m) {
  if (m.out_features == 0 || m.in_features == 0) return {};
  if (m.format == WeightFormat::exl3) return decode_exl3(m);
  std::vector<float> values(static_cast<size_t>(m.out_features * m.in_features));
  for (int64_t row = 0; row < m.out_features; ++row) {
    float* out = values.data() + row * m.in_features;
    switch (m.format) {
      case WeightFormat::f32:
      case WeightFormat::bf16: decode_plain_row(m, row, out); break;
      case WeightFormat::fp8_block: decode_fp8_row(m, row, out); break;
      case WeightFormat::nvfp4: decode_nvfp4_row(m, row, out); break;
      case WeightFormat::exl3: break;  // above
    }
  }
  return values;
}

}  // namespace tandem::ops
