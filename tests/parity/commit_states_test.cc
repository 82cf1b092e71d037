// Commit is "set length" (design.md 5, spec/speculation.md 4): after a window of drafts of which the first `keep` rows
// stay, a stream is bit for bit what it would be had those rows alone been run, one after another. Compared are the
// materialised KDA states and convolution rows, by way of a kept state, and what follows: logits and hidden rows of the
// greedy continuation, which read latent rows, complete pools and the raw rows of the pool that is not, in place and
// from the kept state.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <span>
#include <vector>

#include "device/threads.h"
#include "forward/test_models.h"
#include "forward/text_model.h"

namespace tandem::parity {
namespace {

using forward::CacheType;
using forward::Step;
using Values = std::vector<float>;

struct CommitCase {
  const char *model, *ids;
  int32_t page_rows = 16;
  CacheType type = CacheType::f32;
  bool every_start = true;  // windows that begin at each place of a block, else at some
};

class CommitStates : public ::testing::TestWithParam<CommitCase> {
 protected:
  static constexpr int64_t prompt = 18, block = 16, follow = 18, rows = 84;

  CommitStates() : loaded_(forward::loaded(GetParam().model)) {
    const int64_t page_rows = GetParam().page_rows;
    table_.resize(static_cast<size_t>((rows + page_rows - 1) / page_rows));
    std::iota(table_.rbegin(), table_.rend(), 1);  // pages are not in the order of their numbers
    text_ = std::make_unique<forward::TextModel>(loaded_.shape, loaded_.weights, threads_,
                                                 forward::Capacity{.slots = 3,
                                                                   .pages = 1 + static_cast<int64_t>(table_.size()),
                                                                   .max_rows = 64,
                                                                   .max_logit_rows = 64,
                                                                   .kept_states = 2,
                                                                   .page_rows = GetParam().page_rows,
                                                                   .cache_type = GetParam().type});
    ids_ = forward::golden_ids(GetParam().model, GetParam().ids);
    ids_.resize(prompt);
    run_serially();
  }

