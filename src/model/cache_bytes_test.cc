// The records of --kv-cache-dtype: their names, and that the tables of docs/internals/formats.md say what is stored.
#include "model/cache_bytes.h"

#include <fmt/core.h>

#include <fstream>
#include <sstream>

#include "base/error.h"

namespace tandem::model::cache_bytes_test {
namespace {

std::string documented() {
  std::ifstream file(std::string(TANDEM_SOURCE_DIR) + "/docs/internals/formats.md");
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

Shape flash() { return read_shape(std::string(TANDEM_SOURCE_DIR) + "/tests/golden/configs/glm-5.3-flash.json"); }

TEST(CacheType, NamesAreReadAndWritten) {
  for (const CacheType type : all_cache_types) {
    EXPECT_EQ(parse_cache_type(name_of(type)), type);
    EXPECT_NE(cache_type_names.find(name_of(type)), std::string_view::npos) << "errors list every name";
  }
  for (const char* name : {"", "auto", "F32", "fp8 ", "int8", "latent_fp8"}) {
    try {
      parse_cache_type(name);
      ADD_FAILURE() << name;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::usage);
      EXPECT_EQ(e.where(), "--kv-cache-dtype");
      EXPECT_NE(e.expected().find("fp8_row"), std::string::npos);
    }
  }
}

TEST(CacheType, KeysThatCannotBeRotatedHaveNoFp8) {
  Shape shape = flash();
  shape.index_head_dim = 96;
  EXPECT_EQ(cache_row(shape, CacheType::bf16).pool_bytes, 192);
  EXPECT_THROW(cache_row(shape, CacheType::fp8), Error);
  EXPECT_EQ(cache_bytes(shape).rows.size(), 2u) << "inspect shows what there can be";
}

TEST(CacheRecords, TheTablesOfTheDocumentation) {
  std::string types = "| type | latent | B | index key | B | B a token and layer |\n|---|---|---|---|---|---|\n";
  std::string parts = "| record | part | plane | first byte | B |\n|---|---|---|---|---|\n";
  std::string seen;
  for (const CacheType type : all_cache_types) {
    const CacheRecords records = cache_records(flash(), type);
    const CacheRow row = cache_row(flash(), type);
    types += fmt::format("| {} | {} | {} | {} | {} | {} |\n", name_of(type), name_of(records.latent.kind),
                         row.latent_bytes, name_of(records.pooled.kind), row.pool_bytes, token_bytes(1, row, 4));
  }
  using quant::RecordKind;
  for (const RecordKind kind : {RecordKind::f32, RecordKind::bf16, RecordKind::latent_fp8, RecordKind::latent_fp8_row,
                                RecordKind::latent_nvfp4, RecordKind::index_fp8}) {
    for (const quant::RecordPart& part :
         quant::parts_of(quant::cache_record(kind, kind == RecordKind::index_fp8 ? 128 : 512)))
      parts +=
          fmt::format("| {} | {} | {} | {} | {} |\n", name_of(kind), part.what, part.plane, part.offset, part.bytes);
  }
  const std::string text = documented();
  EXPECT_NE(text.find(types + "\n"), std::string::npos) << "expected:\n" << types;
  EXPECT_TRUE(text.find(parts) != std::string::npos) << "expected:\n" << parts;
}

}  // namespace
}  // namespace tandem::model::cache_bytes_test
