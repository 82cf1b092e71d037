// One rank of a large model: every operation by itself, layers of each kind, and the whole step. Exchanges with another
// rank are not part of it.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "benchmarks.h"
#include "operations.h"

namespace tandem::bench {
namespace {

constexpr double longest_graph_us = 10000;  // of what a sample takes, about

struct LayerKind {
  std::string name;
  std::vector<int64_t> layers;
  std::vector<std::string> linears;
};

std::vector<LayerKind> kinds_of(const model::Shape& shape) {
  const std::vector<std::string> kda = {"q k v f_a g_a b", "f_b g_b", "o_proj kda"},
                                 mla = {"q_a kv_a wk gate w", "q_b wq_b", "absorb", "expand", "o_proj mla"};
  std::vector<LayerKind> kinds = {{"KDA + dense", {}, kda}, {"KDA + MoE", {}, kda}, {"DSA + MoE", {}, mla}};
  for (size_t kind : {1, 2}) kinds[kind].linears.emplace_back("router");
  for (int64_t i = 0; i < shape.num_hidden_layers; ++i) {
    const auto at = static_cast<size_t>(i);
    const bool dsa = shape.layer_types[at] == model::AttentionKind::dsa;
    const bool dense = shape.mlp_layer_types[at] == model::FeedForwardKind::dense;
    kinds[dsa ? 2 : dense ? 0 : 1].layers.push_back(i);
  }
  return kinds;
}

void queue_layer(const SyntheticRank& rank, int64_t layer) {
  rank.attention(layer);
  rank.to_feed_forward(layer);
  rank.feed_forward(layer);
  rank.to_attention(layer);
}

// The operations of all layers of a kind: [layer][operation].
std::vector<std::vector<Operation>> trace_layers(const SyntheticRank& rank, const LayerKind& kind) {
  std::vector<std::vector<Operation>> out;
  for (const int64_t layer : kind.layers) {
    rank.gpu.trace();
    queue_layer(rank, layer);
    out.push_back(operations_of(rank.gpu.take(), kind.linears));
    if (kind.name == "KDA + dense") {
      for (Operation& one : out.back())
        if (one.name == "experts") one.name = "dense";
    }
  }
  return out;
}

// Operation `at` of each layer in turn, all of its launches or one; microseconds of one layer's.
Timing time_operation(const Bench& bench, const SyntheticRank& rank, const std::vector<std::vector<Operation>>& layers,
                      size_t at, int64_t only = -1) {
  // The last layer of a model has no site to enter after it: fewer launches.
  const size_t launches = layers.front()[at].launches.size();
  std::vector<const Operation*> all;
  for (const std::vector<Operation>& layer : layers)
    if (layer[at].launches.size() == launches) all.push_back(&layer[at]);
  const auto queue = [&](const Operation& one) {
    for (size_t i = 0; i < launches; ++i)
      if (only < 0 || static_cast<size_t>(only) == i) rank.gpu.repeat(one.launches[i]);
  };
  // Every layer, and those again until there are enough launches; fewer of what takes long and fills the cache itself.
  const int64_t layer_count = std::ssize(all);
  const int64_t wanted = (bench.least_launches + layer_count - 1) / layer_count * layer_count;
  const double one = bench.estimate([&] { queue(*all.front()); });
  const int64_t count = std::clamp<int64_t>(static_cast<int64_t>(longest_graph_us / std::max(one, 1.0)), 1, wanted);
  return bench.graph(count, [&] {
    for (int64_t i = 0; i < count; ++i) queue(*all[static_cast<size_t>(i % layer_count)]);
  });
}

class RankBench {
 public:
  RankBench(const Bench& bench, Report& report, const RankPlan& plan)
      : bench_(bench),
        report_(report),
        plan_(plan),
        rank_(bench.gpu(), plan.shape, plan.held_experts, plan.shared_width, plan.leaves, plan.capacity) {}

  void load(const RankPlan::Load& of) {
    rank_.set_step(of.streams, of.rows, of.position);
    rank_.whole_step();
    rank_.gpu.synchronize();
    experts_ = count_experts(rank_);
    reported_.clear();
    step_floor_ = step_sum_ = 0;
    for (const LayerKind& kind : kinds_of(plan_.shape))
      if (!kind.layers.empty()) layers(kind);
    head();
    const Timing step = bench_.graph(1, [&] { rank_.whole_step(); });
    nlohmann::json more{{"floor_us", step_floor_}, {"position", of.position}, {"streams", of.streams}};
    if (step_sum_ > 0) {
      more["sum_of_operations_us"] = step_sum_;
      more["rate"] = fmt::format("operations {:.0f}", step_sum_);
    }
    report_.add(plan_.name, "STEP, all layers and head", rank_.rows, step, more);
  }

