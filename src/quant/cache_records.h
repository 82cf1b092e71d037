// What one row of the caches looks like in memory, by storage type: the one definition that the writer, the reader, the
// memory planner and docs/internals/formats.md share (spec/quantization.md 5, spec/model.md 4.6).
//
//   latent_fp8       width e4m3 | fp32 scale of each 128 values           scale = max |x| / 448           528 B for 512
//   latent_fp8_row   width e4m3 | one fp32 scale, a power of two          2^ceil(log2(max |x| / 448))     516 B for 512
//   latent_nvfp4     width/2 bytes of e2m1 pairs | an e4m3 for each 16 | 4 zero bytes | fp32 outer | 8 zero bytes   304
//   B
//                    outer = max |x| / 2688 of the row, or a calibrated power of two of the layer
//   index_fp8        width e4m3, and in a plane of its own one fp32 scale, a power of two     128 + 4 B for 128
//
// Scales are stored as they are and read as they are: a reader never rounds one to a power of two (spec/quantization.md
// 5.3, the reader's trap). Division by a scale is one fp32 division, a value read is one fp32 product (NVFP4: nvfp4.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace tandem::quant {

enum class RecordKind : uint8_t { f32, bf16, latent_fp8, latent_fp8_row, latent_nvfp4, index_fp8 };

std::string_view name_of(RecordKind kind);  // "f32", "latent_fp8", …

struct CacheRecord {
  RecordKind kind = RecordKind::f32;
  int64_t width = 0;  // values of a row
  int64_t bytes = 0;  // of a row, all planes together
  // Rows of a plane lie side by side. Plane 0 is the whole record, or the codes where scales have plane 1.
  int64_t plane_bytes[2] = {0, 0};
};

// Throws Error(usage) for a width below 1 or, for index_fp8, one that is not a power of two (the rotation needs one).
// Allocates nothing.
CacheRecord cache_record(RecordKind kind, int64_t width);

// The parts of a record in the order of their bytes, for tables: {"e4m3 codes", plane 0, offset 0, 512 bytes}, ….
struct RecordPart {
  std::string_view what;
  int plane;
  int64_t offset, bytes;
};
std::vector<RecordPart> parts_of(const CacheRecord& record);

// row (fp32, `width` values) to the record's planes; plane1 is nullptr where the record has one plane. outer_scale: for
// latent_nvfp4 the calibrated scale of the layer, or 0 to take it from the row; unused otherwise. index_fp8 rotates the
// row first. Allocates nothing. Throws Error(internal), with nothing written, for a row that is not finite and a
// type whose codes could not say so (f32 and bf16 keep it as it is).
void encode_record(const CacheRecord& record, const float* row, float outer_scale, std::byte* plane0,
                   std::byte* plane1);

// The record as fp32, `width` values; index_fp8 in the rotated basis, where queries that went through rotate_index have
// the same products. Any bytes are safe to read.
void decode_record(const CacheRecord& record, const std::byte* plane0, const std::byte* plane1, float* row);

// Whether bytes from a file can be such a record: no NaN code, scales finite and above 0 (powers of two where they must
// be), reserved bytes zero.
bool record_is_sound(const CacheRecord& record, const std::byte* plane0, const std::byte* plane1);

// An index key or an index query's head, in place: bf16, orthonormal Walsh–Hadamard in fp32, bf16 (spec/model.md 4.6).
// width is a power of two.
void rotate_index(float* v, int64_t width);

// A rotated vector as e4m3 codes and scale = 2^ceil(log2(max(max |v|, 1e-4) / 448)). Returns the scale. Queries use it
// too: their scale goes into the head's weight. Throws Error(internal) for a vector that is not finite.
float quantize_rotated(const float* v, int64_t width, std::byte* codes);

// The calibrated outer scale of a layer whose largest |latent| is absolute_max: 2^ceil(log2(absolute_max / 2688))
// (spec/quantization.md 5.4). absolute_max finite and above 0, else Error(bad_file) that names `where`.
float nvfp4_calibrated_scale(float absolute_max, std::string_view where);

}  // namespace tandem::quant
