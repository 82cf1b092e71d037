// Counts and compares by walking the layout of weight_layout.h.
#include "model/inventory.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "model/weight_source.h"

namespace tandem::model {
namespace {

int64_t product(const std::vector<int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

class Lister final : public WeightVisitor {
 public:
  explicit Lister(std::vector<WeightSpec>& list) : list_(list) {}
  void matrix(const WeightSpec& spec, Matrix&) override { list_.push_back(spec); }
  void vector(const WeightSpec& spec, Vector&) override { list_.push_back(spec); }

 private:
  std::vector<WeightSpec>& list_;
};

std::vector<ParameterRow> rows_of(const std::vector<WeightSpec>& specs, const Shape& shape) {
  std::map<Component, std::pair<int64_t, std::set<int64_t>>> sums;  // parameters and layers
  for (const WeightSpec& spec : specs) {
    auto& [parameters, layers] = sums[spec.component];
    parameters += product(spec.shape);
    layers.insert(spec.layer);
  }
  std::vector<ParameterRow> rows;
  for (const auto& [component, sum] : sums) {
    const int64_t per_layer = component == Component::routed_experts ? shape.n_routed_experts : 1;
    const int64_t units = static_cast<int64_t>(sum.second.size()) * per_layer;
    rows.push_back({component, sum.first / units, units});
  }
  return rows;
}

int64_t total_of(const std::vector<ParameterRow>& rows) {
  return std::accumulate(rows.begin(), rows.end(), int64_t{0},
                         [](int64_t sum, const ParameterRow& row) { return sum + row.total(); });
}

int64_t active_of(const std::vector<ParameterRow>& rows, const Shape& shape) {
  int64_t sum = 0;
  for (const ParameterRow& row : rows) {
    if (row.component == Component::embedding) continue;
    const bool routed = row.component == Component::routed_experts;
    sum += routed ? row.total() / shape.n_routed_experts * shape.num_experts_per_tok : row.total();
  }
  return sum;
}

// Looks every weight up as the loader would and notes what was found instead of stopping at the first fault.
class Comparer final : public WeightVisitor {
 public:
  Comparer(const WeightSource& source, Comparison& result) : source_(source), result_(result) {}

  void matrix(const WeightSpec& spec, Matrix& target) override {
    const WeightSource::Module module = source_.module_of(spec);
    if (module.form != LinearForm::plain) return look_up_module(spec, module, target);
    look_up(spec, [&] { target = source_.matrix(spec); });
  }
  void vector(const WeightSpec& spec, Vector& target) override {
    look_up(spec, [&] { source_.append_values(spec, target); });
  }
  bool uses(const std::string& name) const { return used_.contains(name); }
  std::vector<FormatRow> rows() const {
    std::vector<FormatRow> rows;
    for (const auto& [key, row] : rows_) rows.push_back(row);
    return rows;
  }
  bool in_mtp = false;

 private:
  void count(const WeightSpec& spec, const std::string& format, int64_t bytes) {
    FormatRow& row = rows_[{in_mtp, spec.component, format}];
    row.mtp = in_mtp;
    row.component = spec.component;
    row.format = format;
    row.weights += 1;
    row.parameters += product(spec.shape);
    row.bytes += bytes;
  }
  void look_up_module(const WeightSpec& spec, const WeightSource::Module& module, Matrix& target) {
    int64_t bytes = 0;
    for (const Tensor& tensor : module.tensors) {
      used_.insert(tensor.name);
      bytes += static_cast<int64_t>(tensor.data.size());
    }
    try {
      target = source_.matrix(spec, &result_.warnings);
    } catch (const Error& error) {
      result_.wrong.emplace_back(error.what());
      return;
    }
    count(spec, coded_format(module.form, target, module.tensors), bytes);
    if (module.form != LinearForm::exl3) return;
    const std::string suspicion = exl3_suspicion(target);
    if (!suspicion.empty()) result_.warnings.push_back(module.name + ".trellis: " + suspicion);
  }
  void look_up(const WeightSpec& spec, const std::function<void()>& load) {
    const StoredWeight stored = source_.locate(spec);
    if (stored.tensor == nullptr) {
      result_.missing.push_back(source_.full_name(spec));
      return;
    }
    const bool first_use = used_.insert(stored.tensor->name).second;
    const Tensor* scales = stored.tensor->dtype == DType::f8_e4m3 ? source_.scales_of(*stored.tensor) : nullptr;
    if (scales != nullptr) used_.insert(scales->name);
    try {
      load();
      const int64_t stored_bytes = product(spec.shape) * dtype_bytes(stored.tensor->dtype);
      const std::string dtype = dtype_name(stored.tensor->dtype);
      if (scales == nullptr) {
        count(spec, dtype, stored_bytes);
      } else {  // of a stacked tensor, its share
        count(
            spec, dtype + " 128x128 blocks",
            stored_bytes + static_cast<int64_t>(scales->data.size()) * product(spec.shape) / stored.tensor->elements());
      }
    } catch (const Error& error) {
      if (first_use) result_.wrong.emplace_back(error.what());  // once for a tensor that holds many weights
    }
  }

  const WeightSource& source_;
  Comparison& result_;
  std::set<std::string> used_;
  std::map<std::tuple<bool, Component, std::string>, FormatRow> rows_;
};

// Whether `vector` of every expert matrix that `pick` names holds the same bytes.
template <typename Pick>
bool all_equal(const std::vector<MlpWeights>& experts, int64_t bytes, const Pick& pick) {
  const std::byte* first = pick(experts.front()).front();
  return std::all_of(experts.begin(), experts.end(), [&](const MlpWeights& expert) {
    const auto vectors = pick(expert);
    return std::all_of(vectors.begin(), vectors.end(), [&](const std::byte* vector) {
      return std::memcmp(vector, first, static_cast<size_t>(bytes)) == 0;
    });
  });
}

SharedRotations shared_rotations(const TextWeights& weights) {
  SharedRotations found;
  const auto is_exl3 = [](const Matrix& m) { return m.format == ops::WeightFormat::exl3 && !m.exl3.suh_is_signs; };
  for (const LayerWeights& layer : weights.layers) {
    if (!layer.moe || layer.moe->experts.empty()) continue;
    const std::vector<MlpWeights>& experts = layer.moe->experts;
    if (!std::all_of(experts.begin(), experts.end(), [&](const MlpWeights& e) {
          return is_exl3(e.gate_proj) && is_exl3(e.up_proj) && is_exl3(e.down_proj);
        }))
      continue;
    ++found.layers;
    const int64_t bytes = 2 * experts.front().gate_proj.in_features;
    found.inputs += all_equal(experts, bytes, [](const MlpWeights& e) {
      return std::array{e.gate_proj.exl3.suh, e.up_proj.exl3.suh};
    });
    found.outputs += all_equal(experts, bytes, [](const MlpWeights& e) { return std::array{e.down_proj.exl3.svh}; });
  }
  return found;
}

int64_t bytes_per_token(const std::vector<FormatRow>& rows, const Shape& shape) {
  int64_t sum = 0;
  for (const FormatRow& row : rows) {
    if (row.mtp || row.component == Component::embedding) continue;
    const bool routed = row.component == Component::routed_experts;
    sum += routed ? row.bytes * shape.num_experts_per_tok / shape.n_routed_experts : row.bytes;
  }
  return sum;
}

bool is_vision(std::string_view name) { return name.starts_with("model.visual.") || name.starts_with("visual."); }

}  // namespace

const char* component_name(Component component) {
  switch (component) {
    case Component::embedding: return "embedding";
    case Component::lm_head: return "lm_head";
    case Component::kda: return "kda";
    case Component::mla: return "mla";
    case Component::indexer: return "indexer";
    case Component::mhc: return "mhc";
    case Component::layer_norms: return "layer_norms";
    case Component::dense_mlp: return "dense_mlp";
    case Component::router: return "router";
    case Component::shared_expert: return "shared_expert";
    case Component::routed_experts: return "routed_experts";
    case Component::final_norm: return "final_norm";
    case Component::mtp_eh_proj: return "eh_proj";
    case Component::mtp_norms: return "mtp_norms";
  }
  return "";
}

Inventory make_inventory(const Shape& shape) {
  Inventory inventory;
  TextWeights unused;
  Lister main(inventory.main), mtp(inventory.mtp);
  visit_main_weights(shape, unused, main);
  if (shape.num_nextn_predict_layers == 1) visit_mtp_weights(shape, unused, mtp);
  inventory.main_rows = rows_of(inventory.main, shape);
  inventory.mtp_rows = rows_of(inventory.mtp, shape);
  inventory.main_parameters = total_of(inventory.main_rows);
  inventory.mtp_parameters = total_of(inventory.mtp_rows);
  inventory.active_parameters = active_of(inventory.main_rows, shape);
  return inventory;
}

Comparison compare(const Checkpoint& checkpoint, const Shape& shape, WeightOptions options) {
  Comparison result;
  const WeightSource source(checkpoint, shape, options);
  Comparer comparer(source, result);
  TextWeights weights;
  visit_main_weights(shape, weights, comparer);
  result.has_mtp = shape.num_nextn_predict_layers == 1 && source.has_layer(shape.num_hidden_layers);
  comparer.in_mtp = true;
  if (result.has_mtp) visit_mtp_weights(shape, weights, comparer);
  result.formats = comparer.rows();
  result.rotations = shared_rotations(weights);
  result.bytes_per_token = bytes_per_token(result.formats, shape);
  std::map<DType, DTypeCount> dtypes;
  for (const Tensor* tensor : checkpoint.tensors()) {
    DTypeCount& count = dtypes[tensor->dtype];
    count.dtype = tensor->dtype;
    count.tensors += 1;
    count.elements += tensor->elements();
    count.bytes += static_cast<int64_t>(tensor->data.size());
    if (comparer.uses(tensor->name)) {
      ++result.text_tensors;
    } else if (is_vision(tensor->name)) {
      ++result.vision_tensors;
      result.vision_parameters += tensor->elements();
    } else {
      result.unknown.push_back(tensor->name);
    }
  }
  for (const auto& [dtype, count] : dtypes) result.dtypes.push_back(count);
  result.bytes = checkpoint.total_bytes();
  return result;
}

}  // namespace tandem::model