  void selection(const RankPlan::Load& of) {
    rank_.set_step(of.streams, of.rows, of.position);
    rank_.whole_step();
    rank_.gpu.synchronize();
    const LayerKind kind = kinds_of(plan_.shape)[2];
    const std::vector<std::vector<Operation>> traced = trace_layers(rank_, kind);
    for (size_t i = 0; i < traced.front().size(); ++i) {
      const std::string& name = traced.front()[i].name;
      if (name == "index_select" || name == "attend") add(traced, i, fmt::format("{} at {}K", name, of.position >> 10));
    }
  }

 private:
  // Times the operation and each of its kernels, and adds them to the report.
  void add(const std::vector<std::vector<Operation>>& traced, size_t at, const std::string& name) {
    const Operation& one = traced.front()[at];
    const Floor floor = floor_of(one, rank_, experts_, bench_);
    const Timing timing = time_operation(bench_, rank_, traced, at);
    nlohmann::json more{{"bytes", floor.bytes}, {"operations", floor.operations}};
    if (floor.us > 0) more["floor_us"] = floor.us;
    std::string parts;
    for (int64_t i = 0; i < std::ssize(one.launches) && one.launches.size() > 1; ++i) {
      const Timing part = time_operation(bench_, rank_, traced, at, i);
      const std::string& kernel = one.launches[static_cast<size_t>(i)].kernel.name;
      more["kernels"].push_back({{"name", kernel}, {"us", part.median()}, {"samples", part.samples}});
      parts += fmt::format("{}{:.1f}", i == 0 ? "" : " + ", part.median());
    }
    more["rate"] = one.launches.size() > 1 ? parts : one.launches.front().kernel.name;
    report_.add(plan_.name, name, rank_.rows, timing, more);
    reported_[name] = {timing.median(), floor.us};
    if (one.name != "index_queries") return;
    rank_.whole_step();  // what it has coded again and again is no input for the next operation
    rank_.gpu.synchronize();
  }

  void layers(const LayerKind& kind) {
    const std::vector<std::vector<Operation>> traced = trace_layers(rank_, kind);
    double sum = 0, floor = 0;
    for (size_t i = 0; i < traced.front().size(); ++i) {
      const std::string& name = traced.front()[i].name;
      if (rank_.rows <= plan_.most_rows_of_operations) {
        if (reported_.count(name) == 0) add(traced, i, name);
        sum += reported_.at(name).first;
      }
      floor += floor_of(traced.front()[i], rank_, experts_, bench_).us;
    }
    const auto count = static_cast<double>(kind.layers.size());
    const double one = bench_.estimate([&] { queue_layer(rank_, kind.layers.front()); });
    const int64_t layer_count = std::clamp<int64_t>(static_cast<int64_t>(3 * longest_graph_us / std::max(one, 1.0)), 1,
                                                    std::ssize(kind.layers));
    const Timing timing = bench_.graph(layer_count, [&] {
      for (int64_t i = 0; i < layer_count; ++i) queue_layer(rank_, kind.layers[static_cast<size_t>(i)]);
    });
    nlohmann::json more{{"floor_us", floor}};
    if (sum > 0) {
      more["sum_of_operations_us"] = sum;
      more["rate"] = fmt::format("operations {:.1f}", sum);
    }
    report_.add(plan_.name, "LAYER " + kind.name, rank_.rows, timing, more);
    step_sum_ += sum * count;
    step_floor_ += floor * count;
  }

  void head() {
    rank_.gpu.trace();
    rank_.head();
    std::vector<std::vector<Operation>> traced = {operations_of(rank_.gpu.take(), {"head"})};
    for (size_t i = 0; i < traced.front().size(); ++i) {
      if (traced.front()[i].name != "head") continue;
      add(traced, i, "head");
      step_sum_ += reported_.at("head").first * (step_sum_ > 0 ? 1 : 0);
      step_floor_ += reported_.at("head").second;
    }
  }

  const Bench& bench_;
  Report& report_;
  const RankPlan& plan_;
  SyntheticRank rank_;
  ExpertCounts experts_;
  std::map<std::string, std::pair<double, double>> reported_;  // of this load: microseconds and floor
  double step_floor_ = 0, step_sum_ = 0;
};

}  // namespace

void measure_rank(const Bench& bench, Report& report, const RankPlan& plan) {
  RankBench rank(bench, report, plan);
  for (const RankPlan::Load& load : plan.loads) rank.load(load);
  for (const RankPlan::Load& load : plan.selections) rank.selection(load);
}

}  // namespace tandem::bench
