// A probe on the latent rows of teacher-forced windows, the errors of a sample of them, and the JSON file.
#include "eval/kv_calibration.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "device/threads.h"
#include "forward/probe.h"
#include "forward/step.h"
#include "forward/text_model.h"
#include "model/json_reader.h"
#include "quant/cache_records.h"

namespace tandem::eval {
namespace {

constexpr const char* kv_calibration_schema = "tandem.kv_calibration/1";
constexpr int64_t chunk_rows = 256;
constexpr int64_t sampled_rows = 1024;  // of a layer, at least

std::vector<int64_t> layers_with_caches(const model::Shape& shape, bool with_mtp) {
  std::vector<int64_t> layers;
  for (size_t i = 0; i < shape.layer_types.size(); ++i)
    if (shape.layer_types[i] == model::AttentionKind::dsa) layers.push_back(static_cast<int64_t>(i));
  if (with_mtp) layers.push_back(shape.num_hidden_layers);
  return layers;
}

// The largest magnitude of each layer, NaN once a latent was not finite, and every `stride`-th row.
class Latents : public forward::Probe {
 public:
  Latents(const model::Shape& shape, int64_t stride)
      : layers_(static_cast<size_t>(shape.num_hidden_layers + 1)), stride_(stride) {}
  void latents(int64_t layer, int64_t rows, int64_t width, const float* values) override {
    Layer& found = layers_[static_cast<size_t>(layer)];
    for (int64_t i = 0; i < rows * width; ++i) {
      if (!std::isfinite(values[i])) found.largest = std::numeric_limits<float>::quiet_NaN();
      if (std::abs(values[i]) > found.largest) found.largest = std::abs(values[i]);
    }
    for (int64_t row = 0; row < rows; ++row)
      if (found.seen++ % stride_ == 0)
        found.sample.insert(found.sample.end(), values + row * width, values + (row + 1) * width);
  }
  float largest(int64_t layer) const { return layers_[static_cast<size_t>(layer)].largest; }
  const std::vector<float>& sample(int64_t layer) const { return layers_[static_cast<size_t>(layer)].sample; }

