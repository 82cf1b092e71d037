// Scales that were calibrated are found again by their model and by no other.
#include "cli/kv_scales.h"

#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "model/testing/checkpoint_files.h"

namespace tandem::cli::kv_scales_test {
namespace {

namespace fs = std::filesystem;
using forward::CacheType;
using model::testing::error_of;
using model::testing::expect_parts;

class KvScales : public ::testing::Test {
 protected:
  fs::path nano() const { return model::testing::source_dir() / "models/nano"; }
  fs::path cache() const { return folder_.path() / "cache"; }
  // A text of two sentences calibrates in no time.
  CalibrateKvOptions options() const {
    CalibrateKvOptions options;
    options.model = nano();
    options.text = (folder_.path() / "text.txt").string();
    std::ofstream(options.text) << "<|user|>Who are you?<|assistant|>The old bridge of Prague.";
    options.threads = 1;
    options.cache_dir = cache();
    options.json = true;
    return options;
  }
  // The one file below the cache folder; empty: there is none.
  fs::path stored() const {
    std::error_code error;
    fs::path found;
    for (const auto& entry : fs::recursive_directory_iterator(cache(), error))
      if (entry.is_regular_file()) found = found.empty() ? entry.path() : "more than one";
    return found;
  }
  std::vector<float> scales(const std::string& kv_scales, CacheType type = CacheType::nvfp4,
                            bool with_mtp = true) const {
    return stored_kv_scales(type, kv_scales, cache(), nano(), checkpoint_, shape_, with_mtp);
  }

  model::testing::TemporaryFolder folder_;
  model::Shape shape_ = model::read_shape(nano());
  model::Checkpoint checkpoint_ = model::Checkpoint::open(nano());
};

TEST_F(KvScales, AreFoundAgain) {
  EXPECT_TRUE(scales("auto").empty()) << "nothing was calibrated";
  EXPECT_EQ(run_calibrate_kv(options()), 0);
  ASSERT_FALSE(stored().empty());
  const std::vector<float> found = scales("auto");
  EXPECT_EQ(found.size(), 3u) << "layers 3 and 7, and the MTP layer";
  for (const float scale : found) EXPECT_GT(scale, 0);
  EXPECT_EQ(scales(stored().string()), found);
  EXPECT_EQ(scales("auto", CacheType::nvfp4, false), std::vector<float>(found.begin(), found.end() - 1));
  EXPECT_TRUE(scales("none").empty());
  EXPECT_EQ(run_calibrate_kv(options()), 0) << "a second time";
  EXPECT_EQ(scales("auto"), found);
}

TEST_F(KvScales, OtherTypesHaveNone) {
  run_calibrate_kv(options());
  for (const CacheType type : model::all_cache_types) {
    if (type == CacheType::nvfp4) continue;
    EXPECT_TRUE(scales("auto", type).empty());
    for (const std::string& given : {std::string("none"), stored().string()})
      expect_parts(error_of([&] { scales(given, type); }, ErrorCode::usage), {"--kv-scales", "nvfp4"});
  }
}

TEST_F(KvScales, FilesThatAreRefused) {
  run_calibrate_kv(options());
  const fs::path file = stored();
  // Another model's: the same config with other weights has another key.
  std::string text = model::testing::read_file(file);
  const size_t key = text.find("model config ") + std::string("model config ").size();
  text[key] = text[key] == '0' ? '1' : '0';
  std::ofstream(folder_.path() / "other.json") << text;
  expect_parts(error_of([&] { scales((folder_.path() / "other.json").string()); }), {"other.json", "key"});
  // What lies in the model's own place is not passed over.
  std::ofstream(file) << "{";
  expect_parts(error_of([&] { scales("auto"); }), {file.filename().string()});
  expect_parts(error_of([&] { scales((folder_.path() / "none.json").string()); }), {"none.json"});
}

TEST_F(KvScales, CalibrationsThatAreRefused) {
  CalibrateKvOptions wrong = options();
  wrong.window = shape_.max_position_embeddings + 1;
  expect_parts(error_of([&] { run_calibrate_kv(wrong); }, ErrorCode::usage), {"--window", "max_position_embeddings"});
  wrong = options();
  std::ofstream(wrong.text) << "a";
  expect_parts(error_of([&] { run_calibrate_kv(wrong); }), {"text.txt", "too short"});
  wrong.text = (folder_.path() / "none.txt").string();
  EXPECT_THROW(run_calibrate_kv(wrong), Error);
  // A model without a text of its own, though with one to be evaluated on.
  wrong.text.clear();
  wrong.model = folder_.path() / "model";
  fs::create_directory(wrong.model);
  for (const char* name : {"config.json", "tokenizer.json", "eval_text.jsonl"})
    fs::copy_file(nano() / name, wrong.model / name);
  expect_parts(error_of([&] { run_calibrate_kv(wrong); }, ErrorCode::usage),
               {"--calibration", "calibration_text.jsonl"});
  EXPECT_TRUE(stored().empty());
}

}  // namespace
}  // namespace tandem::cli::kv_scales_test
