// Candidates, KLD of each, the greedy choice.
#include "eval/bit_allocation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/mapped_file.h"
#include "eval/finished_tensors.h"
#include "eval/model_folder.h"
#include "eval/model_walk.h"
#include "forward/step.h"
#include "forward/text_model.h"
#include "model/json_reader.h"

namespace tandem::eval {
namespace fs = std::filesystem;
namespace {

using model::Component;

constexpr int64_t measured_tokens = 2048;  // of the calibration text
constexpr int64_t allocation_chunk = 128;
constexpr const char* allocation_name = "allocation.json";

double adjusted(double gain) { return gain > 0 ? gain : -std::pow(-gain, 0.69); }

// The group of a matrix that takes part in the budget: layer and kind.
using GroupKey = std::pair<int64_t, std::string>;

std::optional<GroupKey> group_of(const ConvertedWeight& weight, const model::Shape& shape) {
  if (weight.coding != Coding::exl3 || weight.layer < 0 || weight.layer == shape.num_hidden_layers) return std::nullopt;
  const bool is_down = weight.place.ends_with(".down_proj.weight");
  switch (weight.component) {
    case Component::routed_experts: return GroupKey{weight.layer, is_down ? "experts down" : "experts gate and up"};
    case Component::shared_expert: return GroupKey{weight.layer, "shared expert"};
    case Component::dense_mlp: return GroupKey{weight.layer, "dense MLP"};
    default: return GroupKey{weight.layer, "attention"};
  }
}

// Candidates go to files; nothing of them feeds a layer.
class CandidateStore final : public WalkStore {
 public:
  CandidateStore(const FinishedTensors& finished, const QuantizeProgress& progress, int64_t total)
      : finished_(finished), progress_(progress), total_(total) {}
  bool is_wanted(const ConvertedWeight& weight) override {
    if (!finished_.find(weight)) return true;
    progress_(done_ += weight.source_bytes(), total_);
    return false;
  }
  FinishedTensor found(const ConvertedWeight& weight) override {
    std::optional<FinishedTensor> found = finished_.find(weight);
    if (!found) throw Error(ErrorCode::bad_file, weight.module(), "its candidate is gone", "no other hand on it");
    return std::move(*found);
  }
  void encoded(const ConvertedWeight& weight, const EncodedTensor& facts, const std::vector<std::byte>& data) override {
    finished_.put(weight, facts, data);
    progress_(done_ += weight.source_bytes(), total_);
  }

 private:
  const FinishedTensors& finished_;
  const QuantizeProgress& progress_;
  int64_t done_ = 0, total_;
};

// Every matrix of the budget once for each width.
ConversionPlan candidates_of(const ConversionPlan& plan, const std::vector<int>& widths, const model::Shape& shape,
                             const Exl3Options& options) {
  ConversionPlan all;
  for (const auto& [name, converted] : plan.converted)
    for (const ConvertedWeight& weight : converted) {
      if (!group_of(weight, shape)) continue;
      for (const int bits : widths) set_bits(all.converted[name].emplace_back(weight), bits, options);
    }
  return all;
}

// KLD of models that differ in a few matrices from each other, on the first tokens of the calibration text.
class KldMeter {
 public:
  KldMeter(const model::Shape& shape, const model::TextWeights& source, const Windows& windows,
           device::Threads& threads)
      : shape_(shape), threads_(threads) {
    int64_t left = measured_tokens;
    for (const Window& window : windows.windows) {
      if (left < 2) break;
      windows_.emplace_back(window.ids).resize(static_cast<size_t>(std::min(left, std::ssize(window.ids))));
      left -= std::ssize(windows_.back());
    }
    for_rows(source, [&](std::span<const float> logits) {
      std::vector<float>& row = teacher_.emplace_back(logits.begin(), logits.end());
      const double sum = log_sum(logits);
      for (float& value : row) value = static_cast<float>(value - sum);
    });
  }

  // Σ p·(ln p − ln(q + 1e−10)) a position.
  double kld(const model::TextWeights& weights) {
    double total = 0;
    size_t row = 0;
    for_rows(weights, [&](std::span<const float> logits) {
      const std::vector<float>& teacher = teacher_[row++];
      const double sum = log_sum(logits);
      for (size_t i = 0; i < teacher.size(); ++i) {
        const double p = std::exp(static_cast<double>(teacher[i]));
        total += p * (teacher[i] - std::log(std::exp(logits[i] - sum) + 1e-10));
      }
    });
    return total / static_cast<double>(row);
  }

 private:
  static double log_sum(std::span<const float> logits) {
    const double largest = *std::max_element(logits.begin(), logits.end());
    double sum = 0;
    for (const float value : logits) sum += std::exp(value - largest);
    return largest + std::log(sum);
  }

