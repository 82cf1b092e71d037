// Writers and readers of the records that cache_records.h describes.
#include "quant/cache_records.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>

#include "base/error.h"
#include "quant/fp8.h"
#include "quant/hadamard.h"
#include "quant/half.h"
#include "quant/nvfp4.h"

namespace tandem::quant {
namespace {

constexpr int64_t tile = 128;  // values that share a scale in latent_fp8
constexpr int64_t reserved_bytes = 4, padding_bytes = 8;
constexpr float index_floor = 1e-4f;

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t tiles(int64_t width) { return ceil_div(width, tile); }

// Offsets inside a latent_nvfp4 record.
struct Nvfp4Layout {
  int64_t scales, reserved, outer, padding, bytes;
  explicit Nvfp4Layout(int64_t width)
      : scales(ceil_div(width, 2)),
        reserved(scales + ceil_div(width, nvfp4_group)),
        outer(reserved + reserved_bytes),
        padding(outer + 4),
        bytes(padding + padding_bytes) {}
};

float load_float(const std::byte* from) {
  float value;
  std::memcpy(&value, from, 4);
  return value;
}

void store_float(std::byte* to, float value) { std::memcpy(to, &value, 4); }

void encode_e4m3(const float* x, int64_t n, float scale, std::byte* codes) {
  for (int64_t i = 0; i < n; ++i) codes[i] = std::byte{e4m3_encode(x[i] / scale)};
}

void decode_e4m3(const std::byte* codes, int64_t n, float scale, float* x) {
  for (int64_t i = 0; i < n; ++i) x[i] = e4m3_values[static_cast<uint8_t>(codes[i])] * scale;
}

bool codes_are_numbers(const std::byte* codes, int64_t n) {
  return std::none_of(codes, codes + n, [](std::byte code) { return (static_cast<int>(code) & 0x7f) == 0x7f; });
}

bool scale_is_sound(float scale, bool power_of_two) {
  return std::isfinite(scale) && scale >= smallest_scale &&
         (!power_of_two || (std::bit_cast<uint32_t>(scale) & 0x7fffffu) == 0);
}

bool is_zero(const std::byte* bytes, int64_t n) {
  return std::all_of(bytes, bytes + n, [](std::byte byte) { return byte == std::byte{0}; });
}

void encode_latent_fp8(int64_t width, const float* row, std::byte* out) {
  absolute_max(row, width, "latent row");  // refused as a whole, before anything is written
  for (int64_t first = 0; first < width; first += tile) {
    const int64_t count = std::min(width - first, tile);
    const float scale = scale_for(absolute_max(row + first, count, "latent row"), e4m3_max);
    encode_e4m3(row + first, count, scale, out + first);
    store_float(out + width + first / tile * 4, scale);
  }
}

void encode_latent_fp8_row(int64_t width, const float* row, std::byte* out) {
  const float scale = power_of_two_at_least(scale_for(absolute_max(row, width, "latent row"), e4m3_max));
  encode_e4m3(row, width, scale, out);
  store_float(out + width, scale);
}

void encode_latent_nvfp4(int64_t width, const float* row, float outer_scale, std::byte* out) {
  const Nvfp4Layout layout(width);
  const float largest = absolute_max(row, width, "latent row");
  const float outer = outer_scale > 0 ? outer_scale : scale_for(largest, nvfp4_range);
  std::fill(out + layout.reserved, out + layout.bytes, std::byte{0});
  nvfp4_encode_run(row, width, outer, out, out + layout.scales);
  store_float(out + layout.outer, outer);
}

void encode_index(int64_t width, const float* row, std::byte* codes, std::byte* scale) {
  // The rotation needs a copy of the row; keys are narrow, so pieces of the stack are enough.
  constexpr int64_t widest = 1024;
  float rotated[widest];
  absolute_max(row, width, "index key");
  std::copy(row, row + width, rotated);
  rotate_index(rotated, width);
  store_float(scale, quantize_rotated(rotated, width, codes));
}

}  // namespace

std::string_view name_of(RecordKind kind) {
  switch (kind) {
    case RecordKind::f32: return "f32";
    case RecordKind::bf16: return "bf16";
    case RecordKind::latent_fp8: return "latent_fp8";
    case RecordKind::latent_fp8_row: return "latent_fp8_row";
    case RecordKind::latent_nvfp4: return "latent_nvfp4";
    case RecordKind::index_fp8: return "index_fp8";
  }
  return "";
}

namespace {

// Calls part(RecordPart) for each, in order; without a list of them, as rows are addressed by what this says.
template <typename Part>
void for_parts(const CacheRecord& record, const Part& part) {
  const int64_t width = record.width;
  switch (record.kind) {
    case RecordKind::f32: part(RecordPart{"fp32 values", 0, 0, 4 * width}); return;
    case RecordKind::bf16: part(RecordPart{"bf16 values", 0, 0, 2 * width}); return;
    case RecordKind::latent_fp8:
      part(RecordPart{"e4m3 codes", 0, 0, width});
      part(RecordPart{"fp32 scales of 128 values", 0, width, 4 * tiles(width)});
      return;
    case RecordKind::latent_fp8_row:
      part(RecordPart{"e4m3 codes", 0, 0, width});
      part(RecordPart{"fp32 scale of the row, a power of two", 0, width, 4});
      return;
    case RecordKind::latent_nvfp4: {
      const Nvfp4Layout layout(width);
      part(RecordPart{"e2m1 codes, two a byte, even index low", 0, 0, layout.scales});
      part(RecordPart{"e4m3 scales of 16 values", 0, layout.scales, layout.reserved - layout.scales});
      part(RecordPart{"reserved, zero", 0, layout.reserved, reserved_bytes});
      part(RecordPart{"fp32 outer scale", 0, layout.outer, 4});
      part(RecordPart{"padding, zero", 0, layout.padding, padding_bytes});
      return;
    }
    case RecordKind::index_fp8:
      part(RecordPart{"e4m3 codes", 0, 0, width});
      part(RecordPart{"fp32 scale, a power of two", 1, 0, 4});
      return;
  }
}

}  // namespace

std::vector<RecordPart> parts_of(const CacheRecord& record) {
  std::vector<RecordPart> parts;
  for_parts(record, [&parts](const RecordPart& part) { parts.push_back(part); });
  return parts;
}

CacheRecord cache_record(RecordKind kind, int64_t width) {
  constexpr int64_t widest = 1 << 20;
  const bool index = kind == RecordKind::index_fp8;
  if (width < 1 || width > widest || (index && (width > 1024 || !std::has_single_bit(static_cast<uint64_t>(width)))))
    throw Error(ErrorCode::usage, "cache type " + std::string(name_of(kind)), std::to_string(width) + " values a row",
                index ? "a power of two up to 1024" : "1 to 1048576");
  CacheRecord record{kind, width};
  for_parts(record, [&record](const RecordPart& part) {
    record.bytes += part.bytes;
    record.plane_bytes[part.plane] += part.bytes;
  });
  return record;
}

void encode_record(const CacheRecord& record, const float* row, float outer_scale, std::byte* plane0,
                   std::byte* plane1) {
  const int64_t width = record.width;
  switch (record.kind) {
    case RecordKind::f32: std::memcpy(plane0, row, 4 * width); return;
    case RecordKind::bf16:
      for (int64_t i = 0; i < width; ++i) {
        const auto bits = static_cast<uint16_t>(std::bit_cast<uint32_t>(round_to_bf16(row[i])) >> 16);
        std::memcpy(plane0 + 2 * i, &bits, 2);
      }
      return;
    case RecordKind::latent_fp8: return encode_latent_fp8(width, row, plane0);
    case RecordKind::latent_fp8_row: return encode_latent_fp8_row(width, row, plane0);
    case RecordKind::latent_nvfp4: return encode_latent_nvfp4(width, row, outer_scale, plane0);
    case RecordKind::index_fp8: return encode_index(width, row, plane0, plane1);
  }
}

void decode_record(const CacheRecord& record, const std::byte* plane0, const std::byte* plane1, float* row) {
  const int64_t width = record.width;
  switch (record.kind) {
    case RecordKind::f32: std::memcpy(row, plane0, 4 * width); return;
    case RecordKind::bf16:
      for (int64_t i = 0; i < width; ++i) {
        uint16_t bits;
        std::memcpy(&bits, plane0 + 2 * i, 2);
        row[i] = std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
      }
      return;
    case RecordKind::latent_fp8:
      for (int64_t first = 0; first < width; first += tile)
        decode_e4m3(plane0 + first, std::min(width - first, tile), load_float(plane0 + width + first / tile * 4),
                    row + first);
      return;
    case RecordKind::latent_fp8_row: return decode_e4m3(plane0, width, load_float(plane0 + width), row);
    case RecordKind::latent_nvfp4: {
      const Nvfp4Layout layout(width);
      return nvfp4_decode_run(plane0, plane0 + layout.scales, load_float(plane0 + layout.outer), width,
                              NibbleOrder::low_first, row);
    }
    case RecordKind::index_fp8: return decode_e4m3(plane0, width, load_float(plane1), row);
  }
}

bool record_is_sound(const CacheRecord& record, const std::byte* plane0, const std::byte* plane1) {
  const int64_t width = record.width;
  switch (record.kind) {
    case RecordKind::f32:
    case RecordKind::bf16: return true;  // what was written is what is read; rows are checked when they are written
    case RecordKind::latent_fp8:
      for (int64_t i = 0; i < tiles(width); ++i)
        if (!scale_is_sound(load_float(plane0 + width + 4 * i), false)) return false;
      return codes_are_numbers(plane0, width);
    case RecordKind::latent_fp8_row:
      return scale_is_sound(load_float(plane0 + width), true) && codes_are_numbers(plane0, width);
    case RecordKind::latent_nvfp4: {
      const Nvfp4Layout layout(width);
      const std::byte* scales = plane0 + layout.scales;
      return scale_is_sound(load_float(plane0 + layout.outer), false) &&
             std::all_of(scales, plane0 + layout.reserved, [](std::byte code) { return code < std::byte{0x7f}; }) &&
             is_zero(plane0 + layout.reserved, reserved_bytes) && is_zero(plane0 + layout.padding, padding_bytes);
    }
    case RecordKind::index_fp8: return scale_is_sound(load_float(plane1), true) && codes_are_numbers(plane0, width);
  }
  return false;
}

void rotate_index(float* v, int64_t width) {
  for (int64_t i = 0; i < width; ++i) v[i] = round_to_bf16(v[i]);
  hadamard(v, width);
  for (int64_t i = 0; i < width; ++i) v[i] = round_to_bf16(v[i]);
}

float quantize_rotated(const float* v, int64_t width, std::byte* codes) {
  const float largest = std::max(absolute_max(v, width, "index key"), index_floor);
  const float scale = power_of_two_at_least(largest / e4m3_max);
  encode_e4m3(v, width, scale, codes);
  return scale;
}

float nvfp4_calibrated_scale(float absolute_max, std::string_view where) {
  if (!std::isfinite(absolute_max) || absolute_max <= 0)
    throw Error(ErrorCode::bad_file, std::string(where), std::to_string(absolute_max),
                "a finite largest magnitude above 0");
  return power_of_two_at_least(scale_for(absolute_max, nvfp4_range));
}

}  // namespace tandem::quant
