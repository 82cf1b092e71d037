// One rank, two ranks, and two ranks that share the pages give equal bits: logits, hidden rows, KDA states (design.md
// 1).
#include "cluster/rank_group.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <functional>
#include <numeric>

#include "base/error.h"
#include "device/threads.h"
#include "forward/probe.h"
#include "forward/test_models.h"
#include "ops/simd/kernels.h"

namespace tandem::cluster {
namespace {

using forward::Capacity;
using forward::Loaded;
using forward::loaded;
using forward::Step;
using Ids = std::vector<int32_t>;
using Rows = std::vector<float>;

constexpr GroupSize one_rank{1, 1}, two_ranks{2, 1}, shared_pages{2, 2};

std::string name_of(GroupSize size) {
  return std::to_string(size.tensor_parallel_size) + " ranks, pages over " +
         std::to_string(size.decode_context_parallel_size);
}

// Everything that runs leave behind.
struct Trace {
  Rows logits, hidden, state, conv;
};

::testing::AssertionResult same(const Trace& a, const Trace& b) {
  const auto compare = [](const char* what, const Rows& x, const Rows& y) -> ::testing::AssertionResult {
    if (x.size() != y.size()) return ::testing::AssertionFailure() << what << ": " << x.size() << " and " << y.size();
    for (size_t i = 0; i < x.size(); ++i) {
      if (std::memcmp(&x[i], &y[i], 4) != 0)
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
};

// A group and the pages of its streams. Slot s has entries 64·s + 1 … of the pool; ranks that share the pages have two
// pools with the same numbers in both.
class Streams {
 public:
  static constexpr int32_t slots = 2, stream_pages = 64;

  Streams(const std::string& model, GroupSize size, Setting setting = {})
      : loaded_(loaded(model)),
        pools_(size.decode_context_parallel_size),
        page_rows_(setting.page_rows),
        group_(loaded_.shape, loaded_.weights, size,
               Capacity{.slots = slots,
                        .pages = 1 + slots * stream_pages / pools_,
                        .max_stream_pages = stream_pages,
                        .max_rows = 300,
                        .max_logit_rows = 300,
                        .kept_states = 2,
                        .page_rows = setting.page_rows,
                        .cache_type = setting.cache_type},
               setting.threads) {}

  std::vector<int32_t> pages(int32_t slot) const {
    std::vector<int32_t> table;
    for (int32_t entry = 0; entry < stream_pages; ++entry) table.push_back(1 + (slot * stream_pages + entry) / pools_);
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
  const model::Shape& shape() const { return loaded_.shape; }
  int32_t pools() const { return pools_; }
  int32_t page_rows() const { return page_rows_; }

 private:
  const Loaded& loaded_;
  int32_t pools_, page_rows_;
  RankGroup group_;
};

Trace in_chunks(Streams& streams, const Ids& ids, size_t chunk) {
  Trace trace;
  for (size_t begin = 0; begin < ids.size(); begin += chunk) {
    const size_t rows = std::min(chunk, ids.size() - begin);
    streams.run(0, std::span(ids).subspan(begin, rows), static_cast<int64_t>(begin), trace);
  }
  streams.states(0, trace);
  return trace;
}

// The plain model without a group, as every other test knows it.
Trace without_group(const std::string& name, const Ids& ids, Setting setting) {
  const Loaded& model = loaded(name);
  device::Threads threads(setting.threads);
  forward::TextModel text(model.shape, model.weights, threads,
                          Capacity{.slots = 1,
                                   .pages = 65,
                                   .max_rows = 300,
                                   .max_logit_rows = 300,
                                   .page_rows = setting.page_rows,
                                   .cache_type = setting.cache_type});
  Step step = forward::single_stream_step(ids, 0, 64);
  step.logit_rows.resize(ids.size());
  std::iota(step.logit_rows.begin(), step.logit_rows.end(), 0);
  text.run(step);
  Trace trace{{text.logits().begin(), text.logits().end()}, {text.hidden().begin(), text.hidden().end()}, {}, {}};
  const model::Shape& s = model.shape;
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

std::vector<std::string> golden_cases(const std::string& model) {
  std::vector<std::string> names;
  for (const auto& file : std::filesystem::directory_iterator(forward::golden + model)) {
    const std::string stem = file.path().stem().string();
    if (stem.rfind("case_T", 0) == 0 && file.path().extension() == ".safetensors") names.push_back(stem);
  }
  std::sort(names.begin(), names.end());
  return names;
}

Ids ids_of(const std::string& model, const std::string& name) {
  Ids ids = forward::golden_ids(model, name);
  if (ids.size() > 300) ids.resize(300);
  return ids;
}

class Models : public ::testing::TestWithParam<const char*> {};

TEST_P(Models, GoldenCasesGiveTheBitsOfOneRank) {
  const std::vector<std::string> names = golden_cases(GetParam());
  ASSERT_GE(names.size(), 3u);
  for (const int32_t page_rows : {16, 256}) {
    const Setting setting{.page_rows = page_rows};
    Streams one(GetParam(), one_rank, setting), two(GetParam(), two_ranks, setting),
        shared(GetParam(), shared_pages, setting);
    for (const std::string& name : names) {
      const Ids ids = ids_of(GetParam(), name);
      const Trace expected = without_group(GetParam(), ids, setting);
      EXPECT_TRUE(same(in_chunks(one, ids, 300), expected)) << name;
      EXPECT_TRUE(same(in_chunks(two, ids, 300), expected)) << name << ", two ranks, pages of " << page_rows;
      EXPECT_TRUE(same(in_chunks(shared, ids, 300), expected)) << name << ", shared pages of " << page_rows;
    }
  }
}

TEST_P(Models, ChunksAndDecodingGiveTheBitsOfOneShot) {
  const std::string name = golden_cases(GetParam()).back();  // among the longer ones
  Ids ids = ids_of(GetParam(), name);
  if (std::string(GetParam()) == "nano") ids.resize(std::min<size_t>(ids.size(), 70));
  const Trace expected = without_group(GetParam(), ids, {});
  for (const GroupSize size : {two_ranks, shared_pages}) {
    Streams streams(GetParam(), size);
    for (const size_t chunk : {1u, 7u, 16u, 41u}) {
      EXPECT_TRUE(same(in_chunks(streams, ids, chunk), expected)) << name_of(size) << ", chunks of " << chunk;
    }
  }
}

TEST_P(Models, Bf16RowsGiveTheBitsOfOneRank) {
  Ids ids = ids_of(GetParam(), golden_cases(GetParam()).front());
  const Setting setting{.cache_type = forward::CacheType::bf16};
  const Trace expected = without_group(GetParam(), ids, setting);
  EXPECT_FALSE(same(expected, without_group(GetParam(), ids, {}))) << "the rows are rounded";
  for (const GroupSize size : {two_ranks, shared_pages}) {
    Streams streams(GetParam(), size, setting);
    EXPECT_TRUE(same(in_chunks(streams, ids, 300), expected)) << name_of(size);
    EXPECT_TRUE(same(in_chunks(streams, ids, 9), expected)) << name_of(size);
  }
}

TEST_P(Models, WorkerThreadsDoNotMatter) {
  const Ids ids = ids_of(GetParam(), golden_cases(GetParam()).front());
  const Trace expected = without_group(GetParam(), ids, {});
  for (const GroupSize size : {two_ranks, shared_pages}) {
    Streams streams(GetParam(), size, {.threads = 2});
    EXPECT_TRUE(same(in_chunks(streams, ids, 11), expected)) << name_of(size);
  }
}

INSTANTIATE_TEST_SUITE_P(All, Models, ::testing::Values("tinyA", "tinyB", "nano"));

TEST(RankGroup, TwoStreamsOfAStep) {
  const Ids a = ids_of("tinyA", "case_T67"), b = ids_of("tinyA", "case_T46");
  const Trace alone_a = without_group("tinyA", a, {}), alone_b = without_group("tinyA", b, {});
  for (const GroupSize size : {one_rank, two_ranks, shared_pages}) {
    Streams streams("tinyA", size);
    Trace first, second, states_a, states_b;
    Step step;
    streams.add(step, 1, std::span(a).first(40), 0);
    streams.add(step, 0, std::span(b).first(9), 0);
    streams.run(step, first, 49);
    step.clear();
    streams.add(step, 1, std::span(a).subspan(40), 40);
    streams.add(step, 0, std::span(b).subspan(9), 9);
    streams.run(step, second, a.size() - 40 + b.size() - 9);
    const auto vocab = static_cast<std::ptrdiff_t>(streams.shape().vocab_size);
    Rows expected(alone_a.logits.begin() + 40 * vocab, alone_a.logits.end());
    expected.insert(expected.end(), alone_b.logits.begin() + 9 * vocab, alone_b.logits.end());
    EXPECT_EQ(second.logits, expected) << name_of(size);
    streams.states(1, states_a);
    streams.states(0, states_b);
    EXPECT_EQ(states_a.state, alone_a.state) << name_of(size);
    EXPECT_EQ(states_b.state, alone_b.state) << name_of(size);
  }
}

// At every position a window of wrong drafts is run and dropped.
TEST(RankGroup, DroppedDraftsLeaveNoTrace) {
  const Ids ids = ids_of("tinyA", "case_T67");
  const Trace serial = without_group("tinyA", ids, {});
  for (const GroupSize size : {two_ranks, shared_pages}) {
    Streams streams("tinyA", size);
    for (const int32_t drafts : {3, 16}) {
      Trace trace;
      for (size_t p = 0; p < ids.size(); ++p) {
        Ids window{ids[p]};
        for (int32_t i = 0; i < drafts && p + 1 < ids.size(); ++i) window.push_back((ids[p] + 31 * i + 1) % 203);
        streams.run(0, window, static_cast<int64_t>(p), trace, static_cast<int32_t>(window.size()) - 1, 1);
      }
      streams.states(0, trace);
      EXPECT_TRUE(same(trace, serial)) << name_of(size) << ", " << drafts << " drafts";
    }
  }
}

// A kept state, restored into another slot: full pages shared, the partial one copied in its own pool.
TEST(RankGroup, KeptStatesAndPageCopies) {
  for (const char* model : {"tinyA", "tinyB"}) {
    const Ids ids = ids_of(model, model == std::string("tinyA") ? "case_T67" : "case_T69");
    const Trace whole = without_group(model, ids, {});
    for (const GroupSize size : {one_rank, two_ranks, shared_pages}) {
      Streams streams(model, size);
      for (const int64_t length : {5, 16, 23, 32, 40, 55}) {
        Trace first, second, states;
        streams.run(0, std::span(ids).first(static_cast<size_t>(length)), 0, first);
        Step step;
        streams.add(step, 1, std::span(ids).subspan(static_cast<size_t>(length)), length);
        step.keeps = {{0, 1, length}};
        step.restores = {{1, 1, length}};
        const std::vector<int32_t> from = streams.pages(0), to = streams.pages(1);
        const int64_t entry = length / streams.page_rows(), rest = length % streams.page_rows();
        std::copy_n(from.begin(), entry, step.page_tables.begin());
        if (rest > 0) {
          const auto at = static_cast<size_t>(entry);
          step.page_copies = {
              {from[at], to[at], static_cast<int32_t>(rest), static_cast<int32_t>(entry % streams.pools())}};
        }
        step.head_slots = {0};  // and the head row that slot 0 still holds
        const size_t rows = ids.size() - static_cast<size_t>(length);
        streams.run(step, second, rows + 1);
        streams.states(1, states);
        const auto vocab = static_cast<std::ptrdiff_t>(streams.shape().vocab_size);
        Rows expected(whole.logits.begin() + length * vocab, whole.logits.end());
        expected.insert(expected.end(), whole.logits.begin() + (length - 1) * vocab,
                        whole.logits.begin() + length * vocab);
        EXPECT_EQ(second.logits, expected) << name_of(size) << ", kept at " << length;
        EXPECT_EQ(states.state, whole.state) << name_of(size) << ", kept at " << length;
      }
    }
  }
}

TEST(RankGroup, MtpRows) {
  for (const char* model : {"tinyA", "nano"}) {
    const Ids ids = ids_of(model, model == std::string("tinyA") ? "case_T46" : "case_T40");
    const auto n = static_cast<int32_t>(ids.size()) - 1;
    Rows expected;
    for (const GroupSize size : {one_rank, two_ranks, shared_pages}) {
      Streams streams(model, size);
      Trace trace;
      streams.run(0, ids, 0, trace);
      Rows found;
      const auto width = static_cast<size_t>(streams.shape().hidden_size);
      for (int32_t begin = 0; begin < n; begin += 10) {
        const int32_t rows = std::min(10, n - begin);
        Step step;
        streams.add(step, 0, std::span(ids).subspan(static_cast<size_t>(begin) + 1, static_cast<size_t>(rows)), begin);
        streams.group().run_mtp(step, std::span(trace.hidden).subspan(static_cast<size_t>(begin) * width));
        found.insert(found.end(), streams.group().mtp_hidden().begin(), streams.group().mtp_hidden().end());
        found.insert(found.end(), streams.group().mtp_logits().begin(), streams.group().mtp_logits().end());
      }
      if (expected.empty()) expected = found;
      EXPECT_EQ(found, expected) << model << ", " << name_of(size);
    }
  }
}

TEST(RankGroup, InstructionSetsGiveTheSameBits) {
  const Ids ids = ids_of("tinyA", "case_T67");
  const ops::SimdLevel best = ops::kernels().level;
  const Trace expected = without_group("tinyA", ids, {});
  for (const ops::SimdLevel level :
       {ops::SimdLevel::scalar, ops::SimdLevel::neon, ops::SimdLevel::avx2, ops::SimdLevel::avx512}) {
    if (!ops::simd_level_available(level)) continue;
    ops::use_simd_level(level);
    for (const GroupSize size : {two_ranks, shared_pages}) {
      Streams streams("tinyA", size);
      EXPECT_TRUE(same(in_chunks(streams, ids, 13), expected)) << name_of(size) << ", " << static_cast<int>(level);
    }
  }
  ops::use_simd_level(best);
}

// What the ranks hold adds up to what one rank holds, and the pages are shared or not.
TEST(RankGroup, PlannedBytes) {
  const model::Shape& shape = loaded("tinyA").shape;
  const Capacity small{.pages = 20, .max_rows = 16}, large{.pages = 40, .max_rows = 16};
  const auto pages = [&](GroupSize size) {
    return RankGroup::planned_bytes(shape, size, large) - RankGroup::planned_bytes(shape, size, small);
  };
  EXPECT_EQ(RankGroup::planned_bytes(shape, one_rank, small), forward::TextModel::planned_bytes(shape, small));
  EXPECT_GE(pages(two_ranks), 2 * pages(one_rank)) << "every rank has every page";
  const Capacity kept{.pages = 20, .max_rows = 16, .kept_states = 1};
  const int64_t record =
      RankGroup::planned_bytes(shape, two_ranks, kept) - RankGroup::planned_bytes(shape, two_ranks, small);
  EXPECT_LT(record, 2 * forward::TextModel::kept_state_bytes(shape)) << "the heads of a record are shared";
  EXPECT_GT(record, forward::TextModel::kept_state_bytes(shape)) << "its rings and head row are not";
}

// Two exchanges a layer, one for the embedding, one for the head; nothing more without shared pages.
TEST(RankGroup, Exchanges) {
  const Ids ids = ids_of("tinyA", "case_T12");
  Streams one("tinyA", one_rank), two("tinyA", two_ranks);
  Trace trace;
  one.run(0, ids, 0, trace);
  EXPECT_EQ(one.group().exchanges(), 0);
  two.run(0, ids, 0, trace);
  EXPECT_EQ(two.group().exchanges(), 2 * 8 + 2);
  EXPECT_EQ(two.group().exchanged_bytes(), 4 * 12 * (17 * 96 + 102));
}

TEST(RankGroup, SizesThatThereAreNot) {
  const Loaded& model = loaded("tinyA");
  for (const GroupSize size : {GroupSize{3, 1}, {0, 1}, {1, 2}, {2, 3}, {-1, 1}}) {
    try {
      const RankGroup group(model.shape, model.weights, size, {}, 1);
      ADD_FAILURE() << name_of(size);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::usage) << error.what();
    }
  }
}

TEST(RankGroup, BytesThatAreNoStepBreakTheGroup) {
  Streams streams("tinyA", two_ranks);
  const std::vector<std::byte> bytes(20);
  EXPECT_THROW(streams.group().run(bytes), Error);
  Step step;
  streams.add(step, 0, Ids{1, 2, 3}, 0);
  try {
    streams.group().run(step);
    ADD_FAILURE() << "the group is broken";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::internal);
  }
}

// A probe that throws makes rank 0 fail in the middle of a layer; rank 1 waits for it at the next exchange.
class Thrower final : public forward::Probe {
 public:
  void streams(int64_t layer, int64_t, const float*) override {
    if (layer == 3) throw Error(ErrorCode::does_not_fit, "layer 3", "a fault");
  }
};

TEST(RankGroup, ARankThatFailsIsReportedAndNobodyHangs) {
  for (const GroupSize size : {one_rank, two_ranks, shared_pages}) {
    Streams streams("tinyA", size);
    Step step;
    streams.add(step, 0, Ids{1, 2, 3}, 0);
    streams.group().run(step);
    Thrower thrower;
    try {
      streams.group().run(step, &thrower);
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::does_not_fit) << "the first error, not the other rank's";
    }
    EXPECT_THROW(streams.group().run(step), Error) << "broken for good";
  }
}

}  // namespace
}  // namespace tandem::cluster
