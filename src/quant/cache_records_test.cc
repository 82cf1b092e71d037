// Cache records against spec/quantization.md 5.3, 5.4 and 9 (14), and spec/model.md 4.6.
#include "quant/cache_records.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "quant/fp8.h"
#include "quant/hadamard.h"
#include "quant/nvfp4.h"
#include "quant/test_golden.h"

namespace tandem::quant::cache_records_test {
namespace {

constexpr RecordKind all_kinds[] = {RecordKind::f32,          RecordKind::bf16,
                                    RecordKind::latent_fp8,   RecordKind::latent_fp8_row,
                                    RecordKind::latent_nvfp4, RecordKind::index_fp8};

// A row as it is stored.
struct Stored {
  CacheRecord record;
  std::vector<std::byte> plane0, plane1;

  Stored(RecordKind kind, const std::vector<float>& row, float outer_scale = 0)
      : record(cache_record(kind, row.size())), plane0(record.plane_bytes[0]), plane1(record.plane_bytes[1]) {
    encode_record(record, row.data(), outer_scale, plane0.data(), plane1.data());
  }
  std::vector<float> read() const {
    std::vector<float> row(record.width);
    decode_record(record, plane0.data(), plane1.data(), row.data());
    return row;
  }
  float float_at(int64_t offset) const {
    float value;
    std::memcpy(&value, plane0.data() + offset, 4);
    return value;
  }
  int code(int64_t offset) const { return static_cast<int>(plane0[offset]); }
  bool sound() const { return record_is_sound(record, plane0.data(), plane1.data()); }
};

TEST(CacheRecord, Bytes) {
  EXPECT_EQ(cache_record(RecordKind::f32, 512).bytes, 2048);
  EXPECT_EQ(cache_record(RecordKind::bf16, 512).bytes, 1024);
  EXPECT_EQ(cache_record(RecordKind::latent_fp8, 512).bytes, 528);
  EXPECT_EQ(cache_record(RecordKind::latent_fp8_row, 512).bytes, 516);
  EXPECT_EQ(cache_record(RecordKind::latent_nvfp4, 512).bytes, 304);
  const CacheRecord index = cache_record(RecordKind::index_fp8, 128);
  EXPECT_EQ(index.bytes, 132);
  EXPECT_EQ(index.plane_bytes[0], 128);
  EXPECT_EQ(index.plane_bytes[1], 4);
}

TEST(CacheRecord, PartsFollowEachOtherAndCoverTheRecord) {
  for (const RecordKind kind : all_kinds)
    for (const int64_t width : {1, 16, 32, 128, 512}) {
      const CacheRecord record = cache_record(kind, width);
      int64_t end[2] = {0, 0};
      for (const RecordPart& part : parts_of(record)) {
        EXPECT_EQ(part.offset, end[part.plane]) << name_of(kind);
        end[part.plane] += part.bytes;
      }
      EXPECT_EQ(end[0], record.plane_bytes[0]);
      EXPECT_EQ(end[1], record.plane_bytes[1]);
      EXPECT_EQ(end[0] + end[1], record.bytes);
    }
}

TEST(CacheRecord, WidthsThatCannotBeAreRefused) {
  EXPECT_THROW(cache_record(RecordKind::latent_fp8, 0), Error);
  EXPECT_THROW(cache_record(RecordKind::bf16, INT64_MAX), Error);
  EXPECT_THROW(cache_record(RecordKind::index_fp8, 96), Error);
  EXPECT_THROW(cache_record(RecordKind::index_fp8, 2048), Error);
}

TEST(LatentFp8, WorkedExample) {
  std::vector<float> row(512);
  row[0] = 1.2345f, row[1] = -0.031f, row[2] = 3.5f, row[3] = 0.0004f;
  row[511] = -7.0f;  // another tile: its scale changes nothing in the first
  const Stored stored(RecordKind::latent_fp8, row);
  EXPECT_EQ(stored.float_at(512), 0.0078125f);
  EXPECT_EQ(stored.float_at(516), std::numeric_limits<float>::min());
  EXPECT_EQ(stored.float_at(524), 0.015625f);
  EXPECT_EQ(stored.code(0), 0x72);
  EXPECT_EQ(stored.code(1), 0xC8);
  EXPECT_EQ(stored.code(2), 0x7E);
  EXPECT_EQ(stored.code(3), 0x15);
  const std::vector<float> read = stored.read();
  EXPECT_EQ(read[0], 1.25f);
  EXPECT_EQ(read[1], -0.03125f);
  EXPECT_EQ(read[2], 3.5f);
  EXPECT_EQ(read[3], 0.000396728515625f);
  EXPECT_EQ(read[4], 0);
  EXPECT_EQ(read[511], -7.0f);
}

TEST(LatentFp8, RowVariantHasOnePowerOfTwo) {
  std::vector<float> row(512);
  row[0] = 1.2345f, row[300] = -3.6f;
  const Stored stored(RecordKind::latent_fp8_row, row);
  EXPECT_EQ(stored.float_at(512), 0.015625f);  // 3.6 / 448 = 0.00804, the next power of two
  EXPECT_EQ(stored.read()[0], 1.25f);
  EXPECT_EQ(stored.read()[300], -3.5f);
  row[300] = -3.5f;  // exactly a power of two: not doubled
  EXPECT_EQ(Stored(RecordKind::latent_fp8_row, row).float_at(512), 0.0078125f);
}

TEST(LatentFp8, ScalesAreReadAsTheyAre) {
  // A reader that rounds scales to powers of two would give half of this.
  std::vector<float> row(512, 448 * 1.999f);
  EXPECT_NEAR(Stored(RecordKind::latent_fp8, row).read()[0], 448 * 1.999f, 1e-3);
}

TEST(LatentNvfp4, WorkedExample) {
  std::vector<float> row = {0.11f, -0.52f, 0.9f,   1.37f, -2.2f, 0.03f,  0.75f, -0.26f,
                            0,     0.61f,  -1.05f, 0.4f,  3.1f,  -0.18f, 0.33f, -0.7f};
  row.resize(512);
  const Stored stored(RecordKind::latent_nvfp4, row, 0x1p-9f);
  const uint8_t codes[] = {0xA0, 0x54, 0x0E, 0x93, 0x20, 0x2C, 0x97, 0xB1};
  EXPECT_EQ(std::memcmp(stored.plane0.data(), codes, 8), 0);
  EXPECT_EQ(stored.code(256), 0x78);
  EXPECT_EQ(stored.code(257), 0);
  EXPECT_EQ(stored.float_at(288), 0);
  EXPECT_EQ(stored.float_at(292), 0x1p-9f);
  EXPECT_EQ(stored.float_at(296), 0);
  EXPECT_EQ(stored.float_at(300), 0);
  EXPECT_EQ(stored.read()[12], 3.0f);
}

TEST(LatentNvfp4, ADynamicScaleUsesTheWholeRange) {
  std::vector<float> row = gaussian_values(512, 4);
  row[77] = 5.25f;
  const Stored stored(RecordKind::latent_nvfp4, row);
  EXPECT_EQ(stored.float_at(292), 5.25f / 2688);
  EXPECT_EQ(stored.code(256 + 77 / 16), 0x7e);
  EXPECT_EQ(stored.read()[77], 5.25f);
}

TEST(LatentNvfp4, ValuesAboveTheCalibratedRangeSaturate) {
  std::vector<float> row(512, 1.0f);
  row[3] = -100;
  EXPECT_EQ(Stored(RecordKind::latent_nvfp4, row, 0x1p-9f).read()[3], -2688 * 0x1p-9f);
}

TEST(LatentNvfp4, CalibrationTable) {
  // Layers 3, 7, …, 43 and 45 of spec/quantization.md 5.4.
  const float largest[] = {2.5f,     2.46875f, 3.09375f, 4.1875f,  4.84375f, 5.03125f,
                           4.21875f, 3.90625f, 4.5f,     4.21875f, 4.15625f, 4.09375f};
  for (int i = 0; i < 12; ++i) EXPECT_EQ(nvfp4_calibrated_scale(largest[i], "layer"), i < 2 ? 0x1p-10f : 0x1p-9f) << i;
  EXPECT_EQ(nvfp4_calibrated_scale(2688, "layer"), 1);
  for (const float bad : {0.0f, -1.0f, std::nanf(""), std::numeric_limits<float>::infinity()})
    EXPECT_THROW(nvfp4_calibrated_scale(bad, "layer 3"), Error);
}

// Relative L2 error over 400 Gaussian rows of 512.
double gaussian_error(RecordKind kind, float outer_scale) {
  std::vector<float> all, read;
  for (uint32_t seed = 0; seed < 400; ++seed) {
    const std::vector<float> row = gaussian_values(512, seed * 7919 + 1), out = Stored(kind, row, outer_scale).read();
    all.insert(all.end(), row.begin(), row.end());
    read.insert(read.end(), out.begin(), out.end());
  }
  return relative_l2(read, all);
}

TEST(CacheRecord, ErrorsOnGaussianRowsAreTheFormatsOwn) {
  EXPECT_NEAR(gaussian_error(RecordKind::latent_fp8, 0), 0.0257, 0.0005);
  const double row = gaussian_error(RecordKind::latent_fp8_row, 0);
  EXPECT_NEAR(row * row, 7.05e-4, 0.3e-4);
  EXPECT_NEAR(gaussian_error(RecordKind::latent_nvfp4, 0x1p-9f), 0.0951, 0.001);
  EXPECT_NEAR(gaussian_error(RecordKind::latent_nvfp4, 0), 0.0951, 0.001);
  EXPECT_LT(gaussian_error(RecordKind::bf16, 0), 0x1p-9);
  EXPECT_EQ(gaussian_error(RecordKind::f32, 0), 0);
}

TEST(CacheRecord, WhatWasReadIsWrittenAsItIs) {
  for (const RecordKind kind : {RecordKind::f32, RecordKind::bf16, RecordKind::latent_fp8, RecordKind::latent_fp8_row,
                                RecordKind::latent_nvfp4})
    for (uint32_t seed = 1; seed < 60; ++seed) {
      // Widths of partial tiles and groups too. NVFP4 keeps this where group scales are normal numbers of e4m3.
      std::vector<float> row = gaussian_values(seed % 3 == 0 ? 512 : 16 * seed + 9, seed);
      const float size = std::ldexp(1.0f, static_cast<int>(seed % 40) - 20);
      for (float& value : row) value *= size;
      const Stored stored(kind, row);
      const std::vector<float> once = stored.read();
      EXPECT_TRUE(stored.sound());
      EXPECT_EQ(Stored(kind, once).read(), once) << name_of(kind) << " " << seed;
    }
}

TEST(CacheRecord, ZeroRowsStayZero) {
  for (const RecordKind kind : all_kinds) {
    const Stored stored(kind, std::vector<float>(128));
    EXPECT_EQ(stored.read(), std::vector<float>(128)) << name_of(kind);
    EXPECT_TRUE(stored.sound()) << name_of(kind);
  }
}

TEST(CacheRecord, TinyAndHugeRowsAreFinite) {
  const auto row_of = [](float size) {
    std::vector<float> row = gaussian_values(128, 2);
    for (float& value : row) value *= size;
    return row;
  };
  for (const RecordKind kind : all_kinds)
    for (const float size : {1e-44f, 1e-38f, 1e-30f, 1e30f, 3e37f}) {
      if (kind == RecordKind::index_fp8 && size == 3e37f) continue;
      for (const float value : Stored(kind, row_of(size)).read()) ASSERT_TRUE(std::isfinite(value)) << name_of(kind);
    }
  EXPECT_THROW(Stored(RecordKind::index_fp8, row_of(3e37f)), Error);  // the sums of the rotation overflow
}

TEST(CacheRecord, RowsThatAreNotFiniteAreRefusedAndNothingIsWritten) {
  for (const RecordKind kind : all_kinds) {
    if (kind == RecordKind::f32 || kind == RecordKind::bf16) continue;  // these keep a NaN as it is
    for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
      std::vector<float> row(512, 1.0f);
      row[400] = bad;
      const CacheRecord record = cache_record(kind, 512);
      std::vector<std::byte> plane0(record.plane_bytes[0], std::byte{0x55}), plane1(4, std::byte{0x55});
      const std::vector<std::byte> before = plane0;
      try {
        encode_record(record, row.data(), 0, plane0.data(), plane1.data());
        ADD_FAILURE() << name_of(kind);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::internal);
        EXPECT_NE(error.found().find("in column 400"), std::string::npos) << error.what();
      }
      EXPECT_EQ(plane0, before);
    }
  }
  const Stored nan(RecordKind::bf16, {std::nanf(""), 1.0f});
  EXPECT_TRUE(std::isnan(nan.read()[0]));
}

