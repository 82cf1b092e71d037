// A converted model is loaded and compared, value for value, with what quant/ makes of the original's weights.
#include "eval/quantize.h"

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>

#include "engine/plan_weights.h"
#include "model/inventory.h"
#include "model/testing/coded_tensors.h"
#include "model/weights.h"

namespace tandem::eval::quantize_test {
namespace {

namespace fs = std::filesystem;
using model::testing::error_of;
using model::testing::expect_parts;
using model::testing::StoredTensor;

const std::string text = "model.language_model.";

class Quantize : public ::testing::Test {
 protected:
  static fs::path nano() { return model::testing::source_dir() / "models/nano"; }
  static fs::path tiny() { return model::testing::source_dir() / "tests/golden/tinyA"; }
  fs::path out() const { return folder_.path() / "out"; }

  QuantizeReport convert(const fs::path& from, Coding experts, Coding dense) const {
    return convert(from, experts, dense, 1);
  }
  QuantizeReport convert(const fs::path& from, Coding experts, Coding dense, int threads) const {
    return quantize({from, out(), experts, dense, threads}, [](int64_t, int64_t) {});
  }
  // A folder with tinyA's config.json and these tensors.
  fs::path written(const std::vector<StoredTensor>& tensors) const {
    fs::path path = folder_.path() / "in";
    fs::create_directory(path);
    fs::copy_file(tiny() / "config.json", path / "config.json", fs::copy_options::overwrite_existing);
    model::testing::write_file(path / "model.safetensors", model::testing::safetensors_bytes(tensors));
    return path;
  }

