// One rank, two ranks, and two ranks that share the pages give equal bits: logits, hidden rows, KDA states (design.md
// 1, "two leaves").
#include <filesystem>

#include "cluster/test_streams.h"
#include "model/split.h"
#include "ops/simd/kernels.h"

namespace tandem::cluster::rank_equality_test {
namespace {

std::vector<std::string> golden_cases(const std::string& model) {
  std::vector<std::string> names;
  for (const auto& file : std::filesystem::directory_iterator(forward::golden + model)) {
    const std::string stem = file.path().stem().string();
    if (stem.rfind("case_T", 0) == 0 && file.path().extension() == ".safetensors") names.push_back(stem);
  }
  std::sort(names.begin(), names.end());
  return names;
}

// A model of one head, one block of dense width, no shared expert and three experts, made from parts of tinyA: rank 1
// has an expert and nothing else.
struct OneHead {
  model::Shape shape = model::shape_of_rank(loaded("tinyA").shape, 1, 2);
  model::TextWeights weights = model::split(loaded("tinyA").weights, loaded("tinyA").shape, 1, 2);

  OneHead() {
    shape.vocab_size = weights.lm_head.out_features;
    shape.n_routed_experts = 3;
    shape.n_shared_experts = 0;
    shape.num_nextn_predict_layers = 0;
    weights.mtp.reset();
    for (model::LayerWeights& layer : weights.layers) {
      if (!layer.moe) continue;
      layer.moe->gate = ops::rows_of(layer.moe->gate, 0, 3);
      layer.moe->e_score_correction_bias.resize(3);
    }
    shape.num_experts_per_tok = 1;  // rows without a leaf 0 and rows without a leaf 1
  }
};

class Models : public ::testing::TestWithParam<const char*> {};

TEST_P(Models, GoldenCasesGiveTheBitsOfOneRank) {
  const std::vector<std::string> names = golden_cases(GetParam());
  ASSERT_GE(names.size(), 3u);
  const bool is_nano = std::string(GetParam()) == "nano";
  for (const int32_t page_rows : is_nano ? std::vector<int32_t>{32} : std::vector<int32_t>{16, 256}) {
    const Setting setting{.page_rows = page_rows};
    Streams one(GetParam(), one_rank, setting), two(GetParam(), two_ranks, setting),
        shared(GetParam(), shared_pages, setting);
    for (const std::string& name : names) {
      const Ids ids = forward::golden_ids(GetParam(), name);
      const Trace expected = without_group(GetParam(), ids, setting);
      if (!is_nano) {
        EXPECT_TRUE(same(in_chunks(one, ids, 300), expected)) << name;
      }
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

// Leaf sums are exchanged in fp32 and rounded once, after their addition.
TEST_P(Models, Bf16ComputeGivesTheBitsOfOneRank) {
  Ids ids = ids_of(GetParam(), golden_cases(GetParam()).front());
  const Setting setting{.cache_type = forward::CacheType::bf16, .compute = forward::Compute::bf16};
  const Trace expected = without_group(GetParam(), ids, setting);
  EXPECT_FALSE(same(expected, without_group(GetParam(), ids, {.cache_type = forward::CacheType::bf16})));
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

TEST(RankEquality, ARankWithoutHeads) {
  const OneHead model;
  ASSERT_EQ(model.shape.kda_num_heads, 1);
  ASSERT_EQ(model.shape.num_attention_heads, 1);
  Ids ids = ids_of("tinyA", "case_T130");
  for (int32_t& id : ids) id %= static_cast<int32_t>(model.shape.vocab_size);
  const Trace expected = without_group(model.shape, model.weights, ids, {});
  for (const GroupSize size : {one_rank, two_ranks, shared_pages}) {
    Streams streams(model.shape, model.weights, size);
    EXPECT_TRUE(same(in_chunks(streams, ids, 300), expected)) << name_of(size);
    EXPECT_TRUE(same(in_chunks(streams, ids, 6), expected)) << name_of(size);
  }
}

TEST(RankEquality, TwoStreamsOfAStep) {
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
TEST(RankEquality, DroppedDraftsLeaveNoTrace) {
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
TEST(RankEquality, KeptStatesAndPageCopies) {
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
        if (rest > 0) {  // to a page that is in use in the other pool
          const auto pool = static_cast<int32_t>(entry % streams.pools());
          const int32_t copy = to[static_cast<size_t>(pool)];
          step.page_tables[static_cast<size_t>(entry)] = copy;
          step.page_copies = {{from[static_cast<size_t>(entry)], copy, static_cast<int32_t>(rest), pool}};
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

TEST(RankEquality, MtpRows) {
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

TEST(RankEquality, InstructionSetsGiveTheSameBits) {
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

}  // namespace
}  // namespace tandem::cluster::rank_equality_test