TEST(CacheRecord, AnyBytesAreSafeToReadAndDamageIsSeen) {
  for (const RecordKind kind : all_kinds)
    for (uint32_t seed = 0; seed < 50; ++seed) {
      const CacheRecord record = cache_record(kind, 128);
      const std::vector<std::byte> plane0 = random_bytes(record.plane_bytes[0], seed), plane1 = random_bytes(4, seed);
      std::vector<float> row(128);
      decode_record(record, plane0.data(), plane1.data(), row.data());
      record_is_sound(record, plane0.data(), plane1.data());
    }
  const std::vector<float> row = gaussian_values(512, 3);
  const auto damaged = [&row](RecordKind kind, int64_t offset, int value) {
    Stored stored(kind, row);
    stored.plane0[offset] = static_cast<std::byte>(value);
    return !stored.sound();
  };
  EXPECT_TRUE(damaged(RecordKind::latent_fp8, 100, 0xff));     // a NaN code
  EXPECT_TRUE(damaged(RecordKind::latent_fp8, 515, 0xff));     // a negative scale
  EXPECT_TRUE(damaged(RecordKind::latent_fp8_row, 512, 1));    // a scale between powers of two
  EXPECT_TRUE(damaged(RecordKind::latent_nvfp4, 260, 0x7f));   // a NaN group scale
  EXPECT_TRUE(damaged(RecordKind::latent_nvfp4, 289, 1));      // reserved
  EXPECT_TRUE(damaged(RecordKind::latent_nvfp4, 303, 1));      // padding
  EXPECT_FALSE(damaged(RecordKind::latent_nvfp4, 100, 0xff));  // every e2m1 code is a number
  Stored index(RecordKind::index_fp8, gaussian_values(128, 3));
  EXPECT_TRUE(index.sound());
  std::fill(index.plane1.begin(), index.plane1.end(), std::byte{0});
  EXPECT_FALSE(index.sound());
}

