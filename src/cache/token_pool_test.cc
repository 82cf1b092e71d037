// The pool: every plane of every layer and page has its own bytes, pages are copied whole, and what is allocated is
// what is planned.
#include "cache/token_pool.h"

#include "base/error.h"

namespace tandem::cache::token_pool_test {
namespace {

using model::CacheType;

model::Shape shape_of(int64_t latent, int64_t key, int64_t kpool) {
  model::Shape shape = model::read_shape(std::string(TANDEM_SOURCE_DIR) + "/models/nano");
  shape.kv_lora_rank = latent;
  shape.index_head_dim = key;
  shape.index_kpool = kpool;
  return shape;
}

// A row of its own for each place, which signs tell apart in every record.
std::vector<float> row_of(int64_t layer, int64_t page, int64_t index, int64_t width) {
  std::vector<float> row(static_cast<size_t>(width));
  const int64_t number = (layer * 7 + page) * 64 + index;
  for (size_t i = 0; i < row.size(); ++i) row[i] = (number >> (i % 12) & 1) != 0 ? 0.5f : -0.5f;
  return row;
}

class Pool : public ::testing::TestWithParam<CacheType> {
 protected:
  static constexpr int64_t planes = 3, pages = 5, page_rows = 16, kpool = 4;
  const model::Shape shape_ = shape_of(48, 32, kpool);
  TokenPool pool_{shape_, planes, pages, page_rows, GetParam()};
  const std::vector<int32_t> table_{0, 1, 2, 3, 4};

  void fill() {
    for (int64_t layer = 0; layer < planes; ++layer) {
      for (int64_t row = 0; row < pages * page_rows; ++row)
        pool_.latent(layer, table_.data()).store(row, row_of(layer, row / page_rows, row % page_rows, 48).data());
      for (int64_t row = 0; row < pages * page_rows / kpool; ++row)
        pool_.pooled(layer, table_.data()).store(row, row_of(layer, row / 4, row % 4 + 32, 32).data());
    }
  }
  static std::vector<float> load(const ops::PagedPlane& plane, int64_t row) {
    std::vector<float> values(static_cast<size_t>(plane.width));
    plane.load(row, values.data());
    return values;
  }
  // What such a row is read as.
  static std::vector<float> stored(const ops::PagedPlane& plane, std::vector<float> row) {
    const quant::CacheRecord record = plane.record();
    std::vector<std::byte> plane0(static_cast<size_t>(record.plane_bytes[0])), plane1(4);
    quant::encode_record(record, row.data(), 0, plane0.data(), plane1.data());
    quant::decode_record(record, plane0.data(), plane1.data(), row.data());
    return row;
  }
  // Page `page` holds the first rows of page `from`, and then its own.
  void expect_page(int64_t page, int64_t from, int64_t rows, int64_t pools) {
    for (int64_t layer = 0; layer < planes; ++layer) {
      const ops::PagedPlane latent = pool_.latent(layer, table_.data()), pooled = pool_.pooled(layer, table_.data());
      for (int64_t i = 0; i < page_rows; ++i)
        ASSERT_EQ(load(latent, page * page_rows + i), row_of(layer, i < rows ? from : page, i, 48))
            << layer << " " << i;
      for (int64_t i = 0; i < page_rows / kpool; ++i)
        ASSERT_EQ(load(pooled, page * 4 + i), stored(pooled, row_of(layer, i < pools ? from : page, i + 32, 32)))
            << layer << " " << i;
    }
  }
};

TEST_P(Pool, EveryRowHasItsOwnBytes) {
  fill();
  for (int64_t page = 0; page < pages; ++page) expect_page(page, page, 0, 0);
}

TEST_P(Pool, CopiesTheFirstRowsAndTheirPools) {
  fill();
  pool_.copy_page(1, 3, 5);  // a pool and a row of the next
  pool_.copy_page(2, 4, page_rows);
  expect_page(3, 1, 5, 2);
  expect_page(4, 2, page_rows, 4);
  for (int64_t page = 0; page < 3; ++page) expect_page(page, page, 0, 0);
}

TEST_P(Pool, BytesAreThoseOfTheRecords) {
  const model::CacheRecords records = model::cache_records(shape_, GetParam());
  EXPECT_EQ(TokenPool::bytes(shape_, planes, pages, page_rows, GetParam()),
            planes * pages * (page_rows * records.latent.bytes + page_rows / kpool * records.pooled.bytes));
  EXPECT_EQ(pool_.latent(1, table_.data()).data - pool_.latent(0, table_.data()).data,
            pages * page_rows * records.latent.bytes);
  EXPECT_EQ(pool_.latent(0, table_.data()).row_bytes(), records.latent.bytes);
  EXPECT_EQ(pool_.pooled(0, table_.data()).row_bytes(), records.pooled.plane_bytes[0]);
  EXPECT_EQ(pool_.pooled(0, table_.data()).scales != nullptr, records.pooled.plane_bytes[1] > 0);
}

INSTANTIATE_TEST_SUITE_P(Types, Pool, ::testing::ValuesIn(model::all_cache_types),
                         [](const auto& type) { return std::string(name_of(type.param)); });

TEST(TokenPool, ScalesAreOfTheirLayers) {
  const model::Shape shape = shape_of(16, 32, 4);
  TokenPool pool(shape, 2, 2, 16, CacheType::nvfp4, {0x1p-9f, 0x1p-12f});
  EXPECT_EQ(pool.latent(0, nullptr).outer_scale, 0x1p-9f);
  EXPECT_EQ(pool.latent(1, nullptr).outer_scale, 0x1p-12f);
  EXPECT_THROW(TokenPool(shape, 2, 2, 16, CacheType::nvfp4, {1.0f}), Error);
  EXPECT_THROW(TokenPool(shape, 2, 2, 18, CacheType::nvfp4), Error);
  EXPECT_THROW(TokenPool(shape_of(16, 24, 4), 2, 2, 16, CacheType::fp8), Error) << "keys that cannot be rotated";
}

}  // namespace
}  // namespace tandem::cache::token_pool_test
