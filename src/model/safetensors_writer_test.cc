// What is written is read back by the strict reader.
#include "model/safetensors_writer.h"

#include <algorithm>
#include <span>

#include "model/safetensors.h"

namespace tandem::model::safetensors_writer_test {
namespace {

TEST(SafetensorsWriter, ReaderFindsEveryTensor) {
  const std::vector<TensorHeader> tensors = {{"scalar", DType::f32, {}},
                                             {"a \"quoted\" name", DType::f8_e4m3, {3, 5}},
                                             {"empty", DType::bf16, {0, 4}},
                                             {"last", DType::bf16, {2, 2}}};
  std::string file = safetensors_header(tensors);
  EXPECT_EQ(file.size() % 8, 0u);
  for (int i = 0; i < 4 + 15 + 8; ++i) file.push_back(static_cast<char>(i));
  const auto read = parse_safetensors(std::as_bytes(std::span(file)), "here", "file");
  ASSERT_EQ(read.size(), tensors.size());
  for (const TensorHeader& expected : tensors) {
    const auto found = std::find_if(read.begin(), read.end(), [&](const Tensor& t) { return t.name == expected.name; });
    ASSERT_NE(found, read.end()) << expected.name;
    EXPECT_EQ(found->dtype, expected.dtype);
    EXPECT_EQ(found->shape, expected.shape);
    EXPECT_EQ(static_cast<int64_t>(found->data.size()), expected.bytes());
    if (expected.name == "last") {
      EXPECT_EQ(found->data[0], std::byte{19});
    }
  }
}

}  // namespace
}  // namespace tandem::model::safetensors_writer_test
