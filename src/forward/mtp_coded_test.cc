// The MTP layer of a mixed checkpoint, every format in it: what its dequantised weights give, within fp32 rounding, and
// bits that depend neither on how rows are cut nor on the instruction set.
#include <cmath>

#include "forward/mtp_test_streams.h"
#include "model/testing/coded_tensors.h"
#include "ops/simd/kernels.h"

namespace tandem::forward::mtp_coded_test {
namespace {

using model::testing::Choice;
using model::testing::Coding;

// nano's layer 8 is the MTP layer.
Choice choose(const std::string& name) {
  const auto has = [&](const char* part) { return name.find(part) != std::string::npos; };
  if (!has("layers.8.")) return has("mlp.experts.") ? Choice{Coding::nvfp4_compressed} : Choice{};
  if (has("eh_proj")) return {Coding::exl3, {5, quant::Exl3Codebook::mul1}};
  if (has("kv_b_proj")) return {Coding::exl3, {6, quant::Exl3Codebook::mcg}};
  if (has("self_attn")) return {Coding::fp8_block_compressed};
  if (has("shared_experts")) return {Coding::exl3, {4, quant::Exl3Codebook::three_inst}};
  return has("up_proj") ? Choice{Coding::nvfp4_modelopt} : Choice{Coding::exl3, {4, quant::Exl3Codebook::mcg}};
}

class CodedMtp : public ::testing::Test {
 protected:
  CodedMtp() {
    const std::string config = model::testing::read_file(model::testing::source_dir() / "models/nano/config.json");
    const auto tensors = model::testing::coded_tensors(model::testing::read_tensors(loaded("nano").checkpoint), choose);
    for (const auto& [folder, stored] : {std::pair{&coded_, &tensors.coded}, {&plain_, &tensors.plain}}) {
      model::testing::write_file(folder->path() / "config.json", config);
      model::testing::write_file(folder->path() / "model.safetensors", model::testing::safetensors_bytes(*stored));
    }
  }
  // Hidden rows and logits of `count` absorbed rows, then of a chain of three after them.
  static HiddenRows rows_of(MtpStreams& s, const Ids& ids, int64_t piece) {
    const int64_t n = std::ssize(ids) - 1;
    s.text(ids, 0, n + 1);
    std::vector<HiddenRows> rows;
    for (int64_t from = 0; from < n; from += piece) {
      const int64_t to = std::min(n, from + piece);
      const HiddenRows absorbed = s.absorb(0, ids, from, to);
      for (int64_t row = 0; row < to - from; ++row) rows.push_back(mtp_row(s.shape(), absorbed, to - from, row));
    }
    for (int32_t i = 0; i < 3; ++i) rows.push_back(s.chain(0, 100 + i, n + i));
    HiddenRows all;
    for (const HiddenRows& row : rows) all.insert(all.end(), row.begin(), row.end());
    return all;
  }

  model::testing::TemporaryFolder coded_, plain_;
};

TEST_F(CodedMtp, RowsAreThoseOfTheDecodedWeights) {
  Ids ids = mtp_ids("nano", "case_T40");
  ids.resize(20);
  const Loaded coded_model(coded_.path().string()), plain_model(plain_.path().string());
  ASSERT_EQ(coded_model.weights.mtp->eh_proj.format, ops::WeightFormat::exl3);
  ASSERT_EQ(coded_model.weights.mtp->layer.dsa->q_a_proj.format, ops::WeightFormat::fp8_block);
  ASSERT_EQ(coded_model.weights.mtp->layer.dsa->kv_b_proj.format, ops::WeightFormat::exl3);
  ASSERT_EQ(coded_model.weights.mtp->layer.moe->experts[0].up_proj.format, ops::WeightFormat::nvfp4);
  ASSERT_EQ(coded_model.weights.mtp->layer.moe->experts[0].down_proj.format, ops::WeightFormat::exl3);
  MtpStreams coded(coded_model), plain(plain_model), native("nano");
  const HiddenRows found = rows_of(coded, ids, 400), expected = rows_of(plain, ids, 400),
                   original = rows_of(native, ids, 400);
  ASSERT_EQ(found.size(), expected.size());
  double size = 0, difference = 0, change = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    size = std::max(size, std::abs(static_cast<double>(expected[i])));
    difference = std::max(difference, std::abs(static_cast<double>(found[i]) - expected[i]));
    change = std::max(change, std::abs(static_cast<double>(original[i]) - expected[i]));
  }
  EXPECT_LE(difference, 1e-5 * size);
  EXPECT_GT(change, 1e-3 * size) << "the coded weights are not those of the original model";

  MtpStreams cut(coded_model);
  EXPECT_TRUE(rows_of(cut, ids, 3) == found);
  const ops::SimdLevel best = ops::kernels().level;
  ops::use_simd_level(ops::SimdLevel::scalar);
  MtpStreams scalar(coded_model);
  EXPECT_TRUE(rows_of(scalar, ids, 1) == found);
  ops::use_simd_level(best);
}

}  // namespace
}  // namespace tandem::forward::mtp_coded_test
