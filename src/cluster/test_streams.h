// For tests: streams of a rank group and what their runs leave behind, compared bit for bit.
#pragma once

#include <algorithm>
#include <bit>
#include <numeric>

#include "cluster/rank_group.h"
#include "device/threads.h"
#include "forward/test_models.h"
#include "forward/text_model.h"

namespace tandem::cluster {

using forward::Capacity;
using forward::Loaded;
using forward::loaded;
using forward::Step;
using Ids = std::vector<int32_t>;
using Rows = std::vector<float>;

constexpr GroupSize one_rank{1, 1}, two_ranks{2, 1}, shared_pages{2, 2};

inline std::string name_of(GroupSize size) {
  return std::to_string(size.tensor_parallel_size) + " ranks, pages over " +
         std::to_string(size.decode_context_parallel_size);
}

// Everything that runs leave behind.
struct Trace {
  Rows logits, hidden, state, conv;
};

inline ::testing::AssertionResult same(const Trace& a, const Trace& b) {
  const auto compare = [](const char* what, const Rows& x, const Rows& y) -> ::testing::AssertionResult {
    if (x.size() != y.size()) return ::testing::AssertionFailure() << what << ": " << x.size() << " and " << y.size();
    for (size_t i = 0; i < x.size(); ++i) {
      if (std::bit_cast<uint32_t>(x[i]) != std::bit_cast<uint32_t>(y[i]))
        return ::testing::AssertionFailure() << what << " " << i << ": " << std::hexfloat << x[i] << " and " << y[i];
    }
    return ::testing::AssertionSuccess();
  };
  for (const auto& result : {compare("logits", a.logits, b.logits), compare("hidden", a.hidden, b.hidden),
                             compare("state", a.state, b.state), compare("conv", a.conv, b.conv)}) {
    if (!result) return result;
  }
  return ::testing::AssertionSuccess();
}

struct Setting {
  int32_t page_rows = 16;
  forward::CacheType cache_type = forward::CacheType::f32;
  int threads = 1;
  forward::Compute compute = forward::Compute::f32;
};

// A group and the pages of its streams. Ranks that share the pages have two pools, and what is one stream's page in the
// one is the other stream's in the other: whoever mixes the pools up spoils a page in use.
class Streams {
 public:
  static constexpr int32_t slots = 2, stream_pages = 64;

  Streams(const std::string& model, GroupSize size, Setting setting = {})
      : Streams(loaded(model).shape, loaded(model).weights, size, setting) {}
  Streams(const model::Shape& shape, const model::TextWeights& weights, GroupSize size, Setting setting = {})
      : shape_(shape),
        pools_(size.decode_context_parallel_size),
        page_rows_(setting.page_rows),
        group_(shape, weights, size,
               Capacity{.slots = slots,
                        .pages = 1 + slots * stream_pages / pools_,
                        .max_stream_pages = stream_pages,
                        .max_rows = 300,
                        .max_logit_rows = 300,
                        .kept_states = 2,
                        .page_rows = setting.page_rows,
                        .cache_type = setting.cache_type,
                        .compute = setting.compute},
               setting.threads) {}

