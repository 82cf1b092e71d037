// The safetensors container: what a good file gives, and every way in which a header can lie.
#include "model/safetensors.h"

#include "model/testing/checkpoint_files.h"

namespace tandem::model::safetensors_test {
namespace {

using testing::error_of;
using testing::expect_parts;
using testing::safetensors_bytes;

std::vector<Tensor> parse(const std::string& file) {
  return parse_safetensors(std::as_bytes(std::span(file)), "dir/x.safetensors", "x.safetensors");
}

std::string refusal(const std::string& header, size_t data_bytes = 0) {
  const std::string file = safetensors_bytes(header, std::string(data_bytes, 'x'));
  return error_of([&] { parse(file); });
}

// A header with one tensor "w" of these fields.
std::string one(const std::string& fields) { return R"({"w":{)" + fields + "}}"; }

TEST(Safetensors, ReadsTensorsInTheOrderOfTheirData) {
  const std::string file =
      safetensors_bytes(R"({"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[1,2],"data_offsets":[4,8]},)"
                        R"("a":{"data_offsets":[0,4],"shape":[],"dtype":"F32"}}   )",
                        "abcdefgh");
  const std::vector<Tensor> tensors = parse(file);
  ASSERT_EQ(tensors.size(), 2u);
  EXPECT_EQ(tensors[0].name, "a");
  EXPECT_EQ(tensors[0].dtype, DType::f32);
  EXPECT_TRUE(tensors[0].shape.empty());
  EXPECT_EQ(tensors[0].elements(), 1);
  EXPECT_EQ(tensors[1].name, "b");
  EXPECT_EQ(tensors[1].shape, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(tensors[1].file, "x.safetensors");
  EXPECT_EQ(std::to_integer<char>(tensors[1].data[0]), 'e');
}

TEST(Safetensors, EveryTypeHasItsSize) {
  const std::pair<const char*, size_t> sizes[] = {{"F64", 8},     {"F32", 4}, {"F16", 2}, {"BF16", 2}, {"F8_E4M3", 1},
                                                  {"F8_E5M2", 1}, {"I64", 8}, {"I32", 4}, {"I16", 2},  {"I8", 1},
                                                  {"U32", 4},     {"U16", 2}, {"U8", 1},  {"BOOL", 1}};
  for (const auto& [name, size] : sizes) {
    const std::string header =
        fmt::format(R"({{"w":{{"dtype":"{}","shape":[3],"data_offsets":[0,{}]}}}})", name, 3 * size);
    const std::string file = safetensors_bytes(header, std::string(3 * size, 'x'));
    const std::vector<Tensor> tensors = parse(file);
    ASSERT_EQ(tensors.size(), 1u) << name;
    EXPECT_STREQ(dtype_name(tensors[0].dtype), name);
  }
}

TEST(Safetensors, EmptyTensorsAndFilesAreLegal) {
  EXPECT_TRUE(parse(safetensors_bytes("{}", "")).empty());
  const std::string file = safetensors_bytes(
      R"({"a":{"dtype":"F32","shape":[0,7],"data_offsets":[0,0]},"b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})",
      "xy");
  const std::vector<Tensor> tensors = parse(file);
  EXPECT_EQ(tensors[0].elements(), 0);
  EXPECT_EQ(tensors[0].data.size(), 0u);
}

TEST(Safetensors, CutFilesAreRefused) {
  expect_parts(error_of([] { parse(""); }), {"dir/x.safetensors", "0 bytes"});
  expect_parts(error_of([] { parse("1234567"); }), {"7 bytes"});
  const std::string file = safetensors_bytes({{"w", DType::f32, {4}, std::string(16, 'x')}});
  EXPECT_EQ(parse(file).size(), 1u);
  for (size_t length = 0; length < file.size(); ++length) {
    const std::string cut = file.substr(0, length);
    expect_parts(error_of([&] { parse(cut); }), {"dir/x.safetensors"});
  }
  const std::string short_data = file.substr(0, file.size() - 1);
  expect_parts(error_of([&] { parse(short_data); }), {"tensor w", "15 bytes", "16", "cut short"});
}

TEST(Safetensors, HeaderLengthIsBounded) {
  std::string file = safetensors_bytes("{}", "");
  for (size_t i = 0; i < 8; ++i) file[i] = '\xff';
  expect_parts(error_of([&] { parse(file); }), {"18446744073709551615", "100000000"});
  file = std::string("\x01\xe1\xf5\x05\0\0\0\0{}", 10);  // 100,000,001
  expect_parts(error_of([&] { parse(file); }), {"100000001", "at most 100000000"});
  file[0] = '\0';
  expect_parts(error_of([&] { parse(file); }), {"header length 100000000", "2 bytes follow"});
}

