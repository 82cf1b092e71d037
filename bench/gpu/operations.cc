// Which operation a launch belongs to, and its floor from the operation's own cost().
#include "operations.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string_view>

namespace tandem::bench {
namespace {

// Which operation a kernel's source belongs to.
std::string operation_of(const device::KernelSpec& kernel) {
  const std::string& source = kernel.source;
  if (kernel.name == "index_queries") return kernel.name;  // codes its rows in place: cannot be repeated with the rest
  if (source == "ops/kda_conv/kda_conv.cu") return "kda_block";
  if (source == "ops/kda_conv/kda_output.cu") return "kda_output";
  if (source.starts_with("ops/index/")) return source == "ops/index/index_store.cu" ? "index_store" : "index_select";
  const size_t first = source.find('/') + 1;
  return source.substr(first, source.find('/', first) - first);
}

std::vector<ops::CudaLinearCall> calls_of(const ops::LinearArgs& args) {
  std::vector<ops::CudaLinearCall> calls;
  for (int32_t i = 0; i < args.parts_used; ++i) calls.push_back(args.parts[i].call);
  return calls;
}

device::KernelCost norm_cost(const TracedLaunch& launch, int64_t rows) {
  const auto& args = launch.as<ops::NormArgs>();
  return ops::CudaNorm::cost({args.parts, launch.launch.grid[1]}, rows);
}

// Streams read their own caches; rows of one stream share them.
device::KernelCost select_cost(const ops::IndexSelectArgs& args, const SyntheticRank& rank) {
  const int64_t rows = rank.rows / rank.streams;
  const int64_t pools = (rank.position + rows / 2 + 1) / rank.shape.index_kpool;
  const device::KernelCost one = ops::CudaIndexSelect::cost(args, rows, pools);
  return {one.bytes * rank.streams, one.operations * rank.streams};
}

device::KernelCost attend_cost(const ops::SparseAttendArgs& args, const SyntheticRank& rank) {
  const int64_t seen = rank.position + (rank.rows / rank.streams + 1) / 2;
  const int64_t keys = std::min(seen, rank.shape.max_selected());
  const device::KernelCost gathered = ops::CudaSparseAttend::cost(args, rank.rows, keys);
  // What rows of one stream share need not be read more than once.
  const int64_t rows_bytes = rank.rows * args.heads * args.latent.width * 4;
  return {std::min(gathered.bytes, rows_bytes + rank.streams * seen * args.latent.row_bytes), gathered.operations};
}

device::KernelCost cost_of(const Operation& of, const SyntheticRank& rank, ExpertCounts experts) {
  const TracedLaunch& first = of.launches.front();
  const std::string kind = operation_of(first.kernel);
  const model::Shape& shape = rank.shape;
  const int64_t rows = rank.rows;
  if (kind == "linear") {
    // The head's rows are those whose logits are wanted.
    const auto& args = first.as<ops::LinearArgs>();
    const int64_t of_head = std::min<int64_t>(rank.streams, rank.capacity.max_logit_rows);
    return ops::CudaLinear::cost(calls_of(args), of.name == "head" ? of_head : rows);
  }
  if (kind == "norm") return norm_cost(first, rows);
  if (kind == "mhc") return rank.ops.mhc.cost(rows);
  if (kind == "kda_block")
    return rank.ops.kda_block.cost_with_conv(shape.kda_num_heads, shape.short_conv_kernel_size, rows, rank.streams);
  if (kind == "kda_output") return rank.ops.kda_output.cost(shape.kda_num_heads, rows);
  if (kind == "latent") return ops::CudaLatentStore::cost(first.as<ops::LatentStoreArgs>().plane, rows);
  if (kind == "index_store") return ops::CudaIndexStore::cost(first.as<ops::IndexStoreArgs>(), rows);
  if (kind == "index_select") return select_cost(first.as<ops::IndexBatch>().select, rank);
  if (kind == "attend") return attend_cost(first.as<ops::SparseAttendLaunch>().attend, rank);
  if (kind == "route") return ops::CudaRoute::cost(rows, shape.n_routed_experts, shape.num_experts_per_tok);
  if (kind == "experts") {
    if (of.name != "dense") return ops::CudaExperts::cost(rank.moe_shape(), rows, experts.pairs, experts.distinct);
    const int64_t width = shape.intermediate_size;
    return ops::CudaExperts::cost(forward::expert_shape(shape, false, 0, width, width), rows, 0, 0);
  }
  return {};
}

}  // namespace

std::vector<Operation> operations_of(const std::vector<TracedLaunch>& launches, const std::vector<std::string>& names) {
  std::vector<Operation> out;
  std::string last;
  size_t linears = 0;
  for (const TracedLaunch& launch : launches) {
    const std::string kind = operation_of(launch.kernel);
    if (kind == "linear") {
      out.push_back({linears < names.size() ? names[linears] : fmt::format("linear {}", linears), {launch}});
      ++linears;
    } else if (kind == last) {
      out.back().launches.push_back(launch);
    } else {
      out.push_back({kind, {launch}});
    }
    last = kind;
  }
  return out;
}

ExpertCounts count_experts(const SyntheticRank& rank) {
  ExpertCounts counts;
  std::set<int32_t> distinct;
  for (const int32_t expert : rank.chosen()) {
    if (expert < 0 || expert >= rank.held) continue;
    ++counts.pairs;
    distinct.insert(expert);
  }
  counts.distinct = std::ssize(distinct);
  return counts;
}

Floor floor_of(const Operation& operation, const SyntheticRank& rank, ExpertCounts experts, const Bench& bench) {
  const device::KernelCost cost = cost_of(operation, rank, experts);
  Floor floor{static_cast<double>(cost.bytes), static_cast<double>(cost.operations), 0};
  const std::string_view name = operation.name;
  const bool plain = name == "kda_block" || name == "kda_output" || name == "norm" || name == "route";
  floor.us = std::max(floor.bytes / bench.read_rate, floor.operations / (plain ? bench.fp32_rate : bench.matrix_rate));
  return floor;
}

}  // namespace tandem::bench