  // One row after another: the prompt, then what is greedily next.
  void run_serially() {
    for (int64_t length = 0; length < rows; ++length) {
      const auto bits = run(0, std::span(ids_).subspan(static_cast<size_t>(length), 1), length);
      serial_.push_back(bits.front());
      states_.push_back(states(0));
      const auto logits = std::span(bits.front()).first(static_cast<size_t>(loaded_.shape.vocab_size));
      if (length + 1 == std::ssize(ids_))
        ids_.push_back(static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
    }
  }

  std::vector<Values> run(int32_t slot, std::span<const int32_t> tokens, int64_t position, int32_t drafts = 0) {
    Step step = forward::single_stream_step(tokens, position, 1);
    step.page_tables = table_;
    forward::Segment& segment = step.segments[0];
    segment.slot = slot;
    segment.pages = static_cast<int32_t>(table_.size());
    segment.certain_rows -= drafts;
    for (int32_t i = 0; i < segment.rows; ++i) step.logit_rows.push_back(i);
    text_->run(step);
    std::vector<Values> bits;
    const auto piece = [](std::span<const float> all, int64_t i, int64_t width) {
      return all.subspan(static_cast<size_t>(i * width), static_cast<size_t>(width));
    };
    for (int32_t i = 0; i < segment.rows; ++i) {
      const auto logits = piece(text_->logits(), i, loaded_.shape.vocab_size);
      const auto hidden = piece(text_->hidden(), i, loaded_.shape.hidden_size);
      Values& row = bits.emplace_back(logits.begin(), logits.end());
      row.insert(row.end(), hidden.begin(), hidden.end());
    }
    return bits;
  }
  void move(std::vector<forward::StateMove> keeps, std::vector<forward::StateMove> restores) {
    Step step;
    step.keeps = std::move(keeps);
    step.restores = std::move(restores);
    text_->run(step);
  }
  Values states(int32_t slot) const {
    const model::Shape& s = loaded_.shape;
    Values all;
    const auto layers = std::count(s.layer_types.begin(), s.layer_types.end(), model::AttentionKind::kda);
    for (int64_t layer = 0; layer < layers; ++layer) {
      Values state(static_cast<size_t>(s.kda_width() * s.kda_head_dim)),
          conv(static_cast<size_t>(3 * s.kda_width() * (s.short_conv_kernel_size - 1)));
      text_->read_kda_state(slot, layer, state, conv);
      all.insert(all.end(), state.begin(), state.end());
      all.insert(all.end(), conv.begin(), conv.end());
    }
    return all;
  }
  // The continuation at `length`, in uneven pieces, equals the serial rows.
  void follow_in(int32_t slot, int64_t length) {
    const int64_t end = std::min(rows, length + follow);
    for (int64_t from = length, piece = 1; from < end; from += piece, piece = piece % 5 + 1) {
      const int64_t count = std::min(piece, end - from);
      const auto bits = run(slot, std::span(ids_).subspan(static_cast<size_t>(from), static_cast<size_t>(count)), from);
      for (int64_t i = 0; i < count; ++i)
        ASSERT_EQ(bits[static_cast<size_t>(i)], serial_[static_cast<size_t>(from + i)])
            << "row " << from + i << " in slot " << slot;
    }
  }
  // A window at `start` whose first `keep` rows are the stream's and the others are not.
  void check(int64_t start, int64_t window, int64_t keep) {
    SCOPED_TRACE(::testing::Message() << keep << " of " << window << " rows at " << start);
    const auto first = ids_.begin() + start;
    std::vector<int32_t> tokens(first, first + keep);
    const auto vocabulary = static_cast<int32_t>(loaded_.shape.vocab_size);
    for (int64_t i = keep; i < window; ++i)
      tokens.push_back((first[i] + 1 + static_cast<int32_t>(i * 7 + start)) % vocabulary);
    move({}, {{1, 0, start}});
    const auto bits = run(1, tokens, start, static_cast<int32_t>(window) - 1);
    for (int64_t i = 0; i < keep; ++i)
      ASSERT_EQ(bits[static_cast<size_t>(i)], serial_[static_cast<size_t>(start + i)]) << "row " << i;
    const int64_t length = start + keep;
    move({{1, 1, length}}, {{2, 1, length}});
    ASSERT_EQ(states(2), states_[static_cast<size_t>(length - 1)]) << "KDA states after the commit";
    // The slot that is first sees the dropped rows in the pages that both have.
    const int32_t early = keep % 2 == 0 ? 1 : 2;
    follow_in(early, length);
    follow_in(3 - early, length);
    ASSERT_EQ(states(1), states(2));
    const int64_t end = std::min(rows, length + follow);
    ASSERT_EQ(states(1), states_[static_cast<size_t>(end - 1)]) << "KDA states after the continuation";
  }
  void check_start(int64_t start, int64_t window) {
    // Rows before the window as they were, in slot 0 and in the pages.
    run(0, std::span(ids_).first(static_cast<size_t>(start)), 0);
    move({{0, 0, start}}, {});
    for (int64_t keep = 1; keep <= window && !HasFatalFailure(); ++keep) check(start, window, keep);
  }

  const forward::Loaded& loaded_;
  device::Threads threads_{1};
  std::unique_ptr<forward::TextModel> text_;
  std::vector<int32_t> table_, ids_;
  std::vector<Values> serial_, states_;  // [row]: its bits, and the states after it
};

// Sixteen rows reach over a block's end, a page's end and four pools' ends wherever they begin.
TEST_P(CommitStates, FullWindows) {
  const std::vector<int64_t> some = {30, 33};
  for (int64_t start = 2 * block - 5; start < 3 * block - 5; ++start) {
    const bool chosen = GetParam().every_start || std::find(some.begin(), some.end(), start) != some.end();
    if (chosen) check_start(start, block);
    if (HasFatalFailure()) return;
  }
}

TEST_P(CommitStates, ShorterWindows) {
  for (int64_t window = 1; window < block; window += GetParam().every_start ? 1 : 5) {
    check_start(2 * block - window / 2, window);
    if (HasFatalFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, CommitStates,
                         ::testing::Values(CommitCase{"tinyA", "case_T130"},
                                           CommitCase{"tinyA", "case_T130", 4, CacheType::bf16, false},
                                           CommitCase{"tinyB", "case_T200", 8, CacheType::f32, false},
                                           CommitCase{"nano", "case_T40", 16, CacheType::f32, false},
                                           CommitCase{"nano", "case_T40", 32, CacheType::bf16, false},
                                           CommitCase{"tinyA", "case_T130", 8, CacheType::fp8, false},
                                           CommitCase{"tinyB", "case_T200", 16, CacheType::nvfp4, false}));

}  // namespace
}  // namespace tandem::parity