TEST(IndexFp8, ScaleIsAPowerOfTwoWithAFloor) {
  std::vector<float> v(128);
  std::vector<std::byte> codes(128);
  EXPECT_EQ(quantize_rotated(v.data(), 128, codes.data()), 0x1p-22f);  // 1e-4 / 448 = 2.23e-7 ≤ 2^-22 = 2.38e-7
  v[9] = 1e-5f;
  EXPECT_EQ(quantize_rotated(v.data(), 128, codes.data()), 0x1p-22f);
  v[9] = -448;
  EXPECT_EQ(quantize_rotated(v.data(), 128, codes.data()), 1);
  EXPECT_EQ(codes[9], std::byte{0xfe});
  v[9] = 449;
  EXPECT_EQ(quantize_rotated(v.data(), 128, codes.data()), 2);
  EXPECT_EQ(codes[9], std::byte{0x76});  // 224.5 rounds to 224
}

TEST(IndexFp8, TheRecordIsTheQuantizedRotation) {
  for (const int64_t width : {32, 64, 128}) {
    const std::vector<float> key = gaussian_values(width, 12);
    std::vector<float> rotated = key;
    rotate_index(rotated.data(), width);
    std::vector<std::byte> codes(width);
    const float scale = quantize_rotated(rotated.data(), width, codes.data());
    const Stored stored(RecordKind::index_fp8, key);
    EXPECT_EQ(stored.plane0, codes);
    EXPECT_EQ(std::memcmp(stored.plane1.data(), &scale, 4), 0);
    const std::vector<float> read = stored.read();
    EXPECT_LT(relative_l2(read, rotated), 0.04);
    // Writing what was read, without another rotation, changes nothing.
    std::vector<std::byte> again(width);
    const float scale_again = quantize_rotated(read.data(), width, again.data());
    for (int64_t i = 0; i < width; ++i)
      EXPECT_EQ(e4m3_values[static_cast<int>(again[i])] * scale_again, read[i]) << width << " " << i;
  }
}