 private:
  struct Layer {
    float largest = 0;
    int64_t seen = 0;
    std::vector<float> sample;  // [rows, width]
  };
  std::vector<Layer> layers_;
  int64_t stride_;
};

// ‖stored − row‖ / ‖row‖ over all rows, stored as nvfp4 with this outer scale, or 0: each with its own.
double error_of(const std::vector<float>& rows, int64_t width, float scale) {
  const quant::CacheRecord record = quant::cache_record(quant::RecordKind::latent_nvfp4, width);
  std::vector<std::byte> stored(static_cast<size_t>(record.bytes));
  std::vector<float> read(static_cast<size_t>(width));
  double error = 0, norm = 0;
  for (size_t first = 0; first < rows.size(); first += read.size()) {
    quant::encode_record(record, rows.data() + first, scale, stored.data(), nullptr);
    quant::decode_record(record, stored.data(), nullptr, read.data());
    for (size_t i = 0; i < read.size(); ++i) {
      const double value = rows[first + i], difference = read[i] - value;
      error += difference * difference;
      norm += value * value;
    }
  }
  return norm > 0 ? std::sqrt(error / norm) : 0;
}

void run_window(forward::TextModel& text, const Window& window, const model::Shape& shape, int32_t pages, bool with_mtp,
                Latents& probe) {
  const std::span<const int32_t> ids(window.ids);
  const auto total = std::ssize(window.ids);
  for (int64_t first = 0; first < total; first += chunk_rows) {
    const int64_t rows = std::min(chunk_rows, total - first);
    text.run(
        forward::single_stream_step(ids.subspan(static_cast<size_t>(first), static_cast<size_t>(rows)), first, pages),
        &probe);
    const int64_t paired = std::min(rows, total - 1 - first);  // rows with a next token
    if (!with_mtp || paired < 1) continue;
    const std::vector<float> hidden(text.hidden().begin(), text.hidden().begin() + paired * shape.hidden_size);
    text.run_mtp(forward::single_stream_step(ids.subspan(static_cast<size_t>(first + 1), static_cast<size_t>(paired)),
                                             first, pages),
                 hidden, true, &probe);
  }
}

}  // namespace

std::vector<float> KvCalibration::scales() const {
  std::vector<float> scales;
  for (const Layer& layer : layers) scales.push_back(layer.scale);
  return scales;
}

KvCalibration calibrate_kv(const model::Shape& shape, const model::TextWeights& weights, int threads,
                           const Windows& windows, const KvProgress& progress) {
  constexpr int64_t page_rows = forward::TextModel::page_rows;
  const auto pages = static_cast<int32_t>((windows.size + page_rows - 1) / page_rows);
  forward::Capacity capacity;
  capacity.pages = 1 + pages;
  capacity.max_rows = chunk_rows;
  capacity.max_logit_rows = 1;
  device::Threads pool(threads);
  forward::TextModel text(shape, weights, pool, capacity);
  Latents probe(shape, std::max<int64_t>(1, windows.tokens() / sampled_rows));
  const bool with_mtp = weights.mtp.has_value();
  for (size_t i = 0; i < windows.windows.size(); ++i) {
    run_window(text, windows.windows[i], shape, pages, with_mtp, probe);
    if (progress) progress(i + 1);
  }
  KvCalibration calibration;
  calibration.tokens = windows.tokens();
  calibration.token_sha256 = hex(windows.token_hash);
  for (const int64_t layer : layers_with_caches(shape, with_mtp)) {
    KvCalibration::Layer found;
    found.layer = layer;
    found.absolute_max = probe.largest(layer);
    found.scale = quant::nvfp4_calibrated_scale(found.absolute_max, fmt::format("latents of layer {}", layer));
    found.error = error_of(probe.sample(layer), shape.kv_lora_rank, found.scale);
    found.row_scale_error = error_of(probe.sample(layer), shape.kv_lora_rank, 0);
    calibration.layers.push_back(found);
  }
  if (!calibration.layers.empty())
    calibration.sampled_rows = std::ssize(probe.sample(calibration.layers.front().layer)) / shape.kv_lora_rank;
  return calibration;
}

std::string kv_calibration_json(const KvCalibration& calibration, std::string_view key) {
  nlohmann::ordered_json json;
  json["schema"] = kv_calibration_schema;
  json["key"] = key;
  json["policy"] = "power_of_two_ceil_amax_over_denominator";  // the name that published calibrations give it
  json["denominator"] = 2688;
  json["tokens"] = calibration.tokens;
  json["sampled_rows"] = calibration.sampled_rows;
  json["token_sha256"] = calibration.token_sha256;
  auto& layers = json["layers"] = nlohmann::ordered_json::object();
  for (const KvCalibration::Layer& layer : calibration.layers)
    layers[std::to_string(layer.layer)] = {{"absolute_max", layer.absolute_max},
                                           {"scale", layer.scale},
                                           {"error", layer.error},
                                           {"row_scale_error", layer.row_scale_error}};
  return json.dump(2) + "\n";
}

KvCalibration parse_kv_calibration(std::string_view text, const std::string& where, std::string_view key,
                                   const model::Shape& shape, bool with_mtp) {
  const model::JsonDocument document(text, where);
  const model::JsonObject root = document.root();
  if (root.text("schema") != kv_calibration_schema) root.refuse("schema", kv_calibration_schema);
  if (root.text("key") != key) root.refuse("key", std::string(key));
  KvCalibration calibration;
  calibration.tokens = root.integer("tokens", {1});
  calibration.token_sha256 = root.text("token_sha256");
  const model::JsonObject layers = root.object("layers");
  for (const int64_t number : layers_with_caches(shape, with_mtp)) {
    const model::JsonObject layer = layers.object(std::to_string(number));
    KvCalibration::Layer read;
    read.layer = number;
    read.absolute_max = static_cast<float>(layer.number("absolute_max"));
    read.scale = static_cast<float>(layer.number("scale"));
    if (!(std::isfinite(read.absolute_max) && read.absolute_max > 0))
      layer.refuse("absolute_max", "a finite number above 0");
    if (const float scale = quant::nvfp4_calibrated_scale(read.absolute_max, where); read.scale != scale)
      layer.refuse("scale", fmt::format("{}, the power of two at absolute_max / 2688 or above", scale));
    calibration.layers.push_back(read);
  }
  return calibration;
}

}  // namespace tandem::eval
