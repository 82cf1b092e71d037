// Walks the model's list of tensors, adds up what each costs and which rank has it.
#include "engine/plan_weights.h"

#include <charconv>
#include <functional>
#include <map>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "model/split.h"
#include "model/weight_source.h"

namespace tandem::engine {
namespace {

using model::Component;
using model::WeightSpec;

int64_t elements_of(const WeightSpec& spec) {
  return std::accumulate(spec.shape.begin(), spec.shape.end(), int64_t{1}, std::multiplies<>());
}

// The number of the expert in "layers.3.mlp.experts.17.up_proj.weight".
int64_t expert_of(const WeightSpec& spec) {
  constexpr std::string_view mark = ".experts.";
  const size_t at = spec.name.find(mark) + mark.size();
  int64_t expert = 0;
  std::from_chars(spec.name.data() + at, spec.name.data() + spec.name.size(), expert);
  return expert;
}

// Of `bytes` of a weight, what one of two ranks holds: whole rows or columns, so the share is exact.
int64_t share(const WeightSpec& spec, int64_t bytes, int64_t experts, int rank) {
  const auto part = [&](int64_t length) {
    return bytes * model::part_of(length, spec.split_unit, rank, 2).count / length;
  };
  switch (spec.split) {
    case model::Split::replicated: return bytes;
    case model::Split::rows: return part(spec.shape.front());
    case model::Split::columns: return part(spec.shape.back());
    case model::Split::experts: return model::part_of(experts, 1, rank, 2).holds(expert_of(spec)) ? bytes : 0;
  }
  return bytes;
}

// What a weight costs, and what its format is called.
struct Stored {
  int64_t bytes;
  std::string format;
};

WeightBytes sum(const model::Shape& shape, const std::function<Stored(const WeightSpec&)>& stored) {
  const model::Inventory inventory = model::make_inventory(shape);
  WeightBytes sum;
  sum.parameters = inventory.main_parameters + inventory.mtp_parameters;
  for (const auto* list : {&inventory.main, &inventory.mtp}) {
    std::map<std::pair<Component, std::string>, model::FormatRow> rows;
    for (const WeightSpec& spec : *list) {
      const auto [bytes, format] = stored(spec);
      sum.total += bytes;
      for (int rank = 0; rank < 2; ++rank)
        sum.rank[static_cast<size_t>(rank)] += share(spec, bytes, shape.n_routed_experts, rank);
      model::FormatRow& row = rows[{spec.component, format}];
      row.component = spec.component;
      row.mtp = list == &inventory.mtp;
      row.format = format;
      row.weights += 1;
      row.parameters += elements_of(spec);
      row.bytes += bytes;
    }
    for (const auto& [key, row] : rows) sum.rows.push_back(row);
  }
  return sum;
}

// Stored bytes by module: "a.q_proj" for "a.q_proj.weight", "a.q_proj.weight_scale_inv", "a.q_proj.trellis", …
std::map<std::string, int64_t> modules_of(const model::Checkpoint& checkpoint) {
  std::map<std::string, int64_t> modules;
  for (const model::Tensor* tensor : checkpoint.tensors()) {
    const size_t dot = tensor->name.rfind('.');
    if (dot != std::string::npos && !tensor->name.ends_with("bias"))  // weights of their own
      modules[tensor->name.substr(0, dot)] += static_cast<int64_t>(tensor->data.size());
  }
  return modules;
}

}  // namespace

WeightBytes weights_in_format(const model::Shape& shape, const WeightFormat& format) {
  return sum(shape, [&](const WeightSpec& spec) -> Stored {
    const WeightCoding coding = format.coding(spec, spec.layer == shape.num_hidden_layers);
    return {stored_bytes(coding, spec), format_name(coding, spec)};
  });
}

WeightBytes weights_of_checkpoint(const model::Checkpoint& checkpoint, const model::Shape& shape) {
  const model::WeightSource source(checkpoint, shape);
  const auto modules = modules_of(checkpoint);
  const auto bytes_of = [&](const WeightSpec& spec) {
    constexpr std::string_view ending = ".weight";
    const std::string name = source.full_name(spec);
    const model::Tensor* tensor = source.locate(spec).tensor;
    if (name.ends_with(ending)) {
      const auto module = modules.find(name.substr(0, name.size() - ending.size()));
      if ((tensor == nullptr || tensor->name == name) && module != modules.end()) return module->second;
    }
    if (tensor == nullptr)
      throw Error(ErrorCode::bad_file, name, "is missing", "the tensors that config.json asks for");
    return elements_of(spec) * model::dtype_bytes(tensor->dtype);  // also a part of a tensor that holds many weights
  };
  return sum(shape, [&](const WeightSpec& spec) -> Stored { return {bytes_of(spec), "as stored"}; });
}

}  // namespace tandem::engine