TEST(IndexFp8, RotatingBothSidesKeepsTheProduct) {
  const std::vector<float> key = gaussian_values(128, 21), query = gaussian_values(128, 22);
  std::vector<float> rotated_query = query;
  rotate_index(rotated_query.data(), 128);
  const std::vector<float> read = Stored(RecordKind::index_fp8, key).read();
  double exact = 0, rotated = 0;
  for (int i = 0; i < 128; ++i) {
    exact += static_cast<double>(key[i]) * query[i];
    rotated += static_cast<double>(read[i]) * rotated_query[i];
  }
  EXPECT_NEAR(rotated, exact, 0.03 * 128 / std::sqrt(128.0) * 3);  // three deviations of 3 % noise in 128 products
}

TEST(IndexFp8, TheRotationSpreadsAnOutlier) {
  // One large value among small ones: without the rotation the small ones would fall below e4m3's smallest step.
  std::vector<float> key = gaussian_values(128, 30);
  for (float& value : key) value *= 1e-4f;
  key[50] = 100;
  std::vector<float> rotated = key;
  rotate_index(rotated.data(), 128);
  for (const float value : rotated) EXPECT_NEAR(std::abs(value), 100 / std::sqrt(128.0), 0.1);
}

}  // namespace
}  // namespace tandem::quant::cache_records_test
