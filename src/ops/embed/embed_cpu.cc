// Copies embedding rows into the streams.
#include <cstring>

#include "base/error.h"
#include "ops/embed/embed.h"

namespace tandem::ops {
namespace {

void check_format(const Matrix& table) {
  if (table.format == WeightFormat::fp8_block) {
    throw Error(ErrorCode::bad_file, "embed_tokens.weight", "stored as FP8", "BF16 or F32");
  }
}

void copy_row(const Matrix& table, int64_t index, float* out) {
  const int64_t hidden = table.in_features;
  if (table.format == WeightFormat::f32) {
    std::memcpy(out, table.data + index * hidden * 4, static_cast<size_t>(hidden) * 4);
    return;
  }
  const std::byte* stored = table.data + index * hidden * 2;
  for (int64_t d = 0; d < hidden; ++d) {
    uint16_t half;
    std::memcpy(&half, stored + 2 * d, 2);
    const uint32_t bits = static_cast<uint32_t>(half) << 16;
    std::memcpy(out + d, &bits, 4);
  }
}

}  // namespace

void embed(const Matrix& table, std::span<const int32_t> tokens, int64_t copies, float* out, int64_t out_stride) {
  const int64_t hidden = table.in_features;
  check_format(table);
  for (size_t r = 0; r < tokens.size(); ++r) {
    float* row = out + static_cast<int64_t>(r) * out_stride;
    if (tokens[r] < 0 || tokens[r] >= table.out_features)
      throw Error(ErrorCode::internal, "embed", "token id out of range");
    copy_row(table, tokens[r], row);
    for (int64_t c = 1; c < copies; ++c)
      std::memcpy(row + c * hidden, row, static_cast<size_t>(hidden) * sizeof(float));
  }
}

void embed_own(const Matrix& table, int64_t first_token, std::span<const int32_t> tokens, float* out) {
  check_format(table);
  for (size_t r = 0; r < tokens.size(); ++r) {
    const int64_t index = tokens[r] - first_token;
    if (index >= 0 && index < table.out_features)
      copy_row(table, index, out + static_cast<int64_t>(r) * table.in_features);
  }
}

}  // namespace tandem::ops