  std::vector<int32_t> pages(int32_t slot) const {
    std::vector<int32_t> table;
    for (int32_t entry = 0; entry < stream_pages; ++entry)
      table.push_back(1 + ((slot ^ entry % pools_) * stream_pages + entry) / pools_);
    return table;
  }
  // Adds rows of a slot to a step, all logits wanted.
  void add(Step& step, int32_t slot, std::span<const int32_t> tokens, int64_t position, int32_t uncertain = 0) const {
    const auto first = static_cast<int32_t>(step.tokens.size()), rows = static_cast<int32_t>(tokens.size());
    const std::vector<int32_t> table = pages(slot);
    step.segments.push_back(
        {slot, static_cast<int32_t>(step.page_tables.size()), stream_pages, first, rows, rows - uncertain, position});
    step.page_tables.insert(step.page_tables.end(), table.begin(), table.end());
    for (int32_t i = 0; i < rows; ++i) {
      step.tokens.push_back(tokens[static_cast<size_t>(i)]);
      step.positions.push_back(position + i);
      step.logit_rows.push_back(first + i);
    }
  }
  void run(const Step& step, Trace& trace, size_t rows) {
    group_.run(step);
    const auto vocab = static_cast<size_t>(shape().vocab_size), hidden = static_cast<size_t>(shape().hidden_size);
    ASSERT_GE(group_.logits().size(), rows * vocab);
    trace.logits.insert(trace.logits.end(), group_.logits().data(), group_.logits().data() + rows * vocab);
    const size_t hidden_rows = std::min(rows, step.tokens.size());
    trace.hidden.insert(trace.hidden.end(), group_.hidden().data(), group_.hidden().data() + hidden_rows * hidden);
  }
  void run(int32_t slot, std::span<const int32_t> tokens, int64_t position, Trace& trace, int32_t uncertain = 0,
           int64_t kept = -1) {
    Step step;
    add(step, slot, tokens, position, uncertain);
    run(step, trace, kept < 0 ? tokens.size() : static_cast<size_t>(kept));
  }
  void states(int32_t slot, Trace& trace) const {
    const model::Shape& s = shape();
    const auto layers = std::count(s.layer_types.begin(), s.layer_types.end(), model::AttentionKind::kda);
    for (int64_t layer = 0; layer < layers; ++layer) {
      Rows state(static_cast<size_t>(s.kda_width() * s.kda_head_dim)),
          conv(static_cast<size_t>(3 * s.kda_width() * (s.short_conv_kernel_size - 1)));
      group_.read_kda_state(slot, layer, state, conv);
      trace.state.insert(trace.state.end(), state.begin(), state.end());
      trace.conv.insert(trace.conv.end(), conv.begin(), conv.end());
    }
  }
  RankGroup& group() { return group_; }
  const model::Shape& shape() const { return shape_; }
  int32_t pools() const { return pools_; }
  int32_t page_rows() const { return page_rows_; }

 private:
  const model::Shape& shape_;
  int32_t pools_, page_rows_;
  RankGroup group_;
};

inline Trace in_chunks(Streams& streams, const Ids& ids, size_t chunk) {
  Trace trace;
  for (size_t begin = 0; begin < ids.size(); begin += chunk) {
    const size_t rows = std::min(chunk, ids.size() - begin);
    streams.run(0, std::span(ids).subspan(begin, rows), static_cast<int64_t>(begin), trace);
  }
  streams.states(0, trace);
  return trace;
}

// The plain model without a group, as every other test knows it.
inline Trace without_group(const model::Shape& s, const model::TextWeights& weights, const Ids& ids, Setting setting) {
  device::Threads threads(setting.threads);
  forward::TextModel text(s, weights, threads,
                          Capacity{.slots = 1,
                                   .pages = 65,
                                   .max_rows = 300,
                                   .max_logit_rows = 300,
                                   .page_rows = setting.page_rows,
                                   .cache_type = setting.cache_type,
                                   .compute = setting.compute});
  Trace trace;
  for (size_t begin = 0; begin < ids.size(); begin += 300) {
    const size_t rows = std::min<size_t>(300, ids.size() - begin);
    Step step = forward::single_stream_step(std::span(ids).subspan(begin, rows), static_cast<int64_t>(begin), 64);
    step.logit_rows.resize(rows);
    std::iota(step.logit_rows.begin(), step.logit_rows.end(), 0);
    text.run(step);
    trace.logits.insert(trace.logits.end(), text.logits().begin(), text.logits().end());
    trace.hidden.insert(trace.hidden.end(), text.hidden().begin(), text.hidden().end());
  }
  for (int64_t layer = 0; layer < std::count(s.layer_types.begin(), s.layer_types.end(), model::AttentionKind::kda);
       ++layer) {
    Rows state(static_cast<size_t>(s.kda_width() * s.kda_head_dim)),
        conv(static_cast<size_t>(3 * s.kda_width() * (s.short_conv_kernel_size - 1)));
    text.read_kda_state(0, layer, state, conv);
    trace.state.insert(trace.state.end(), state.begin(), state.end());
    trace.conv.insert(trace.conv.end(), conv.begin(), conv.end());
  }
  return trace;
}
inline Trace without_group(const std::string& name, const Ids& ids, Setting setting) {
  return without_group(loaded(name).shape, loaded(name).weights, ids, setting);
}

// At most 300 of them.
inline Ids ids_of(const std::string& model, const std::string& name) {
  Ids ids = forward::golden_ids(model, name);
  if (ids.size() > 300) ids.resize(300);
  return ids;
}

}  // namespace tandem::cluster