TEST(Safetensors, HeaderMustBeJsonOfTheRightForm) {
  expect_parts(refusal(""), {"header", "'{'"});
  expect_parts(refusal("[]"), {"header", "'{'"});
  expect_parts(refusal(" {}"), {"header", "'{'"});
  expect_parts(refusal("{"), {"not valid JSON"});
  expect_parts(refusal("{}{}"), {"not valid JSON"});
  expect_parts(refusal("{\"\xff\":1}"), {"not valid JSON"});
  expect_parts(refusal(R"({"w":1})"), {"tensor w", "the number 1", "an object"});
  expect_parts(refusal(R"({"w":null})"), {"tensor w", "null"});
  expect_parts(refusal(R"({"w":[]})"), {"tensor w", "an array"});
  expect_parts(refusal(R"({"w":{"x":1}})"), {"tensor w", "unknown field \"x\""});
  expect_parts(refusal(R"({"__metadata__":{"a":1}})"), {"strings only"});
  expect_parts(refusal(R"({"__metadata__":{"a":{}}})"), {"strings only"});
  expect_parts(refusal(R"({"w":{"dtype":{}}})"), {"tensor w", "an object", "dtype as a string"});
  expect_parts(refusal(fmt::format("{{\"w\":{}", std::string(100'000, '['))), {"tensor w", "an array"});
}

TEST(Safetensors, FieldsMustBeCompleteAndOnce) {
  expect_parts(refusal(one(R"("shape":[1],"data_offsets":[0,4])"), 4), {"tensor w", "dtype missing"});
  expect_parts(refusal(one(R"("dtype":"F32","data_offsets":[0,4])"), 4), {"tensor w", "shape missing"});
  expect_parts(refusal(one(R"("dtype":"F32","shape":[1])"), 4), {"tensor w", "data_offsets missing"});
  expect_parts(refusal(one(R"("dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4])"), 4),
               {"dtype given twice"});
  const std::string w = R"("w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]})";
  expect_parts(refusal("{" + w + "," + w + "}", 1), {"tensor w", "named twice"});
}

TEST(Safetensors, FieldsMustHaveTheirTypes) {
  expect_parts(refusal(one(R"("dtype":"F31","shape":[1],"data_offsets":[0,4])"), 4),
               {"tensor w", "dtype \"F31\"", "BF16"});
  expect_parts(refusal(one(R"("dtype":3)")), {"tensor w", "the number 3"});
  expect_parts(refusal(one(R"("shape":4)")), {"tensor w", "the number 4", "array"});
  expect_parts(refusal(one(R"("shape":[-1])")), {"tensor w", "the number -1", "non-negative"});
  expect_parts(refusal(one(R"("shape":[1.5])")), {"tensor w", "the number 1.5"});
  expect_parts(refusal(one(R"("shape":["1"])")), {"tensor w", "a string"});
  expect_parts(refusal(one(R"("shape":[true])")), {"tensor w", "true"});
  expect_parts(refusal(one(R"("shape":[[1]])")), {"tensor w", "an array"});
  expect_parts(refusal(one(R"("shape":[1,1,1,1,1,1,1,1,1])")), {"more than 8 dimensions"});
  expect_parts(refusal(one(R"("data_offsets":[0])")), {"data_offsets with 1 numbers"});
  expect_parts(refusal(one(R"("data_offsets":[0,4,8])")), {"more than 2 numbers"});
}

TEST(Safetensors, SizesMustAgree) {
  expect_parts(refusal(one(R"("dtype":"F32","shape":[3],"data_offsets":[0,8])"), 8),
               {"tensor w", "8 bytes", "12", "F32"});
  expect_parts(refusal(one(R"("dtype":"F32","shape":[3],"data_offsets":[0,16])"), 16), {"tensor w", "16 bytes", "12"});
  expect_parts(refusal(one(R"("dtype":"F32","shape":[0],"data_offsets":[0,4])"), 4), {"tensor w", "4 bytes", "0 for"});
  expect_parts(refusal(one(R"("dtype":"U8","shape":[4],"data_offsets":[4,0])"), 4), {"tensor w", "[4, 0]"});
  expect_parts(refusal(one(R"("dtype":"F32","shape":[4],"data_offsets":[0,16])"), 8), {"tensor w", "8 bytes", "16"});
  for (const char* shape : {"4294967296,4294967296", "9223372036854775807", "4611686018427387904,4611686018427387904,0",
                            "9223372036854775807,2"}) {
    expect_parts(refusal(one(fmt::format(R"("dtype":"F32","shape":[{}],"data_offsets":[0,0])", shape))),
                 {"tensor w", "2^63"});
  }
  expect_parts(refusal(one(R"("dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,0])")), {"tensor w"});
  expect_parts(
      refusal(one(R"("dtype":"U8","shape":[1],"data_offsets":[18446744073709551615,18446744073709551615])"), 1),
      {"tensor w", "18446744073709551615"});
  expect_parts(refusal(one(R"("dtype":"U8","shape":[1],"data_offsets":[0,18446744073709551616])"), 1), {"tensor w"});
}

TEST(Safetensors, DataMustBeCoveredOnce) {
  const auto two = [](const char* a, const char* b) {
    return fmt::format(
        R"({{"a":{{"dtype":"U8","shape":[4],"data_offsets":[{}]}},"b":{{"dtype":"U8","shape":[4],"data_offsets":[{}]}}}})",
        a, b);
  };
  const std::string good = safetensors_bytes(two("4,8", "0,4"), std::string(8, 'x'));
  EXPECT_EQ(parse(good).size(), 2u);
  expect_parts(refusal(two("0,4", "2,6"), 6), {"tensor b", "byte 2", "inside a"});
  expect_parts(refusal(two("0,4", "0,4"), 4), {"inside"});
  expect_parts(refusal(two("0,4", "5,9"), 9), {"tensor b", "gap", "byte 4"});
  expect_parts(refusal(two("1,5", "5,9"), 9), {"tensor a", "gap", "byte 0"});
  expect_parts(refusal(two("0,4", "4,8"), 9), {"1 bytes after the last tensor"});
  expect_parts(refusal("{}", 3), {"3 bytes after the last tensor"});
}

TEST(Safetensors, NamesInMessagesStayOnOneLine) {
  const std::string message = refusal(fmt::format(R"({{"a\nb\u0007{}":1}})", std::string(1000, 'c')));
  expect_parts(message, {"tensor a\\x0ab\\x07ccc", "..."});
  EXPECT_LT(message.size(), 400u);
}

}  // namespace
}  // namespace tandem::model::safetensors_test
