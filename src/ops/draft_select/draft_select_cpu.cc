// Candidates and edges on the CPU.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <span>

#include "ops/draft_select/draft_select.h"
#include "ops/embed/embed.h"
#include "ops/simd/kernels.h"

namespace tandem::ops {
namespace {

void top_of_row(const float* logits, int64_t vocab_size, int64_t count, int32_t* ids, float* values) {
  int64_t held = 0;
  for (int64_t id = 0; id < vocab_size; ++id) {
    const float value = std::isnan(logits[id]) ? -std::numeric_limits<float>::infinity() : logits[id];
    if (held == count && !(value > values[count - 1])) continue;
    int64_t at = held < count ? held++ : count - 1;
    for (; at > 0 && value > values[at - 1]; --at) {
      values[at] = values[at - 1];
      ids[at] = ids[at - 1];
    }
    values[at] = value;
    ids[at] = static_cast<int32_t>(id);
  }
}

// Row r of stream s.
void edges_of_row(const SelectorEdges& a, int64_t s, int64_t r, float* before, float* after) {
  const int64_t rank = a.predecessor->in_features, row = s * a.rows + r, k = a.top_k;
  const auto candidates = [&](int64_t of_row) { return std::span(a.ids + of_row * k, static_cast<size_t>(k)); };
  const std::span<const int32_t> previous = r == 0 ? std::span(a.pending + s, 1) : candidates(row - 1);
  const auto count = std::ssize(previous);
  embed(*a.predecessor, previous, 1, before, rank);
  for (int64_t p = 0; p < count; ++p)
    kernels().multiply(before + p * rank, a.g + row * rank, 1.0f, rank, before + p * rank);
  embed(*a.successor, candidates(row), 1, after, rank);
  std::array<const float*, most_candidates> successors{};
  for (int64_t c = 0; c < k; ++c) successors[static_cast<size_t>(c)] = after + c * rank;
  float* edges = a.edges + row * k * k;
  DotRows d;
  d.w_rows = successors.data();
  d.count = k;
  d.k = rank;
  d.x = before;
  d.x_stride = rank;
  d.rows = count;
  d.y = edges;
  d.y_stride = k;
  kernels().dot_rows(d);
  for (int64_t p = count; p < k; ++p) std::copy_n(edges, k, edges + p * k);
}

}  // namespace

void top_candidates(device::Threads& threads, const float* logits, int64_t rows, int64_t vocab_size, int64_t count,
                    int32_t* ids, float* values) {
  threads.run(rows, [&](int64_t row) {
    top_of_row(logits + row * vocab_size, vocab_size, count, ids + row * count, values + row * count);
  });
}

void selector_edges(device::Threads& threads, const SelectorEdges& args) {
  const int64_t rank = args.predecessor->in_features, tasks = args.streams * args.rows;
  const int64_t lanes = std::min<int64_t>(threads.count(), tasks);
  threads.run(lanes, [&](int64_t lane) {
    float* before = args.scratch + lane * selector_scratch(args.top_k, rank);
    for (int64_t task = lane; task < tasks; task += lanes)
      edges_of_row(args, task / args.rows, task % args.rows, before, before + args.top_k * rank);
  });
}

}  // namespace tandem::ops
