// Kept states: a stream that goes on from a kept state gives the bits of the stream that never stopped, at every
// position, after dropped drafts too, in another slot and on other pages.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "device/threads.h"
#include "forward/test_models.h"
#include "forward/text_model.h"

namespace tandem::forward::state_moves_test {
namespace {

using Rows = std::vector<float>;

// A model with small pages: two slots, three records.
class MovesTest : public ::testing::Test {
 protected:
  static constexpr int32_t page_rows = 16;

  void load(const std::string& name, int32_t rows_of_page = page_rows, CacheType type = CacheType::f32,
            std::vector<float> latent_scales = {}) {
    loaded_ = &loaded(name);
    rows_of_page_ = rows_of_page;
    text_ = std::make_unique<TextModel>(loaded_->shape, loaded_->weights, threads_,
                                        Capacity{.slots = 2,
                                                 .pages = 25,
                                                 .max_rows = 160,
                                                 .max_logit_rows = 160,
                                                 .kept_states = 3,
                                                 .page_rows = rows_of_page,
                                                 .cache_type = type,
                                                 .latent_scales = std::move(latent_scales)});
  }
  int32_t pages_of(int64_t tokens) const { return static_cast<int32_t>((tokens + rows_of_page_ - 1) / rows_of_page_); }
  // Slot 0 owns pages 1 … 12, slot 1 pages 13 … 24 in descending order.
  std::vector<int32_t> own_pages(int32_t slot) const {
    std::vector<int32_t> pages(12);
    std::iota(pages.begin(), pages.end(), slot == 0 ? 1 : 13);
    if (slot == 1) std::reverse(pages.begin(), pages.end());
    return pages;
  }
  Step rows(int32_t slot, std::span<const int32_t> tokens, int64_t position, const std::vector<int32_t>& pages,
            int32_t uncertain = 0) const {
    Step step = single_stream_step(tokens, position, 1);
    step.page_tables = pages;
    step.segments[0].slot = slot;
    step.segments[0].pages = static_cast<int32_t>(pages.size());
    step.segments[0].certain_rows -= uncertain;
    for (int32_t i = 0; i < static_cast<int32_t>(tokens.size()); ++i) step.logit_rows.push_back(i);
    return step;
  }
  Rows run(const Step& step) {
    text_->run(step);
    return {text_->logits().begin(), text_->logits().end()};
  }
  Rows states(int32_t slot) const {
    const model::Shape& s = loaded_->shape;
    Rows all;
    const auto layers = std::count(s.layer_types.begin(), s.layer_types.end(), model::AttentionKind::kda);
    for (int64_t layer = 0; layer < layers; ++layer) {
      Rows state(static_cast<size_t>(s.kda_width() * s.kda_head_dim)),
          conv(static_cast<size_t>(3 * s.kda_width() * (s.short_conv_kernel_size - 1)));
      text_->read_kda_state(slot, layer, state, conv);
      all.insert(all.end(), state.begin(), state.end());
      all.insert(all.end(), conv.begin(), conv.end());
    }
    return all;
  }
  // The slot's page table for a stream that goes on from a state on `kept_pages` at `length`: full pages shared, the
  // partial one copied.
  std::vector<int32_t> resumed_pages(int32_t slot, const std::vector<int32_t>& kept_pages, int64_t length,
                                     Step& step) const {
    std::vector<int32_t> pages = own_pages(slot);
    std::copy_n(kept_pages.begin(), length / rows_of_page_, pages.begin());
    if (const auto rest = static_cast<int32_t>(length % rows_of_page_); rest > 0) {
      const auto at = static_cast<size_t>(length / rows_of_page_);
      step.page_copies.push_back({kept_pages[at], pages[at], rest, 0});
    }
    return pages;
  }