  template <typename Row>
  void for_rows(const model::TextWeights& weights, const Row& body) {
    constexpr int64_t page_rows = forward::TextModel::page_rows;
    int64_t longest = 0;
    for (const auto& ids : windows_) longest = std::max(longest, std::ssize(ids));
    const auto pages = static_cast<int32_t>((longest + page_rows - 1) / page_rows);
    forward::Capacity capacity;
    capacity.pages = 1 + pages;
    capacity.max_rows = capacity.max_logit_rows = static_cast<int32_t>(std::min(allocation_chunk, longest));
    capacity.mtp = false;
    forward::TextModel text(shape_, weights, threads_, capacity);
    for (const auto& window : windows_) {
      const std::span<const int32_t> ids(window);
      for (int64_t first = 0; first < std::ssize(ids); first += allocation_chunk) {
        const int64_t rows = std::min(allocation_chunk, std::ssize(ids) - first);
        forward::Step step = forward::single_stream_step(
            ids.subspan(static_cast<size_t>(first), static_cast<size_t>(rows)), first, pages);
        step.logit_rows.resize(static_cast<size_t>(rows));
        std::iota(step.logit_rows.begin(), step.logit_rows.end(), 0);
        text.run(step);
        for (int64_t row = 0; row < rows; ++row)
          body(text.logits().subspan(static_cast<size_t>(row * shape_.vocab_size),
                                     static_cast<size_t>(shape_.vocab_size)));
      }
    }
  }

  const model::Shape& shape_;
  device::Threads& threads_;
  std::vector<std::vector<int32_t>> windows_;
  std::vector<std::vector<float>> teacher_;  // ln p of every position
};

// The groups of a plan with their candidates, and a model that takes one or another of them.
class Candidates {
 public:
  Candidates(const ConversionPlan& all, const FinishedTensors& finished, const model::Shape& shape,
             const model::TextWeights& source, const std::vector<int>& widths, quant::Exl3Codebook codebook)
      : widths_(widths), model_(source) {
    Places visitor(places_);
    model::visit_main_weights(shape, model_, visitor);
    for (const auto& [name, converted] : all.converted)
      for (const ConvertedWeight& weight : converted) {
        const auto width = static_cast<size_t>(std::find(widths.begin(), widths.end(), weight.bits) - widths.begin());
        Group& group = groups_[*group_of(weight, shape)];
        if (width == 0) group.weights += weight.padded_in() * weight.padded_out();
        held_.push_back(std::move(*finished.find(weight)));
        group.matrices[width].emplace_back(weight.place, coded_matrix(weight, held_.back().data, codebook));
      }
    for (const auto& [key, group] : groups_) take(group, 0);
  }

  std::vector<AllocationGroup> measure(KldMeter& meter) {
    std::vector<AllocationGroup> measured;
    const double base = meter.kld(model_);
    for (const auto& [key, group] : groups_) {
      AllocationGroup found{fmt::format("layer {} {}", key.first, key.second), group.weights, widths_, {0}};
      for (size_t width = 1; width < widths_.size(); ++width) {
        take(group, width);
        found.gain.push_back(meter.kld(model_) - base);
      }
      take(group, 0);
      measured.push_back(std::move(found));
    }
    return measured;
  }

 private:
  class Places final : public model::WeightVisitor {
   public:
    explicit Places(std::map<std::string, model::Matrix*>& places) : places_(places) {}
    void matrix(const model::WeightSpec& spec, model::Matrix& target) override { places_[spec.name] = &target; }
    void vector(const model::WeightSpec& /*spec*/, model::Vector& /*target*/) override {}

   private:
    std::map<std::string, model::Matrix*>& places_;
  };
  struct Group {
    int64_t weights = 0;
    std::map<size_t, std::vector<std::pair<std::string, model::Matrix>>> matrices;  // by alternative
  };

  void take(const Group& group, size_t width) {
    for (const auto& [place, matrix] : group.matrices.at(width)) *places_.at(place) = matrix;
  }

