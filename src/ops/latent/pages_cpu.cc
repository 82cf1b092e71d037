// Rows of a plane from and to fp32. Plain values are stored here, where pieces of rows are; other records by quant/.
#include <bit>
#include <cstring>

#include "ops/latent/pages.h"
#include "ops/simd/kernels.h"

namespace tandem::ops {
namespace {

// Nearest bf16, ties to even; a NaN stays one, quiet, even if its payload lies in the lower half only.
uint16_t nearest_bf16(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(bits >> 16 | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

}  // namespace

void PagedPlane::store(int64_t index, const float* values) const {
  if (is_plain(element)) return store(index, 0, width, values);
  const quant::CacheRecord stored = record();
  const int64_t at = place(index);
  quant::encode_record(stored, values, outer_scale, data + at * stored.plane_bytes[0],
                       scales + at * stored.plane_bytes[1]);
}

void PagedPlane::store(int64_t index, int64_t first, int64_t count, const float* values) const {
  std::byte* to = row(index) + first * element_bytes(element);
  if (element == CacheElement::f32) {
    std::memcpy(to, values, static_cast<size_t>(count) * sizeof(float));
    return;
  }
  for (int64_t d = 0; d < count; ++d) {
    const uint16_t half = nearest_bf16(values[d]);
    std::memcpy(to + 2 * d, &half, 2);
  }
}

void PagedPlane::load(int64_t index, float* values) const { load_place(place(index), values); }

void PagedPlane::load_place(int64_t at, float* values) const {
  const quant::CacheRecord stored = record();
  const std::byte* from = data + at * stored.plane_bytes[0];
  if (element == CacheElement::bf16) return kernels().decode_bf16(from, width, values);
  quant::decode_record(stored, from, scales + at * stored.plane_bytes[1], values);
}

}  // namespace tandem::ops
