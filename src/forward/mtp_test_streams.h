// For tests of MTP steps: two streams of a model with their text rows, absorbed rows and chains.
#pragma once

#include <numeric>
#include <span>

#include "device/threads.h"
#include "forward/probe.h"
#include "forward/test_models.h"
#include "forward/text_model.h"

namespace tandem::forward {

using Ids = std::vector<int32_t>;
using HiddenRows = std::vector<float>;

struct MtpSetting {
  int32_t page_rows = 16;
  CacheType cache_type = CacheType::f32;
  bool mtp = true, zero_first_embedding = true, share = true;
  Compute compute = Compute::f32;
};

class MtpStreams {
 public:
  static constexpr int32_t stream_pages = 24;

  explicit MtpStreams(const std::string& model, MtpSetting setting = {}) : MtpStreams(loaded(model), setting) {}
  // `model` must outlive this object.
  explicit MtpStreams(const Loaded& model, MtpSetting setting = {})
      : loaded_(model),
        page_rows_(setting.page_rows),
        text_(loaded_.shape, loaded_.weights, threads_, capacity(setting)) {
    for (const int32_t slot : {0, 1}) {
      table_[slot].resize(stream_pages);
      std::iota(table_[slot].begin(), table_[slot].end(), 1 + slot * stream_pages);
    }
  }
  static Capacity capacity(const MtpSetting& setting) {
    return {.slots = 2,
            .pages = 1 + 2 * stream_pages,
            .max_stream_pages = stream_pages,
            .max_rows = 384,
            .max_logit_rows = 384,
            .kept_states = 2,
            .page_rows = setting.page_rows,
            .cache_type = setting.cache_type,
            .compute = setting.compute,
            .mtp = setting.mtp,
            .mtp_zero_first_embedding = setting.zero_first_embedding,
            .mtp_index_share = setting.share};
  }

  // Adds rows of a slot to a step, all logits wanted.
  void add(Step& step, int32_t slot, std::span<const int32_t> tokens, int64_t position, int32_t uncertain = 0) const {
    const auto first = static_cast<int32_t>(step.tokens.size()), rows = static_cast<int32_t>(tokens.size());
    step.segments.push_back({.slot = slot,
                             .page_table = static_cast<int32_t>(step.page_tables.size()),
                             .pages = stream_pages,
                             .first_row = first,
                             .rows = rows,
                             .certain_rows = rows - uncertain,
                             .position = position});
    step.page_tables.insert(step.page_tables.end(), table_[slot].begin(), table_[slot].end());
    step.tokens.insert(step.tokens.end(), tokens.begin(), tokens.end());
    for (int32_t i = 0; i < rows; ++i) {
      step.positions.push_back(position + i);
      step.logit_rows.push_back(first + i);
    }
  }
  // HiddenRows [from, to) of a stream: their tokens are the next ones.
  void add_absorb(Step& step, int32_t slot, const Ids& ids, int64_t from, int64_t to) const {
    step.kind = StepKind::mtp_absorb;
    add(step, slot, std::span(ids).subspan(static_cast<size_t>(from) + 1, static_cast<size_t>(to - from)), from);
  }

  HiddenRows run(const Step& step, Probe* probe = nullptr) {
    text_.run(step, probe);
    return {text_.logits().begin(), text_.logits().end()};
  }
  // Hidden rows, then logits.
  HiddenRows run_mtp_step(const Step& step, Probe* probe = nullptr) {
    const HiddenRows logits = run(step, probe);
    HiddenRows all(text_.mtp_hidden().begin(), text_.mtp_hidden().end());
    all.insert(all.end(), logits.begin(), logits.end());
    return all;
  }
  HiddenRows text(int32_t slot, std::span<const int32_t> tokens, int64_t position, int32_t uncertain = 0) {
    Step step;
    add(step, slot, tokens, position, uncertain);
    return run(step);
  }
  HiddenRows text(const Ids& ids, int64_t from, int64_t to) {
    return text(0, std::span(ids).subspan(static_cast<size_t>(from), static_cast<size_t>(to - from)), from);
  }
  HiddenRows absorb(int32_t slot, const Ids& ids, int64_t from, int64_t to, Probe* probe = nullptr) {
    Step step;
    add_absorb(step, slot, ids, from, to);
    return run_mtp_step(step, probe);
  }
  HiddenRows chain(int32_t slot, int32_t token, int64_t position, Probe* probe = nullptr) {
    Step step;
    step.kind = StepKind::mtp_chain;
    add(step, slot, std::span(&token, 1), position);
    return run_mtp_step(step, probe);
  }
  // HiddenRows with hidden rows given, for comparison.
  HiddenRows explicit_rows(int32_t slot, std::span<const int32_t> tokens, int64_t position,
                           std::span<const float> hidden) {
    Step step;
    add(step, slot, tokens, position);
    text_.run_mtp(step, hidden);
    HiddenRows all(text_.mtp_hidden().begin(), text_.mtp_hidden().end());
    all.insert(all.end(), text_.mtp_logits().begin(), text_.mtp_logits().end());
    return all;
  }
  HiddenRows states(int32_t slot) const {
    const model::Shape& s = shape();
    HiddenRows all;
    const auto layers = std::count(s.layer_types.begin(), s.layer_types.end(), model::AttentionKind::kda);
    for (int64_t layer = 0; layer < layers; ++layer) {
      HiddenRows state(static_cast<size_t>(s.kda_width() * s.kda_head_dim)),
          conv(static_cast<size_t>(3 * s.kda_width() * (s.short_conv_kernel_size - 1)));
      text_.read_kda_state(slot, layer, state, conv);
      all.insert(all.end(), state.begin(), state.end());
      all.insert(all.end(), conv.begin(), conv.end());
    }
    return all;
  }

  TextModel& model() { return text_; }
  const model::Shape& shape() const { return loaded_.shape; }
  const model::TextWeights& weights() const { return loaded_.weights; }
  int32_t page_rows() const { return page_rows_; }
  std::vector<int32_t>& table(int32_t slot) { return table_[slot]; }

 private:
  const Loaded& loaded_;
  int32_t page_rows_;
  device::Threads threads_{2};
  TextModel text_;
  std::vector<int32_t> table_[2];
};

// Row `row` of hidden rows and logits of `rows` rows, as run_mtp_step() gives them.
inline HiddenRows mtp_row(const model::Shape& shape, const HiddenRows& all, int64_t rows, int64_t row) {
  const auto width = static_cast<std::ptrdiff_t>(shape.hidden_size),
             vocab = static_cast<std::ptrdiff_t>(shape.vocab_size);
  const auto hidden = all.begin() + row * width, logits = all.begin() + rows * width + row * vocab;
  HiddenRows one(hidden, hidden + width);
  one.insert(one.end(), logits, logits + vocab);
  return one;
}

inline Ids mtp_ids(const std::string& model, const std::string& name, size_t most = 384) {
  Ids ids = golden_ids(model, name);
  if (ids.size() > most) ids.resize(most);
  return ids;
}

// A draft that is nearly always wrong.
inline int32_t some_token(const model::Shape& shape, int64_t seed) {
  return static_cast<int32_t>((seed * 7919 + 13) % shape.vocab_size);
}

}  // namespace tandem::forward
