// Captures, encodes and exchanges, one decoder layer after the other.
#include "eval/model_walk.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "eval/hash.h"
#include "eval/shared_vectors.h"
#include "quant/exl3_codebook.h"

namespace tandem::eval {
namespace {

using model::Component;

// Bytes of sums that are in memory at a time: the layer is run again for those that are left.
constexpr int64_t moments_budget = int64_t{2} << 30;

int64_t bytes_of(int64_t features) { return features * features * static_cast<int64_t>(sizeof(double)); }

bool ends(const std::string& name, const char* ending) { return name.ends_with(ending); }

// Every matrix of the text model under the loader's name.
class Places final : public model::WeightVisitor {
 public:
  explicit Places(std::map<std::string, model::Matrix*>& places) : places_(places) {}
  void matrix(const model::WeightSpec& spec, model::Matrix& target) override { places_[spec.name] = &target; }
  void vector(const model::WeightSpec& /*spec*/, model::Vector& /*target*/) override {}

 private:
  std::map<std::string, model::Matrix*>& places_;
};

int64_t expert_of(const std::string& place) {
  constexpr std::string_view before = ".experts.";
  return std::stoll(place.substr(place.find(before) + before.size()));
}

std::vector<std::byte> bytes_of(const quant::Exl3Encoded& result, quant::Exl3Codebook codebook) {
  std::vector<std::byte> data = result.trellis;
  const auto append = [&data](const auto& values) {
    const auto bytes = std::as_bytes(std::span(values));
    data.insert(data.end(), bytes.begin(), bytes.end());
  };
  append(result.suh);
  append(result.svh);
  if (codebook != quant::Exl3Codebook::three_inst)
    append(
        std::vector<uint32_t>{codebook == quant::Exl3Codebook::mcg ? quant::mcg_multiplier : quant::mul1_multiplier});
  return data;
}

quant::Exl3Encoded encode_matrix(std::string_view name, const float* weight, int64_t out, int64_t in,
                                 const quant::Exl3Hessian& hessian, const quant::Exl3EncodeSettings& settings,
                                 const quant::Exl3GivenVectors* given, device::Threads& threads) {
  return given == nullptr ? quant::exl3_encode(name, weight, out, in, hessian, settings, threads)
                          : quant::exl3_encode(name, weight, out, in, hessian, settings, *given, threads);
}

}  // namespace

InputKey input_of(const ConvertedWeight& weight) {
  const bool is_down = ends(weight.place, ".down_proj.weight");
  switch (weight.component) {
    case Component::lm_head: return {InputSite::head};
    case Component::routed_experts:
      return {is_down ? InputSite::expert_down : InputSite::expert, expert_of(weight.place)};
    case Component::shared_expert:
    case Component::dense_mlp: return {is_down ? InputSite::mlp_down : InputSite::mlp};
    default: break;
  }
  if (ends(weight.place, ".o_proj.weight")) return {InputSite::attention_output};
  return {ends(weight.place, ".q_b_proj.weight") ? InputSite::query : InputSite::attention};
}

ModelWalk::ModelWalk(const QuantizeOptions& options, const model::Shape& shape, const model::TextWeights& weights,
                     const ConversionPlan& plan, const std::filesystem::path& folder, device::Threads& threads)
    : options_(options), shape_(shape), coded_(weights), folder_(folder), threads_(threads) {
  Places visitor(places_);
  model::visit_main_weights(shape, coded_, visitor);
  if (coded_.mtp) model::visit_mtp_weights(shape, coded_, visitor);
  for (const auto& [name, converted] : plan.converted)
    for (const ConvertedWeight& weight : converted) by_layer_[weight.layer].push_back(&weight);
}

ModelWalk::~ModelWalk() = default;

void ModelWalk::run(WalkStore& store, Predecessors predecessors) {
  if (options_.exl3.is_calibrated)
    calibration_ = std::make_unique<LayerCalibration>(shape_, options_.exl3.calibration, folder_, threads_);
  const model::TextWeights source = predecessors == Predecessors::source ? coded_ : model::TextWeights{};
  for (int64_t layer = 0; layer < shape_.num_hidden_layers && store.goes_on(); ++layer) {
    encode_part(store, layer, Part::layer);
    if (layer + 1 == shape_.num_hidden_layers) break;
    const auto at = static_cast<size_t>(layer);
    if (predecessors == Predecessors::source) coded_.layers[at] = source.layers[at];
    if (calibration_) calibration_->advance(coded_);
    held_.clear();  // nothing runs this layer any more
  }
  if (!store.goes_on()) return;
  if (predecessors == Predecessors::source) coded_.layers.back() = source.layers.back();
  encode_part(store, shape_.num_hidden_layers, Part::end);
}

// Phases of a part: in TR3 a layer's down matrices see what the coded gate and up make of the tokens (3.3).
void ModelWalk::encode_part(WalkStore& store, int64_t layer, Part part) {
  Weights first, second;
  for (const ConvertedWeight* weight : by_layer_[layer]) {
    const bool is_late = options_.exl3.layout == Exl3Layout::tr3 && input_of(*weight).site == InputSite::expert_down;
    (is_late ? second : first).push_back(weight);
  }
  if (part == Part::end) {
    const Weights& head = by_layer_[-1];
    first.insert(first.end(), head.begin(), head.end());
  }
  encode_phase(store, first, part);
  encode_phase(store, second, part);
}

void ModelWalk::encode_phase(WalkStore& store, const Weights& weights, Part part) {
  Weights batch;
  std::set<InputKey> keys;
  int64_t bytes = 0;
  bool has_shared = false;
  for (const ConvertedWeight* weight : weights) {
    if (!store.is_wanted(*weight)) continue;
    if (weight->coding != Coding::exl3) {
      store.encoded(*weight, {.name = weight->module()}, eval::encoded(*weight));
      continue;
    }
    if (!has_shared && options_.exl3.layout == Exl3Layout::tr3) {
      share_vectors(weights, part);
      has_shared = true;
    }
    // Weights with the same inputs follow each other only by chance: those of a key that is in the batch join it.
    const InputKey key = input_of(*weight);
    const int64_t more = bytes_of(weight->matrix.in_features);
    if (!keys.contains(key)) {
      if (!keys.empty() && bytes + more > moments_budget) {
        encode_batch(store, batch, part);
        batch.clear();
        keys.clear();
        bytes = 0;
      }
      keys.insert(key);
      bytes += more;
    }
    batch.push_back(weight);
  }
  if (!batch.empty()) encode_batch(store, batch, part);
  given_.clear();
  replace(store, weights);
}

void ModelWalk::capture(Part part, Moments& layer, Moments& end) {
  if (!calibration_) return;  // moments of no rows
  const RowWeight weight = options_.exl3.layout == Exl3Layout::tr3 ? RowWeight::squared_routing : RowWeight::one;
  if (part == Part::layer) return calibration_->capture(coded_, weight, layer);
  calibration_->capture_end(coded_, weight, end, layer);
}

void ModelWalk::encode_batch(WalkStore& store, const Weights& weights, Part part) {
  Moments layer, head;
  std::map<InputKey, Weights> by_key;
  for (const ConvertedWeight* weight : weights) {
    const InputKey key = input_of(*weight);
    by_key[key].push_back(weight);
    (key.site == InputSite::head ? head : layer)[key].features = weight->matrix.in_features;
  }
  capture(part, layer, head);
  for (const auto& [key, sharing] : by_key) {
    Moments& found = key.site == InputSite::head ? head : layer;
    encode_inputs(store, sharing, key, found.at(key), sharing.front()->layer);
    found.erase(key);
  }
}

void ModelWalk::encode_inputs(WalkStore& store, const Weights& weights, InputKey key, const quant::Exl3Moments& moments,
                              int64_t layer) {
  const Exl3Options& options = options_.exl3;
  const std::string inputs = fmt::format("{} inputs of layer {}", name_of(key), layer);
  const uint64_t seed = input_seed(key, layer);
  const int64_t features = weights.front()->matrix.in_features;
  const auto make = [&] {
    if (moments.rows == 0) return quant::Exl3Hessian(inputs, features, seed);
    return quant::Exl3Hessian(inputs, moments, seed, threads_);
  };
  const auto before = std::chrono::steady_clock::now();
  const quant::Exl3Hessian hessian = make();
  const std::chrono::duration<double> shared = std::chrono::steady_clock::now() - before;
  for (const ConvertedWeight* weight : weights) {
    const auto start = std::chrono::steady_clock::now();
    const std::string name = weight->module();
    const std::vector<float> values = values_of(*weight);
    const quant::Exl3EncodeSettings settings{weight->bits, options.codebook, options.out_scales, options.scale_search,
                                             seed_of(options.seed, name)};
    const auto given = given_.find(name);
    const quant::Exl3GivenVectors* vectors = given == given_.end() ? nullptr : &given->second;
    const quant::Exl3Encoded result = (options.encode ? options.encode : EncodeMatrix(encode_matrix))(
        name, values.data(), weight->matrix.out_features, features, hessian, settings, vectors, threads_);
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    EncodedTensor facts;
    facts.name = name;
    facts.bits = result.bits;
    facts.scale = result.scale;
    facts.relative_mse = result.relative_mse;
    facts.proxy_error = result.proxy_error;
    facts.calibration_rows = moments.rows;
    facts.dropped_rows = moments.dropped_rows;
    facts.damping_retries = hessian.damping_retries();
    facts.fallback = hessian.is_fallback();
    facts.seconds = taken.count() + shared.count() / static_cast<double>(weights.size());
    store.encoded(*weight, facts, bytes_of(result, options.codebook));
  }
}

// Random signs of the inputs: in TR3 those that all experts of a layer share.
uint64_t ModelWalk::input_seed(InputKey key, int64_t layer) const {
  const bool is_shared = options_.exl3.layout == Exl3Layout::tr3 && key.site == InputSite::expert;
  return seed_of(options_.exl3.seed, fmt::format("layer {} {} suh", layer, is_shared ? "gate and up" : name_of(key)));
}

void ModelWalk::replace(WalkStore& store, const Weights& weights) {
  for (const ConvertedWeight* weight : weights) {
    if (weight->component == Component::lm_head) continue;  // nothing comes after it
    held_.push_back(store.found(*weight));
    *places_.at(weight->place) = coded_matrix(*weight, held_.back().data, options_.exl3.codebook);
  }
}

// Masses are counted in a pass of its own, which sums nothing else.
void ModelWalk::share_vectors(const Weights& weights, Part part) {
  Moments counts, none;
  for (const ConvertedWeight* weight : weights)
    if (weight->component == Component::routed_experts) counts[input_of(*weight)];
  capture(part, counts, none);
  for (const bool down : {false, true}) {
    std::vector<SharingMatrix> matrices;
    Weights sharing;
    for (const ConvertedWeight* weight : weights) {
      const InputKey key = input_of(*weight);
      if (weight->component != Component::routed_experts || (key.site == InputSite::expert_down) != down) continue;
      sharing.push_back(weight);
      matrices.push_back({[weight] { return values_of(*weight); }, weight->matrix.out_features,
                          weight->matrix.in_features, counts.at(key).weight});
    }
    if (sharing.empty()) continue;
    const int64_t layer = sharing.front()->layer;
    const uint64_t seed = down ? seed_of(options_.exl3.seed, fmt::format("layer {} down svh", layer))
                               : input_seed({InputSite::expert}, layer);
    const std::vector<float> vector =
        down ? shared_output_vector(matrices, seed, threads_) : shared_input_vector(matrices, seed, threads_);
    for (const ConvertedWeight* weight : sharing)
      (down ? given_[weight->module()].svh : given_[weight->module()].suh) = vector;
  }
}

}  // namespace tandem::eval