  device::Threads threads_{2};
  const Loaded* loaded_ = nullptr;
  int32_t rows_of_page_ = 0;
  std::unique_ptr<TextModel> text_;
};

Rows tail(const Rows& rows, int64_t from, int64_t width) {
  return {rows.begin() + static_cast<std::ptrdiff_t>(from * width), rows.end()};
}

struct MovesCase {
  const char *first, *second;  // model, golden case
  CacheType type = CacheType::f32;
};

class EveryPosition : public MovesTest, public ::testing::WithParamInterface<MovesCase> {};

TEST_P(EveryPosition, ResumedEqualsNeverStopped) {
  const bool is_nano = std::string(GetParam().first) == "nano";
  load(GetParam().first, page_rows, GetParam().type);
  std::vector<int32_t> ids = golden_ids(GetParam().first, GetParam().second);
  if (ids.size() > 80) ids.resize(80);
  const auto n = static_cast<int64_t>(ids.size()), vocab = loaded_->shape.vocab_size;
  const Rows whole = run(rows(0, ids, 0, own_pages(0)));
  const Rows whole_states = states(0);
  for (int64_t length = 1; length < n; length += is_nano ? 7 : 1) {
    const auto first = std::span(ids).first(static_cast<size_t>(length));
    const auto rest = std::span(ids).subspan(static_cast<size_t>(length));
    run(rows(0, first, 0, own_pages(0)));
    // The state is kept by the step that takes its own stream on, over other tokens, in the pages that it shares.
    Step other = rows(0, std::vector<int32_t>(5, 3), length, own_pages(0));
    other.keeps = {{0, 1, length}};
    run(other);
    Step resume;
    const std::vector<int32_t> pages = resumed_pages(1, own_pages(0), length, resume);
    Step step = rows(1, rest, length, pages);
    step.restores = {{1, 1, length}};
    step.page_copies = resume.page_copies;
    ASSERT_EQ(run(step), tail(whole, length, vocab)) << "resumed at " << length;
    ASSERT_EQ(states(1), whole_states) << "resumed at " << length;
  }
}

TEST_P(EveryPosition, TheHeadRowNeedsNoForward) {
  load(GetParam().first, page_rows, GetParam().type);
  std::vector<int32_t> ids = golden_ids(GetParam().first, GetParam().second);
  if (ids.size() > 130) ids.resize(130);
  const int64_t vocab = loaded_->shape.vocab_size;
  for (const int64_t length : {int64_t{1}, int64_t{16}, int64_t{33}, std::ssize(ids)}) {
    const Rows logits = run(rows(0, std::span(ids).first(static_cast<size_t>(length)), 0, own_pages(0)));
    Step keep;
    keep.keeps = {{0, 2, length}};
    run(keep);
    run(rows(0, std::vector<int32_t>(3, 5), 0, own_pages(0)));
    Step step;
    step.restores = {{1, 2, length}};
    step.head_slots = {1};
    ASSERT_EQ(run(step), tail(logits, length - 1, vocab)) << length;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, EveryPosition,
                         ::testing::Values(MovesCase{"tinyA", "case_T130"}, MovesCase{"tinyB", "case_T200"},
                                           MovesCase{"nano", "case_T40"},
                                           MovesCase{"tinyA", "case_T130", CacheType::bf16},
                                           MovesCase{"nano", "case_T40", CacheType::bf16},
                                           MovesCase{"tinyA", "case_T130", CacheType::fp8},
                                           MovesCase{"nano", "case_T40", CacheType::fp8_row},
                                           MovesCase{"tinyA", "case_T130", CacheType::nvfp4},
                                           MovesCase{"tinyB", "case_T200", CacheType::bf16_fp8_index}));

double relative_error(const Rows& x, const Rows& exact) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    difference += std::pow(exact[i] - x[i], 2);
    norm += std::pow(exact[i], 2);
  }
  return std::sqrt(difference / norm);
}

TEST_F(MovesTest, RoundedRowsAreNearAndSmaller) {
  const std::vector<int32_t> ids = golden_ids("nano", "case_T40");
  load("nano");
  const Rows exact = run(rows(0, ids, 0, own_pages(0)));
  const auto error = [&](CacheType type, std::vector<float> scales = {}) {
    load("nano", page_rows, type, std::move(scales));
    return relative_error(run(rows(0, ids, 0, own_pages(0))), exact);
  };
  const double bf16 = error(CacheType::bf16), fp8 = error(CacheType::fp8), fp8_row = error(CacheType::fp8_row),
               nvfp4 = error(CacheType::nvfp4);
  EXPECT_GT(bf16, 0);
  EXPECT_LT(bf16, 1e-4);
  EXPECT_GT(fp8, bf16);
  EXPECT_LT(fp8, 3e-3);
  EXPECT_LT(fp8_row, 3e-3);
  EXPECT_NE(fp8_row, fp8);
  EXPECT_GT(nvfp4, fp8);
  EXPECT_LT(nvfp4, 5e-3);
  const model::Shape& s = loaded_->shape;
  const auto cached = static_cast<size_t>(
      std::count(s.layer_types.begin(), s.layer_types.end(), model::AttentionKind::dsa) + s.num_nextn_predict_layers);
  const double calibrated = error(CacheType::nvfp4, std::vector<float>(cached, 0x1p-9f));
  EXPECT_NE(calibrated, nvfp4) << "the scales are used";
  EXPECT_LT(calibrated, 5e-3);
  EXPECT_GT(error(CacheType::nvfp4, std::vector<float>(cached, 0x1p-20f)), 10 * nvfp4) << "everything saturates";
  EXPECT_THROW(load("nano", page_rows, CacheType::nvfp4, std::vector<float>(cached + 1, 1.0f)), Error);
  Capacity capacity{.pages = 9}, more{.pages = 10};
  const auto page = [&](CacheType type) {
    capacity.cache_type = more.cache_type = type;
    capacity.max_stream_pages = more.max_stream_pages = 2;
    return TextModel::planned_bytes(loaded_->shape, more) - TextModel::planned_bytes(loaded_->shape, capacity);
  };
  EXPECT_EQ(page(CacheType::f32), 2 * page(CacheType::bf16));
  for (const CacheType type : model::all_cache_types)
    EXPECT_EQ(page(type),
              model::page_bytes(static_cast<int64_t>(cached), model::cache_row(s, type), s.index_kpool, 256))
        << name_of(type);
}

TEST_F(MovesTest, KeptInsideAWindowOfDrafts) {
  load("tinyA");
  const std::vector<int32_t> ids = golden_ids("tinyA", "case_T67");
  const int64_t vocab = loaded_->shape.vocab_size;
  const Rows whole = run(rows(0, ids, 0, own_pages(0)));
  for (const int64_t position : {30, 31, 32, 33, 40}) {
    for (int64_t kept = 0; kept <= 16; ++kept) {  // drafts that are kept
      run(rows(0, std::span(ids).first(static_cast<size_t>(position)), 0, own_pages(0)));
      std::vector<int32_t> window(ids.begin() + position, ids.begin() + position + 1 + kept);
      window.resize(17, 9);  // wrong drafts
      run(rows(0, window, position, own_pages(0), 16));
      const int64_t length = position + 1 + kept;
      Step step = rows(1, std::span(ids).subspan(static_cast<size_t>(length)), length, own_pages(1));
      step.keeps = {{0, 0, length}};
      step.restores = {{1, 0, length}};
      Step resume;
      step.page_tables = resumed_pages(1, own_pages(0), length, resume);
      step.page_copies = resume.page_copies;
      ASSERT_EQ(run(step), tail(whole, length, vocab)) << position << ", " << kept << " drafts kept";
    }
  }
}

TEST_F(MovesTest, ASlotIsKeptAndReusedInOneStep) {
  load("tinyA");
  const std::vector<int32_t> a = golden_ids("tinyA", "case_T46"), b = golden_ids("tinyA", "case_T15");
  const Rows alone = run(rows(0, b, 0, own_pages(1)));
  const Rows whole = run(rows(0, a, 0, own_pages(0)));
  run(rows(0, std::span(a).first(20), 0, own_pages(0)));
  Step step = rows(0, b, 0, own_pages(1));
  step.keeps = {{0, 0, 20}};
  EXPECT_EQ(run(step), alone);
  Step back = rows(0, std::span(a).subspan(20), 20, own_pages(0));
  back.restores = {{0, 0, 20}};
  EXPECT_EQ(run(back), tail(whole, 20, loaded_->shape.vocab_size));
}

TEST_F(MovesTest, PageSizeIsItsOwnArithmeticAndKeptStatesFollowIt) {
  for (const int32_t size : {4, 8, 64, 256}) {
    load("tinyA", size);
    std::vector<int32_t> ids = golden_ids("tinyA", "case_T46");
    if (size * 12 < 46) ids.resize(40);
    const Rows whole = run(rows(0, ids, 0, own_pages(0)));
    run(rows(0, std::span(ids).first(21), 0, own_pages(0)));
    Step resume;
    const std::vector<int32_t> pages = resumed_pages(1, own_pages(0), 21, resume);
    Step step = rows(1, std::span(ids).subspan(21), 21, pages);
    step.keeps = {{0, 0, 21}};
    step.restores = {{1, 0, 21}};
    step.page_copies = resume.page_copies;
    EXPECT_EQ(run(step), tail(whole, 21, loaded_->shape.vocab_size)) << size;
  }
}

TEST_F(MovesTest, MovesThatBreakTheRulesAreRefused) {
  load("tinyA");
  const std::vector<int32_t> ids = golden_ids("tinyA", "case_T15");
  run(rows(0, ids, 0, own_pages(0), 5));
  const auto refused = [&](auto change) {
    Step step;
    change(step);
    EXPECT_THROW(text_->run(step), Error);
  };
  refused([](Step&) {});                             // neither rows nor moves
  refused([](Step& s) { s.keeps = {{0, 0, 9}}; });   // row 9 was certain
  refused([](Step& s) { s.keeps = {{0, 0, 16}}; });  // there are 15
  refused([](Step& s) { s.keeps = {{0, 3, 15}}; });
  refused([](Step& s) { s.keeps = {{2, 0, 15}}; });
  refused([](Step& s) { s.keeps = {{1, 0, 0}}; });
  refused([](Step& s) { s.restores = {{1, 0, 15}}; });  // nothing kept there yet
  refused([](Step& s) { s.head_slots = {1}; });
  refused([](Step& s) { s.head_slots = {-1}; });
  for (const PageCopy& copy : {PageCopy{0, 2, 1, 0}, {1, 0, 1, 0}, {1, 25, 1, 0}, {1, 2, 0, 0}, {1, 2, 17, 0}})
    refused([&](Step& s) { s.page_copies = {copy}; });
  Step keep;
  keep.keeps = {{0, 0, 12}};
  text_->run(keep);
  refused([](Step& s) { s.restores = {{1, 0, 11}}; });
  Step step = rows(1, std::span(ids).first(1), 13, own_pages(1));
  step.restores = {{1, 0, 12}};
  EXPECT_THROW(text_->run(step), Error);  // row 12 is missing
}

}  // namespace
}  // namespace tandem::forward::state_moves_test