  const std::vector<int>& widths_;
  model::TextWeights model_;
  std::map<std::string, model::Matrix*> places_;
  std::map<GroupKey, Group> groups_;
  std::vector<FinishedTensor> held_;
};

std::map<std::string, int> read_choice(const fs::path& path) {
  const MappedFile file = MappedFile::open(path);
  const model::JsonDocument document(file.text(), path.string());
  std::map<std::string, int> bits;
  for (const std::string& name : document.root().keys())
    bits[name] = static_cast<int>(document.root().integer(name, {1, 8}));
  return bits;
}

std::map<std::string, int> choose(const QuantizeOptions& options, const model::Shape& shape,
                                  const model::TextWeights& weights, const fs::path& folder, device::Threads& threads,
                                  const QuantizeProgress& progress, const ConversionPlan& plan,
                                  const std::vector<int>& widths) {
  QuantizeOptions quick = options;
  quick.exl3.scale_search = quant::Exl3ScaleSearch::none;
  const ConversionPlan all = candidates_of(plan, widths, shape, options.exl3);
  int64_t total = 0;
  for (const auto& [name, converted] : all.converted)
    for (const ConvertedWeight& weight : converted) total += weight.source_bytes();
  const FinishedTensors finished(folder / "candidates");
  CandidateStore store(finished, progress, total);
  ModelWalk(quick, shape, weights, all, folder, threads).run(store, Predecessors::source);
  KldMeter meter(shape, weights, options.exl3.calibration, threads);
  const std::vector<AllocationGroup> groups =
      Candidates(all, finished, shape, weights, widths, options.exl3.codebook).measure(meter);
  double budget = 0;
  for (const AllocationGroup& group : groups) budget += options.exl3.bits_target * static_cast<double>(group.weights);
  const std::vector<size_t> chosen = allocate(groups, budget);
  std::map<std::string, int> bits;
  for (size_t i = 0; i < groups.size(); ++i) bits[groups[i].name] = groups[i].bits[chosen[i]];
  return bits;
}

}  // namespace

void set_bits(ConvertedWeight& weight, int bits, const Exl3Options& options) {
  weight.bits = bits;
  weight.tensors = exl3_tensors(weight, bits, options);
}

std::vector<int> candidate_bits(double target) {
  const int least = std::max(1, static_cast<int>(std::ceil(target)) - 1);
  std::vector<int> widths;
  for (int bits = least; bits <= std::min(8, least + 3); ++bits) widths.push_back(bits);
  return widths;
}

std::vector<size_t> allocate(const std::vector<AllocationGroup>& groups, double budget_bits) {
  std::vector<size_t> chosen(groups.size(), 0);
  double left = budget_bits;
  for (const AllocationGroup& group : groups) left -= static_cast<double>(group.weights) * group.bits[0];
  while (true) {
    double best = 0, cost = 0;
    size_t best_group = 0, best_alternative = 0;
    for (size_t i = 0; i < groups.size(); ++i) {
      const AllocationGroup& group = groups[i];
      for (size_t k = chosen[i] + 1; k < group.bits.size(); ++k) {
        const double bits = static_cast<double>(group.weights) * (group.bits[k] - group.bits[chosen[i]]);
        if (bits > left) continue;
        const double value = 1e10 * (adjusted(group.gain[k]) - adjusted(group.gain[chosen[i]])) / (bits + 1);
        if (value >= best) continue;
        best = value;
        cost = bits;
        best_group = i;
        best_alternative = k;
      }
    }
    if (!(best < 0)) return chosen;
    chosen[best_group] = best_alternative;
    left -= cost;
  }
}

std::vector<std::string> allocate_bits(const QuantizeOptions& options, const model::Shape& shape,
                                       const model::TextWeights& weights, const fs::path& folder,
                                       device::Threads& threads, const QuantizeProgress& progress,
                                       ConversionPlan& plan) {
  const double target = options.exl3.bits_target;
  if (!(target >= 1 && target <= 8))
    throw Error(ErrorCode::usage, "--bits-target", fmt::format("{}", target), "a number from 1 to 8");
  const fs::path kept = folder / allocation_name;
  std::error_code error;
  std::map<std::string, int> bits;
  if (fs::exists(kept, error)) {
    bits = read_choice(kept);
  } else {
    bits = choose(options, shape, weights, folder, threads, progress, plan, candidate_bits(target));
    write_text(kept, nlohmann::ordered_json(bits).dump(1) + "\n");
  }
  for (auto& [name, converted] : plan.converted)
    for (ConvertedWeight& weight : converted) {
      if (weight.coding != Coding::exl3 || weight.layer < 0) continue;
      const auto key = group_of(weight, shape);
      const auto found = key ? bits.find(fmt::format("layer {} {}", key->first, key->second)) : bits.end();
      if (key && found == bits.end())
        throw Error(ErrorCode::bad_file, kept.string(), fmt::format("no layer {} {}", key->first, key->second),
                    "a width for every group; remove the file");
      set_bits(weight, found == bits.end() ? static_cast<int>(target) : found->second, options.exl3);
    }
  std::vector<std::string> lines;
  for (const auto& [name, width] : bits) lines.push_back(fmt::format("{}: {} bits", name, width));
  return lines;
}

}  // namespace tandem::eval
