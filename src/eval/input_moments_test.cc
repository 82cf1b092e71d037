// Sums of outer products against plain ones, and a model run layer by layer against the model as a whole.
#include "eval/input_moments.h"

#include <cmath>
#include <limits>
#include <random>

#include "eval/layer_calibration.h"
#include "eval/test_quality.h"
#include "forward/step.h"
#include "forward/test_models.h"
#include "forward/text_model.h"
#include "model/testing/checkpoint_files.h"

namespace tandem::eval::input_moments_test {
namespace {

using Moments = std::map<InputKey, quant::Exl3Moments>;

std::vector<float> random_values(int64_t count, uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0, 1);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = normal(generator);
  return values;
}

quant::Exl3Moments empty(int64_t features) {
  quant::Exl3Moments moments;
  moments.features = features;
  return moments;
}

TEST(AddRows, AreWeightedOuterProducts) {
  constexpr int64_t n = 37, rows = 11;
  const std::vector<float> x = random_values(n * rows, 1), weights = random_values(rows, 2);
  device::Threads threads(3);
  quant::Exl3Moments moments = empty(n);
  add_rows(moments, x.data(), 6, weights.data(), threads);
  add_rows(moments, x.data() + 6 * n, rows - 6, weights.data() + 6, threads);
  double total = 0;
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j <= i; ++j) {
      double sum = 0;
      for (int64_t row = 0; row < rows; ++row)
        sum += static_cast<double>(weights[static_cast<size_t>(row)]) * x[static_cast<size_t>(row * n + i)] *
               x[static_cast<size_t>(row * n + j)];
      EXPECT_DOUBLE_EQ(moments.sums[static_cast<size_t>(i * n + j)], sum);
    }
  for (const float weight : weights) total += weight;
  EXPECT_DOUBLE_EQ(moments.weight, total);
  EXPECT_EQ(moments.rows, rows);
  device::Threads one(1);
  quant::Exl3Moments again = empty(n);
  add_rows(again, x.data(), rows, weights.data(), one);
  EXPECT_EQ(again.sums, moments.sums) << "neither threads nor pieces decide a bit";
}

TEST(AddRows, LeaveOutWhatIsNotFinite) {
  std::vector<float> x = random_values(5 * 4, 3);
  x[4 * 1 + 2] = std::numeric_limits<float>::quiet_NaN();
  x[4 * 3] = std::numeric_limits<float>::infinity();
  device::Threads threads(1);
  quant::Exl3Moments moments = empty(4);
  add_rows(moments, x.data(), 5, nullptr, threads);
  EXPECT_EQ(moments.rows, 3);
  EXPECT_EQ(moments.dropped_rows, 2);
  EXPECT_EQ(moments.weight, 3);
  for (const double sum : moments.sums) EXPECT_TRUE(std::isfinite(sum));
}

// Keys of every place of a layer of tinyA.
Moments every_place(const forward::Loaded& model, int64_t layer) {
  const model::LayerWeights& weights = layer == model.shape.num_hidden_layers
                                           ? model.weights.mtp->layer
                                           : model.weights.layers[static_cast<size_t>(layer)];
  Moments moments;
  const int64_t hidden = model.shape.hidden_size;
  moments[{InputSite::attention}].features = hidden;
  moments[{InputSite::attention_output}].features =
      weights.kda ? weights.kda->o_proj.in_features : weights.dsa->o_proj.in_features;
  if (weights.dsa) moments[{InputSite::query}].features = weights.dsa->q_b_proj.in_features;
  moments[{InputSite::mlp}].features = hidden;
  moments[{InputSite::mlp_down}].features =
      weights.moe ? weights.moe->shared.down_proj.in_features : weights.mlp->down_proj.in_features;
  for (size_t e = 0; weights.moe && e < weights.moe->experts.size(); ++e) {
    moments[{InputSite::expert, static_cast<int64_t>(e)}].features = hidden;
    moments[{InputSite::expert_down, static_cast<int64_t>(e)}].features = weights.moe->experts[e].down_proj.in_features;
  }
  return moments;
}

// The same from one run of the whole model.
void whole_model(const forward::Loaded& model, const Windows& windows, int64_t layer, RowWeight weight,
                 Moments& moments, Moments* head = nullptr) {
  device::Threads threads(2);
  forward::Capacity capacity;
  capacity.max_logit_rows = 1;
  forward::TextModel text(model.shape, model.weights, threads, capacity);
  const bool is_mtp = layer == model.shape.num_hidden_layers;
  MomentProbe probe(layer, is_mtp ? model.weights.mtp->layer : model.weights.layers[static_cast<size_t>(layer)],
                    model.shape, weight, moments, threads);
  for (const Window& window : windows.windows) {
    text.run(forward::single_stream_step(window.ids, 0, 1), &probe);
    if (head != nullptr)
      add_rows(head->at({InputSite::head}), text.hidden().data(), std::ssize(window.ids), nullptr, threads);
    if (!is_mtp) continue;
    const std::vector<float> hidden(text.hidden().begin(), text.hidden().end() - model.shape.hidden_size);
    text.run_mtp(forward::single_stream_step(std::span(window.ids).subspan(1), 0, 1), hidden, true, &probe);
  }
}

void expect_same(const Moments& found, const Moments& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [key, moments] : expected) {
    EXPECT_EQ(found.at(key).sums, moments.sums) << name_of(key);
    EXPECT_EQ(found.at(key).rows, moments.rows) << name_of(key);
    EXPECT_EQ(found.at(key).weight, moments.weight) << name_of(key);
  }
}

