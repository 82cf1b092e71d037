// Two ranks on one GPU, each with a queue of its own, give the bits of one rank: prompts, replies, rejected drafts,
// kept states, MTP chains. tests/gpu/mixes_gpu_test.cc has random mixes with the DFlash2 drafter, too.
#include <numeric>

#include "base/error.h"
#include "device/test_gpu.h"
#include "engine/step_runner.h"
#include "forward/dflash2_test_streams.h"
#include "forward/gpu_model.h"
#include "forward/test_models.h"

namespace tandem::engine::gpu_ranks_gpu_test {
namespace {

using forward::Step;
using forward::StepKind;
using Ids = std::vector<int32_t>;
using Rows = std::vector<float>;

constexpr int32_t stream_pages = 4;

forward::Capacity small_capacity(forward::CacheType type = forward::CacheType::bf16) {
  forward::Capacity capacity;
  capacity.slots = 2;
  capacity.pages = 1 + 2 * stream_pages;
  capacity.max_stream_pages = stream_pages;
  capacity.max_rows = 24;
  capacity.max_logit_rows = 24;
  capacity.kept_states = 1;
  capacity.page_rows = 16;
  capacity.cache_type = type;
  capacity.compute = forward::Compute::bf16;
  return capacity;
}

std::unique_ptr<StepRunner> model_on(int32_t ranks, const std::string& name, const forward::Capacity& capacity,
                                     RankExchange exchange = RankExchange::direct) {
  const std::array gpus{&device::gpu_under_test(), &device::second_gpu_under_test()};
  const forward::Loaded& model = forward::loaded(name);
  return run_on_gpus(gpus, model.shape, model.weights, capacity, {0, ranks, 1}, {}, {.graphs = false}, exchange);
}

Ids some_tokens(int64_t count, int64_t vocab) {
  Ids tokens(static_cast<size_t>(count));
  uint32_t state = 12345;
  for (int32_t& token : tokens)
    token = static_cast<int32_t>(((state = state * 1664525u + 1013904223u) >> 8) % static_cast<uint32_t>(vocab));
  return tokens;
}

// Adds rows of a slot, all logits wanted.
void add(Step& step, int32_t slot, std::span<const int32_t> tokens, int64_t position, int32_t uncertain = 0) {
  const auto first = static_cast<int32_t>(step.tokens.size()), rows = static_cast<int32_t>(tokens.size());
  step.segments.push_back(
      {slot, static_cast<int32_t>(step.page_tables.size()), stream_pages, first, rows, rows - uncertain, position, 0});
  for (int32_t page = 0; page < stream_pages; ++page) step.page_tables.push_back(1 + slot * stream_pages + page);
  for (int32_t i = 0; i < rows; ++i) {
    step.tokens.push_back(tokens[static_cast<size_t>(i)]);
    step.positions.push_back(position + i);
    step.logit_rows.push_back(first + i);
  }
}

void run(StepRunner& model, const Step& step, Rows& out) {
  model.run(step);
  out.insert(out.end(), model.logits().begin(), model.logits().end());
}
void run(StepRunner& model, int32_t slot, std::span<const int32_t> tokens, int64_t position, Rows& out,
         StepKind kind = StepKind::text, int32_t uncertain = 0) {
  Step step;
  step.kind = kind;
  add(step, slot, tokens, position, uncertain);
  run(model, step, out);
}

// All logits of a prompt in two chunks, two streams in one step, a window with rejected drafts, and a restored slot.
Rows text_of(StepRunner& model, const Ids& ids) {
  const std::span<const int32_t> all(ids);
  Rows out;
  run(model, 0, all.first(18), 0, out);
  Step both;
  add(both, 0, all.subspan(18, 3), 18);
  add(both, 1, all.subspan(2, 5), 0);
  run(model, both, out);
  run(model, 0, Ids{ids[21], 1, 2, 3}, 21, out, StepKind::text, 3);
  Step keep;
  keep.keeps = {{0, 0, 22}};
  keep.restores = {{1, 0, 22}};
  keep.head_slots = {1};
  run(model, keep, out);
  run(model, 0, all.subspan(22, 1), 22, out);
  return out;
}

TEST(GpuRanks, TwoGiveTheBitsOfOne) {
  for (const char* name : {"tinyA", "nano"}) {
    if (device::gpu_is_emulated() && std::string(name) == "nano") continue;  // below, with fewer rows
    const Ids ids = some_tokens(23, forward::loaded(name).shape.vocab_size);
    for (const auto type : {forward::CacheType::bf16, forward::CacheType::fp8}) {
      const Rows one = text_of(*model_on(1, name, small_capacity(type)), ids);
      const auto exchange = type == forward::CacheType::bf16 ? RankExchange::direct : RankExchange::staged;
      EXPECT_TRUE(text_of(*model_on(2, name, small_capacity(type), exchange), ids) == one)
          << name << ", " << model::name_of(type);
    }
  }
}

TEST(GpuRanks, TwoGiveTheBitsOfOneWithTheBundledModel) {
  const Ids ids = some_tokens(8, forward::loaded("nano").shape.vocab_size);
  std::vector<Rows> found;
  for (const int32_t ranks : {1, 2}) {
    const auto model = model_on(ranks, "nano", small_capacity());
    run(*model, 0, std::span(ids).first(6), 0, found.emplace_back());
    for (int64_t i = 6; i < 8; ++i) run(*model, 0, std::span(ids).subspan(static_cast<size_t>(i), 1), i, found.back());
  }
  EXPECT_TRUE(found[0] == found[1]);
}

TEST(GpuRanks, MtpChains) {
  const Ids ids = some_tokens(15, forward::loaded("tinyA").shape.vocab_size);
  std::vector<Rows> found;
  for (const int32_t ranks : {1, 2}) {
    const auto model = model_on(ranks, "tinyA", small_capacity());
    Rows& out = found.emplace_back();
    run(*model, 0, std::span(ids).first(14), 0, out);
    run(*model, 0, std::span(ids).subspan(1, 14), 0, out, StepKind::mtp_absorb);
    for (int64_t i = 0; i < 3; ++i)
      run(*model, 0, Ids{static_cast<int32_t>(7 * i + 3)}, 14 + i, out, StepKind::mtp_chain);
  }
  EXPECT_TRUE(found[0] == found[1]);
}

// Each rank has the whole drafter and half of the vocabulary.
TEST(GpuRanks, Dflash2Lattices) {
  const std::array gpus{&device::gpu_under_test(), &device::second_gpu_under_test()};
  const forward::Loaded& nano = forward::loaded("nano");
  const forward::DrafterModel drafter{&forward::nano_drafter().shape, &forward::nano_drafter().weights};
  const Ids ids = some_tokens(4, nano.shape.vocab_size);
  std::vector<forward::Lattice> found;
  for (const int32_t ranks : {1, 2}) {
    forward::Capacity capacity = small_capacity();
    capacity.slots = 1;
    const auto model = run_on_gpus(gpus, nano.shape, nano.weights, capacity, {0, ranks, 1}, drafter, {.graphs = false});
    Rows ignored;
    run(*model, 0, ids, 0, ignored);
    const forward::Anchor anchor{0, 11, 4};
    model->run(forward::block_step({&anchor, 1}));
    found.push_back(forward::lattice_of(model->lattices(), 0));
  }
  EXPECT_FALSE(found[0].ids.empty());
  EXPECT_EQ(found[0], found[1]);
}

TEST(GpuRanks, ARankThatFailsEndsTheRun) {
  const auto model = model_on(2, "tinyA", small_capacity());
  Rows out;
  EXPECT_THROW(run(*model, 0, Ids{5}, 7, out), Error) << "rows that continue nothing";
  try {
    run(*model, 0, Ids{5}, 0, out);
    FAIL() << "it ran again";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("failed in an earlier step"), std::string::npos) << e.what();
  }
}

TEST(GpuRanks, RefusesWhatThereIsNot) {
  const std::array gpus{&device::gpu_under_test(), &device::second_gpu_under_test()};
  const forward::Loaded& model = forward::loaded("tinyA");
  const auto make = [&](forward::Ranks ranks, size_t count) {
    return run_on_gpus(std::span(gpus).first(count), model.shape, model.weights, small_capacity(), ranks);
  };
  EXPECT_THROW(make({0, 2, 1}, 1), Error) << "a rank without a GPU";
  EXPECT_THROW(make({0, 2, 2}, 2), Error) << "pages that ranks share";
}

TEST(GpuRanks, DivideTheWeightsAndTheHeads) {
  const forward::Loaded& model = forward::loaded("tinyA");
  device::Gpu& gpu = device::gpu_under_test();
  const forward::Capacity capacity = small_capacity();
  const auto planned = [&](forward::Ranks ranks) {
    return forward::GpuModel::planned_bytes(gpu.properties(), model.shape, capacity, nullptr, ranks);
  };
  // Of three heads, two and one.
  EXPECT_LT(planned({0, 2, 1}), planned({}) + 4 * forward::GpuModel::exchange_bytes(model.shape, capacity, {0, 2, 1}));
  EXPECT_LT(planned({1, 2, 1}), planned({0, 2, 1}));
  const auto weights = [&](forward::Ranks ranks) {
    return forward::GpuModel::weight_bytes(model.shape, model.weights, true, ranks);
  };
  EXPECT_LT(weights({0, 2, 1}), weights({}));
  EXPECT_GT(weights({0, 2, 1}) + weights({1, 2, 1}), weights({})) << "some are on both";
}

}  // namespace
}  // namespace tandem::engine::gpu_ranks_gpu_test
