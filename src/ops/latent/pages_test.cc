// Rows of a plane: where they lie, and how bf16 rows are rounded.
#include "ops/latent/pages.h"

#include <bit>
#include <cmath>

#include "ops/simd/kernels.h"
#include "ops/test_random.h"

namespace tandem::ops::pages_test {
namespace {

struct Pool {
  std::vector<std::byte> bytes;
  std::vector<int32_t> table;
  PagedPlane plane;

  Pool(std::vector<int32_t> page_table, int64_t rows_of_page, int64_t width, CacheElement element)
      : table(std::move(page_table)) {
    plane = {nullptr, table.data(), rows_of_page, width, element};
    const int32_t pages = *std::max_element(table.begin(), table.end()) + 1;
    bytes.resize(static_cast<size_t>(pages * rows_of_page * plane.row_bytes()));
    plane.data = bytes.data();
  }
};

float through(float value) {
  const Pool pool({0}, 1, 1, CacheElement::bf16);
  pool.plane.store(0, &value);
  float back = 0;
  pool.plane.load(0, &back);
  return back;
}

TEST(PagedPlane, RowsLieWhereTheTableSays) {
  for (const CacheElement element : {CacheElement::f32, CacheElement::bf16}) {
    const Pool pool({3, 1, 2}, 4, 5, element);
    EXPECT_EQ(pool.plane.row_bytes(), element == CacheElement::f32 ? 20 : 10);
    for (int64_t i = 0; i < 12; ++i) {
      const std::vector<float> values(5, static_cast<float>(i));
      pool.plane.store(i, values.data());
      EXPECT_EQ(pool.plane.row(i) - pool.bytes.data(),
                (pool.table[static_cast<size_t>(i / 4)] * 4 + i % 4) * pool.plane.row_bytes());
    }
    for (int64_t i = 0; i < 12; ++i) {
      std::vector<float> values(5);
      pool.plane.load(i, values.data());
      EXPECT_EQ(values, std::vector<float>(5, static_cast<float>(i)));
    }
    const float part[2] = {7, 8};
    pool.plane.store(6, 2, 2, part);
    std::vector<float> values(5);
    pool.plane.load(6, values.data());
    EXPECT_EQ(values, (std::vector<float>{6, 6, 7, 8, 6}));
  }
}

TEST(PagedPlane, APageIsHeldByTheRankOfItsEntry) {
  PagedPlane plane;
  plane.rows_of_page = 4;
  for (const int64_t row : {0, 3, 4, 7, 8}) EXPECT_TRUE(plane.holds(row)) << "one rank holds everything";
  plane.ranks = 2;
  plane.rank = 1;
  EXPECT_FALSE(plane.holds(3));
  EXPECT_TRUE(plane.holds(4));
  EXPECT_TRUE(plane.holds(7));
  EXPECT_FALSE(plane.holds(8));
}

// What a row is stored as is the record's business (quant/cache_records_test.cc); where it lies, and that nothing else
// is touched, the plane's.
TEST(PagedPlane, RecordsLieWhereTheTableSays) {
  for (const CacheElement element :
       {CacheElement::latent_fp8, CacheElement::latent_fp8_row, CacheElement::latent_nvfp4, CacheElement::index_fp8}) {
    Pool pool({3, 1, 2}, 4, 32, element);
    std::vector<std::byte> scales(4 * 4 * 4);
    pool.plane.scales = scales.data();
    const quant::CacheRecord record = quant::cache_record(element, 32);
    EXPECT_EQ(pool.plane.row_bytes(), record.plane_bytes[0]);
    test::Random random(3);
    const std::vector<float> values = random.normals(12 * 32);
    for (int64_t i = 0; i < 12; ++i) pool.plane.store(i, values.data() + 32 * i);
    for (int64_t i = 0; i < 12; ++i) {
      std::vector<std::byte> plane0(static_cast<size_t>(record.plane_bytes[0])), plane1(4);
      quant::encode_record(record, values.data() + 32 * i, 0, plane0.data(), plane1.data());
      const int64_t place = pool.table[static_cast<size_t>(i / 4)] * 4 + i % 4;
      EXPECT_EQ(pool.plane.place(i), place);
      EXPECT_TRUE(std::equal(plane0.begin(), plane0.end(), pool.bytes.data() + place * record.plane_bytes[0]));
      if (record.plane_bytes[1] > 0) {
        EXPECT_TRUE(std::equal(plane1.begin(), plane1.end(), scales.data() + 4 * place));
      }
      std::vector<float> expected(32), found(32);
      quant::decode_record(record, plane0.data(), plane1.data(), expected.data());
      pool.plane.load(i, found.data());
      EXPECT_EQ(found, expected);
    }
    EXPECT_TRUE(std::all_of(pool.bytes.begin(), pool.bytes.begin() + 4 * record.plane_bytes[0], [](std::byte b) {
      return b == std::byte{0};
    })) << "page 0 was not asked for";
  }
}

TEST(PagedPlane, ACalibratedScaleIsStored) {
  Pool pool({0}, 1, 16, CacheElement::latent_nvfp4);
  pool.plane.outer_scale = 0x1p-9f;
  // The worked example of spec/quantization.md 5.4.
  const float values[16] = {0.11f, -0.52f, 0.9f,   1.37f, -2.2f, 0.03f,  0.75f, -0.26f,
                            0,     0.61f,  -1.05f, 0.4f,  3.1f,  -0.18f, 0.33f, -0.7f};
  pool.plane.store(0, values);
  std::vector<float> back(16);
  pool.plane.load(0, back.data());
  EXPECT_EQ(back,
            (std::vector<float>{0, -0.5f, 1, 1.5f, -2, 0, 0.75f, -0.25f, 0, 0.5f, -1, 0.5f, 3, -0.25f, 0.25f, -0.75f}));
}

TEST(PagedPlane, Bf16RoundsToNearestTiesToEven) {
  const float ulp = 0x1p-7f;  // of bf16 at 1
  EXPECT_EQ(through(1.0f), 1.0f);
  EXPECT_EQ(through(1.0f + 0.49f * ulp), 1.0f);
  EXPECT_EQ(through(1.0f + 0.5f * ulp), 1.0f) << "a tie goes to the even one below";
  EXPECT_EQ(through(1.0f + 0.51f * ulp), 1.0f + ulp);
  EXPECT_EQ(through(1.0f + 1.5f * ulp), 1.0f + 2 * ulp) << "a tie goes to the even one above";
  EXPECT_EQ(through(-1.0f - 1.5f * ulp), -1.0f - 2 * ulp);
  EXPECT_EQ(through(2.0f - 0.25f * ulp), 2.0f) << "carries into the exponent";
  EXPECT_EQ(through(3.4e38f), std::numeric_limits<float>::infinity()) << "beyond the largest bf16";
  EXPECT_EQ(through(-std::numeric_limits<float>::infinity()), -std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::signbit(through(-0.0f)));
  EXPECT_TRUE(std::isnan(through(std::bit_cast<float>(0x7f800001u)))) << "a NaN whose payload is cut off";
  EXPECT_TRUE(std::isnan(through(std::bit_cast<float>(0x7fffffffu)))) << "rounding must not turn it into −0";
}

TEST(PagedPlane, Bf16IsTheNearestOfAllValues) {
  test::Random random(1);
  for (int i = 0; i < 20000; ++i) {
    const float x = random.normal(100.0f), y = through(x);
    const auto bits = std::bit_cast<uint32_t>(y);
    EXPECT_EQ(bits & 0xffffu, 0u);
    const float below = std::bit_cast<float>(bits - 0x10000u), above = std::bit_cast<float>(bits + 0x10000u);
    EXPECT_LE(std::abs(x - y), std::abs(x - below));
    EXPECT_LE(std::abs(x - y), std::abs(x - above));
  }
}

}  // namespace
}  // namespace tandem::ops::pages_test