  model::testing::TemporaryFolder folder_;
};

std::vector<StoredTensor> tensors_of(const fs::path& folder) {
  return model::testing::read_tensors(model::Checkpoint::open(folder));
}

std::string bytes(const model::Checkpoint& checkpoint, const std::string& name) {
  const auto& data = checkpoint.at(name).data;
  return {reinterpret_cast<const char*>(data.data()), data.size()};
}

// The stored tensors of every converted weight are those of a coder of the tests; all others are the original's.
void expect_coded(const fs::path& original, const fs::path& converted,
                  const std::function<model::testing::Coding(const std::string&)>& coding) {
  const model::Checkpoint result = model::Checkpoint::open(converted);
  model::testing::CodedTensors expected;
  model::testing::Coder coder;
  for (const StoredTensor& tensor : tensors_of(original)) coder.code(tensor, coding(tensor.name), {}, expected);
  EXPECT_EQ(result.tensors().size(), expected.coded.size());
  for (const StoredTensor& tensor : expected.coded) {
    const model::Tensor& found = result.at(tensor.name);
    EXPECT_EQ(found.dtype, tensor.dtype) << tensor.name;
    EXPECT_EQ(found.shape, tensor.shape) << tensor.name;
    EXPECT_TRUE(bytes(result, tensor.name) == tensor.bytes) << tensor.name;
  }
}

std::string content(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

bool contains(const std::string& name, const char* part) { return name.find(part) != std::string::npos; }
bool is_matrix(const std::string& name) { return name.starts_with(text + "layers.") && name.ends_with("_proj.weight"); }
bool is_expert(const std::string& name) {
  return is_matrix(name) && (contains(name, ".mlp.experts.") || contains(name, ".mlp.shared_experts."));
}
bool is_dense(const std::string& name) {
  if (!is_matrix(name) || is_expert(name)) return false;
  const bool sparse_attention =
      contains(name, "layers.3.") || contains(name, "layers.7.") || contains(name, "layers.8.");
  return contains(name, ".mlp.") || contains(name, "q_a_proj") || contains(name, "q_b_proj") ||
         (sparse_attention && contains(name, "self_attn.o_proj"));
}

TEST_F(Quantize, Fp8OfNano) {
  const QuantizeReport report = convert(nano(), Coding::fp8, Coding::fp8);
  EXPECT_EQ(report.shards, 4);
  EXPECT_EQ(report.bytes, model::Checkpoint::open(out()).total_bytes());
  expect_coded(nano(), out(), [](const std::string& name) {
    const bool converted = is_expert(name) || is_dense(name) || name.ends_with("kv_a_proj_with_mqa.weight");
    return converted ? model::testing::Coding::fp8_block : model::testing::Coding::keep;
  });
  for (const char* name : {"tokenizer.json", "chat_template.jinja", "skills.json", "model.safetensors.index.json"})
    EXPECT_TRUE(fs::is_regular_file(out() / name)) << name;
  EXPECT_FALSE(fs::exists(out().string() + ".tmp"));
}

TEST_F(Quantize, Nvfp4ExpertsOfNanoLoad) {
  convert(nano(), Coding::nvfp4, Coding::keep);
  expect_coded(nano(), out(), [](const std::string& name) {
    return is_expert(name) ? model::testing::Coding::nvfp4_modelopt : model::testing::Coding::keep;
  });
  const model::Shape shape = model::read_shape(out());
  const model::Checkpoint checkpoint = model::Checkpoint::open(out());
  const model::TextWeights weights = model::load_text_weights(checkpoint, shape);
  EXPECT_EQ(weights.layers[1].moe->experts[7].down_proj.format, ops::WeightFormat::nvfp4);
  EXPECT_EQ(weights.mtp->layer.moe->shared.gate_proj.format, ops::WeightFormat::nvfp4);
  EXPECT_EQ(weights.layers[0].mlp->gate_proj.format, ops::WeightFormat::bf16);
  const model::Comparison found = model::compare(checkpoint, shape);
  EXPECT_TRUE(found.missing.empty() && found.wrong.empty() && found.unknown.empty());
}

TEST_F(Quantize, SizesThatAreNoWholeBlocks) {
  convert(tiny(), Coding::fp8, Coding::fp8);
  const model::Checkpoint checkpoint = model::Checkpoint::open(out());
  const model::TextWeights weights = model::load_text_weights(checkpoint, model::read_shape(out()));
  EXPECT_EQ(weights.layers[0].mlp->down_proj.format, ops::WeightFormat::fp8_block);
  fs::remove_all(out());
  expect_parts(error_of([&] { convert(tiny(), Coding::nvfp4, Coding::fp8); }, ErrorCode::usage),
               {"--experts nvfp4", "down_proj.weight has 40 inputs", "16"});
}

TEST_F(Quantize, StackedExpertsAreTakenApart) {
  std::vector<StoredTensor> tensors = tensors_of(tiny());
  StoredTensor stack{text + "layers.1.mlp.experts.down_proj", model::DType::bf16, {6, 96, 40}, ""};
  std::erase_if(tensors, [&](const StoredTensor& tensor) {
    const bool moved = contains(tensor.name, "layers.1.mlp.experts.") && tensor.name.ends_with("down_proj.weight");
    if (moved) stack.bytes += tensor.bytes;  // sorted by name
    return moved;
  });
  tensors.push_back(stack);
  convert(written(tensors), Coding::fp8, Coding::keep);
  expect_coded(tiny(), out(), [](const std::string& name) {
    return is_expert(name) ? model::testing::Coding::fp8_block : model::testing::Coding::keep;
  });
}

TEST_F(Quantize, WhatItRefuses) {
  fs::create_directory(out());
  expect_parts(error_of([&] { convert(tiny(), Coding::fp8, Coding::keep); }, ErrorCode::usage), {"--out", "is there"});
  fs::rename(out(), out().string() + ".tmp");
  expect_parts(error_of([&] { convert(tiny(), Coding::fp8, Coding::keep); }, ErrorCode::usage),
               {"--out", "out.tmp is there", "earlier run"});
  fs::remove(out().string() + ".tmp");
  expect_parts(error_of([&] { convert(tiny(), Coding::keep, Coding::keep); }, ErrorCode::usage),
               {"nothing to convert"});
  convert(tiny(), Coding::fp8, Coding::keep);
  const fs::path first = folder_.path() / "first";
  fs::rename(out(), first);
  expect_parts(error_of([&] { convert(first, Coding::fp8, Coding::fp8); }), {"config.json", "quantization_config"});
  fs::copy_file(tiny() / "config.json", first / "config.json", fs::copy_options::overwrite_existing);
  expect_parts(error_of([&] { convert(first, Coding::keep, Coding::fp8); }), {"quantised already", "BF16"});
  EXPECT_FALSE(fs::exists(out())) << "nothing is written";
}

// What config.json says of a converted model is what is stored: a plan of the bare config has its bytes.
TEST_F(Quantize, ConfigSaysWhatIsStored) {
  for (const Coding experts : {Coding::keep, Coding::fp8, Coding::nvfp4}) {
    for (const Coding dense : {Coding::keep, Coding::fp8}) {
      if (experts == Coding::keep && dense == Coding::keep) continue;
      convert(nano(), experts, dense);
      const model::Shape shape = model::read_shape(out());
      const engine::WeightFormat format = engine::format_of_config(content(out() / "config.json"), "config.json");
      const engine::WeightBytes stated = engine::weights_in_format(shape, format),
                                stored = engine::weights_of_checkpoint(model::Checkpoint::open(out()), shape);
      EXPECT_EQ(stated.total, stored.total) << format.name();
      EXPECT_EQ(stated.rank, stored.rank) << format.name();
      fs::remove_all(out());
    }
  }
}

TEST_F(Quantize, ThreadsMakeNoDifferenceToAByte) {
  const fs::path first = folder_.path() / "first";
  convert(nano(), Coding::nvfp4, Coding::fp8, 1);
  fs::rename(out(), first);
  for (const int threads : {2, 5}) {
    int64_t last = 0;
    const QuantizeReport report =
        quantize({nano(), out(), Coding::nvfp4, Coding::fp8, threads}, [&](int64_t bytes_read, int64_t bytes) {
          EXPECT_GT(bytes_read, last);
          EXPECT_LE(bytes_read, bytes);
          last = bytes_read;
        });
    EXPECT_EQ(last, report.source_bytes);
    int files = 0;
    for (const fs::directory_entry& entry : fs::directory_iterator(first)) {
      EXPECT_TRUE(content(entry.path()) == content(out() / entry.path().filename())) << entry.path() << ' ' << threads;
      ++files;
    }
    EXPECT_EQ(std::distance(fs::directory_iterator(out()), fs::directory_iterator()), files);
    fs::remove_all(out());
  }
}

TEST_F(Quantize, ValuesThatAreNotFiniteLeaveNothingBehind) {
  std::vector<StoredTensor> tensors = tensors_of(tiny());
  for (StoredTensor& tensor : tensors)
    if (tensor.name.ends_with("layers.2.mlp.shared_experts.up_proj.weight") ||
        tensor.name.ends_with("experts.3.up_proj.weight"))
      std::memcpy(tensor.bytes.data() + 2 * 97, "\xc0\x7f", 2);
  const fs::path from = written(tensors);
  // The same weight is named, whichever thread comes first to one.
  const std::string named = error_of([&] { convert(from, Coding::fp8, Coding::keep); });
  expect_parts(named, {"layers.1.mlp.experts.3.up_proj.weight", "nan in row 1, column 1"});
  for (int i = 0; i < 5; ++i) EXPECT_EQ(error_of([&] { convert(from, Coding::fp8, Coding::keep, 4); }), named);
  EXPECT_FALSE(fs::exists(out()));
  EXPECT_FALSE(fs::exists(out().string() + ".tmp"));
}

}  // namespace
}  // namespace tandem::eval::quantize_test
