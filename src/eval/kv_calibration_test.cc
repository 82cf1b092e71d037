// The measured maxima against the specification's example, the file, and that calibrated scales are what the cache
// uses.
#include "eval/kv_calibration.h"

#include <cmath>

#include "base/error.h"
#include "eval/test_quality.h"
#include "model/checkpoint.h"

namespace tandem::eval::kv_calibration_test {
namespace {

struct Nano {
  std::string folder = std::string(TANDEM_SOURCE_DIR) + "/models/nano";
  model::Shape shape = model::read_shape(folder);
  model::Checkpoint checkpoint = model::Checkpoint::open(folder);
  model::TextWeights weights = model::load_text_weights(checkpoint, shape);
};

KvCalibration measured(const Nano& nano, const std::vector<int64_t>& sizes, int threads = 1) {
  return calibrate_kv(nano.shape, nano.weights, threads, counted_windows(sizes, nano.shape.vocab_size, 300));
}

TEST(KvCalibration, EveryLayerWithACacheIsMeasured) {
  const Nano nano;
  const KvCalibration calibration = measured(nano, {300, 40});
  const auto dsa = std::count(nano.shape.layer_types.begin(), nano.shape.layer_types.end(), model::AttentionKind::dsa);
  ASSERT_EQ(std::ssize(calibration.layers), dsa + 1);
  EXPECT_EQ(calibration.layers.back().layer, nano.shape.num_hidden_layers) << "the MTP layer";
  EXPECT_EQ(calibration.tokens, 340);
  for (const KvCalibration::Layer& layer : calibration.layers) {
    int exponent = 0;
    EXPECT_EQ(std::frexp(layer.scale, &exponent), 0.5f) << "a power of two";
    EXPECT_GE(layer.scale * 2688, layer.absolute_max);
    EXPECT_LT(layer.scale * 2688 / 2, layer.absolute_max);
  }
}

// Latents are near Gaussian, for which the format has a relative error of 0.0951 whatever the scale
// (spec/quantization.md 5.4): calibration keeps groups in range and gains nothing over rows with a scale of their own.
TEST(KvCalibration, TheErrorIsTheFormatsOwn) {
  const Nano nano;
  const KvCalibration calibration = measured(nano, {300, 300, 300, 300, 300, 300, 300, 300}, 2);
  EXPECT_EQ(calibration.sampled_rows, 1200) << "every second row";
  for (const KvCalibration::Layer& layer : calibration.layers) {
    EXPECT_NEAR(layer.row_scale_error, 0.0951, 0.004) << layer.layer;
    EXPECT_NEAR(layer.error / layer.row_scale_error, 1, 0.01) << layer.layer;
    EXPECT_NE(layer.error, layer.row_scale_error) << "two scales";
  }
  EXPECT_EQ(measured(nano, {40}).sampled_rows, 40);
}

TEST(KvCalibration, MoreTextHasNoSmallerMaxima) {
  const Nano nano;
  const KvCalibration all = measured(nano, {300, 40}), first = measured(nano, {300}, 2);
  bool more = false;
  for (size_t i = 0; i < all.layers.size(); ++i) {
    EXPECT_GE(all.layers[i].absolute_max, first.layers[i].absolute_max);
    more = more || all.layers[i].absolute_max > first.layers[i].absolute_max;
  }
  const KvCalibration again = measured(nano, {300}, 1);
  for (size_t i = 0; i < again.layers.size(); ++i)
    EXPECT_EQ(again.layers[i].absolute_max, first.layers[i].absolute_max) << "whatever the threads";
  for (size_t i = 0; i < again.layers.size(); ++i)
    EXPECT_EQ(again.layers[i].error, first.layers[i].error) << "whatever the threads";
}

TEST(KvCalibration, TheFileIsReadBack) {
  const Nano nano;
  KvCalibration calibration = measured(nano, {40});
  const std::string json = kv_calibration_json(calibration, "this model");
  EXPECT_TRUE(json.starts_with("{\n  \"schema\": \"tandem.kv_calibration/1\""));
  const KvCalibration read = parse_kv_calibration(json, "file", "this model", nano.shape, true);
  EXPECT_EQ(read.scales(), calibration.scales());
  EXPECT_EQ(read.tokens, 40);
  EXPECT_EQ(parse_kv_calibration(json, "file", "this model", nano.shape, false).layers.size(),
            calibration.layers.size() - 1);

  const auto refused = [&](const std::string& text, const std::string& key, const char* named) {
    try {
      parse_kv_calibration(text, "file", key, nano.shape, true);
      ADD_FAILURE() << named;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::bad_file);
      EXPECT_NE(std::string(e.what()).find(named), std::string::npos) << e.what();
    }
  };
  refused(json, "another model", "key");
  refused("{", "this model", "file");
  KvCalibration wrong = calibration;
  wrong.layers[0].scale *= 2;
  refused(kv_calibration_json(wrong, "this model"), "this model", "scale");
  wrong = calibration;
  wrong.layers[0].absolute_max = -1;
  refused(kv_calibration_json(wrong, "this model"), "this model", "absolute_max");
  wrong = calibration;
  wrong.layers.pop_back();
  refused(kv_calibration_json(wrong, "this model"), "this model", std::to_string(nano.shape.num_hidden_layers).c_str());
}

}  // namespace
}  // namespace tandem::eval::kv_calibration_test