// Bit for bit: a row's arithmetic does not depend on how the model is cut.
TEST(LayerCalibration, IsTheWholeModelLayerByLayer) {
  const forward::Loaded& model = forward::loaded("tinyA");
  const Windows windows = counted_windows({150, 60}, model.shape.vocab_size, 150);
  const model::testing::TemporaryFolder folder;
  device::Threads threads(1);
  LayerCalibration calibration(model.shape, windows, folder.path(), threads);
  for (int64_t layer = 0;; ++layer) {
    EXPECT_EQ(calibration.layer(), layer);
    const RowWeight weight = layer % 2 == 0 ? RowWeight::one : RowWeight::squared_routing;
    Moments found = every_place(model, layer), expected = found;
    calibration.capture(model.weights, weight, found);
    whole_model(model, windows, layer, weight, expected);
    expect_same(found, expected);
    if (layer + 1 == model.shape.num_hidden_layers) break;
    calibration.advance(model.weights);
  }
  Moments mtp = every_place(model, model.shape.num_hidden_layers), expected = mtp, head, expected_head;
  head[{InputSite::head}].features = expected_head[{InputSite::head}].features = model.shape.hidden_size;
  calibration.capture_end(model.weights, RowWeight::one, head, mtp);
  whole_model(model, windows, model.shape.num_hidden_layers, RowWeight::one, expected, &expected_head);
  expect_same(mtp, expected);
  expect_same(head, expected_head);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path())) << "the streams' file has no name";
}

// down sees silu(min(gate, limit))·clamp(up, ±limit) (3.7), of the rows that are routed to it.
TEST(MomentProbe, DownSeesTheClampedActivation) {
  forward::Loaded model(forward::golden + "tinyA");
  model.shape.swiglu_limit = 0.05f;  // so low that most values are clamped
  const model::LayerWeights& layer = model.weights.layers[1];
  const std::vector<float> x = random_values(3 * model.shape.hidden_size, 5);
  const std::vector<int32_t> chosen = {0, 2, 4, 1, 2, 5, 0, 3, 4};
  const std::vector<float> routing = {0.5f, 1.0f, 0.25f, 2.0f, 0.75f, 0.1f, 0.3f, 0.4f, 1.5f};
  Moments moments;
  moments[{InputSite::expert, 2}].features = model.shape.hidden_size;
  moments[{InputSite::expert_down, 2}].features = model.shape.moe_intermediate_size;
  device::Threads threads(1);
  MomentProbe probe(7, layer, model.shape, RowWeight::squared_routing, moments, threads);
  probe.inputs(7, forward::LinearInput::feed_forward, 3, model.shape.hidden_size, x.data());
  probe.routing(7, 3, 3, chosen.data(), routing.data(), nullptr);
  probe.inputs(6, forward::LinearInput::feed_forward, 3, model.shape.hidden_size, x.data());  // another layer
  probe.routing(6, 3, 3, chosen.data(), routing.data(), nullptr);
  EXPECT_EQ(moments.at({InputSite::expert, 2}).rows, 2);
  EXPECT_NEAR(moments.at({InputSite::expert, 2}).weight, 1.0 + 0.75 * 0.75, 1e-6);
  const model::MlpWeights& expert = layer.moe->experts[2];
  const auto value = [&](const model::Matrix& m, int64_t out, int64_t row) {
    double sum = 0;
    for (int64_t i = 0; i < m.in_features; ++i) {
      uint16_t half;
      std::memcpy(&half, m.data + 2 * (out * m.in_features + i), 2);
      const uint32_t bits = static_cast<uint32_t>(half) << 16;
      float w;
      std::memcpy(&w, &bits, 4);
      sum += static_cast<double>(w) * x[static_cast<size_t>(row * m.in_features + i)];
    }
    return sum;
  };
  const double limit = model.shape.swiglu_limit;
  int clamped = 0;
  for (const int64_t unit : {0, 7, 39}) {
    double sum = 0;
    for (int64_t row = 0; row < 2; ++row) {
      const double gate = std::min(value(expert.gate_proj, unit, row), limit), up = value(expert.up_proj, unit, row);
      clamped += std::abs(up) > limit ? 1 : 0;
      const double mid = gate / (1 + std::exp(-gate)) * std::clamp(up, -limit, limit);
      sum += (row == 0 ? 1.0 : 0.75 * 0.75) * mid * mid;
    }
    const auto at = static_cast<size_t>(unit * model.shape.moe_intermediate_size + unit);
    EXPECT_NEAR(moments.at({InputSite::expert_down, 2}).sums[at], sum, 1e-5 * sum + 1e-12) << unit;
  }
  EXPECT_GT(clamped, 0);
}

// Weights that give NaN from a layer on.
TEST(LayerCalibration, RefusesRowsThatAreNotFinite) {
  forward::Loaded model(forward::golden + "tinyA");
  for (float& value : model.weights.layers[2].input_layernorm) value = std::numeric_limits<float>::infinity();
  const Windows windows = counted_windows({20}, model.shape.vocab_size, 20);
  const model::testing::TemporaryFolder folder;
  device::Threads threads(1);
  LayerCalibration calibration(model.shape, windows, folder.path(), threads);
  calibration.advance(model.weights);
  calibration.advance(model.weights);
  Moments moments;
  moments[{InputSite::attention}].features = model.shape.hidden_size;
  model::testing::expect_parts(
      model::testing::error_of([&] { calibration.capture(model.weights, RowWeight::one, moments); }),
      {"layer 2", "attention", "20 of 20", "not finite"});
}

}  // namespace
}  // namespace tandem::eval::input_moments_test
