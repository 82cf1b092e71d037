// The model on a GPU: against the CPU's, and that a row's bits do not depend on how it was run.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "device/test_gpu.h"
#include "device/threads.h"
#include "forward/gpu_model.h"
#include "forward/test_models.h"

namespace tandem::forward::gpu_model_gpu_test {
namespace {

constexpr int32_t pages_of_stream = 4;

std::vector<int32_t> some_tokens(int64_t count, int32_t seed = 1) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  uint32_t state = static_cast<uint32_t>(seed) * 2654435761u;
  for (int32_t& token : tokens) token = static_cast<int32_t>((state = state * 1664525u + 1013904223u) >> 8) % 1900;
  return tokens;
}

Capacity capacity_for(CacheType type, int32_t slots = 1) {
  Capacity capacity;
  capacity.slots = slots;
  capacity.pages = 1 + slots * pages_of_stream;
  capacity.max_stream_pages = pages_of_stream;
  capacity.max_rows = 128;
  capacity.max_logit_rows = 16;
  capacity.kept_states = 2;
  capacity.page_rows = 64;
  capacity.cache_type = type;
  return capacity;
}

// Rows of one stream in `slot`, all logits of the last `wanted` rows.
Step rows_of(std::span<const int32_t> tokens, int64_t position, int32_t slot = 0, int64_t wanted = 1,
             int32_t uncertain = 0) {
  Step step;
  step.tokens.assign(tokens.begin(), tokens.end());
  for (int64_t i = 0; i < std::ssize(tokens); ++i) step.positions.push_back(position + i);
  for (int32_t page = 0; page < pages_of_stream; ++page) step.page_tables.push_back(1 + slot * pages_of_stream + page);
  const auto rows = static_cast<int32_t>(tokens.size());
  step.segments.push_back({slot, 0, pages_of_stream, 0, rows, rows - uncertain, position, 0});
  for (int64_t i = std::ssize(tokens) - wanted; i < std::ssize(tokens); ++i)
    step.logit_rows.push_back(static_cast<int32_t>(i));
  return step;
}

std::vector<float> logits_of(StepRunner& model, const Step& step) {
  model.run(step);
  return {model.logits().begin(), model.logits().end()};
}

double relative_distance(std::span<const float> a, std::span<const float> b) {
  EXPECT_EQ(a.size(), b.size());
  double difference = 0, size = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(static_cast<double>(a[i]) - b[i], 2);
    size += std::pow(static_cast<double>(b[i]), 2);
  }
  return std::sqrt(difference / size);
}

class NanoOnGpu : public ::testing::TestWithParam<CacheType> {
 protected:
  const Loaded& nano_ = loaded("nano");
};

// 90 rows cross pages, blocks and, from row 64 · 4 / 4 on … every selection is of everything at this length.
TEST_P(NanoOnGpu, PromptAndRepliesAsOnTheCpu) {
  const Capacity capacity = capacity_for(GetParam());
  GpuModel gpu(device::gpu_under_test(), nano_.shape, nano_.weights, capacity);
  device::Threads threads(1);
  TextModel cpu(nano_.shape, nano_.weights, threads, capacity);
  const std::vector<int32_t> tokens = some_tokens(48);
  const Step prompt = rows_of(std::span(tokens).first(45), 0, 0, 16);
  cpu.run(prompt);
  EXPECT_LT(relative_distance(logits_of(gpu, prompt), cpu.logits()), 0.03);
  for (int64_t i = 45; i < std::ssize(tokens); ++i) {
    const Step one = rows_of(std::span(tokens).subspan(static_cast<size_t>(i), 1), i);
    cpu.run(one);
    EXPECT_LT(relative_distance(logits_of(gpu, one), cpu.logits()), 0.03) << i;
  }
  EXPECT_GT(gpu.graph_steps(), 0);
}

// The same rows in one chunk, in pieces, one by one, by launches, as rejected and repeated drafts.
TEST_P(NanoOnGpu, OneArithmeticARow) {
  const Capacity capacity = capacity_for(GetParam(), 2);
  device::Gpu& device = device::gpu_under_test();
  GpuModel graphs(device, nano_.shape, nano_.weights, capacity);
  GpuModel launches(device, nano_.shape, nano_.weights, capacity, {}, {.graphs = false});
  const std::vector<int32_t> tokens = some_tokens(37);
  const std::span<const int32_t> all(tokens);
  const std::vector<float> whole = logits_of(launches, rows_of(all, 0));
  launches.run(rows_of(all.first(7), 0, 1));
  launches.run(rows_of(all.subspan(7, 16), 7, 1));
  EXPECT_EQ(logits_of(launches, rows_of(all.subspan(23), 23, 1)), whole) << "pieces";
  graphs.run(rows_of(all.first(30), 0));
  const std::vector<int32_t> wrong = some_tokens(5, 9);
  graphs.run(rows_of(std::vector<int32_t>{tokens[30], wrong[0], wrong[1], wrong[2]}, 30, 0, 4, 3));
  for (int64_t i = 31; i < 36; ++i) graphs.run(rows_of(all.subspan(static_cast<size_t>(i), 1), i));
  EXPECT_EQ(logits_of(graphs, rows_of(all.subspan(36), 36)), whole) << "drafts, then row by row";
}

TEST_P(NanoOnGpu, KeptStatesGoOnAsTheStreamDoes) {
  const Capacity capacity = capacity_for(GetParam(), 2);
  GpuModel model(device::gpu_under_test(), nano_.shape, nano_.weights, capacity);
  const std::vector<int32_t> tokens = some_tokens(40);
  const std::span<const int32_t> all(tokens);
  model.run(rows_of(all.first(35), 0));
  Step keep;
  keep.keeps.push_back({0, 1, 35});
  model.run(keep);
  const std::vector<float> cold = logits_of(model, rows_of(all.subspan(35), 35));
  model.run(rows_of(some_tokens(20, 5), 0, 1));
  Step restore;
  restore.restores.push_back({1, 1, 35});
  restore.head_slots.push_back(1);
  model.run(restore);
  Step resumed = rows_of(all.subspan(35), 35, 1);
  for (int32_t& page : resumed.page_tables) page -= pages_of_stream;  // the first stream's pages
  EXPECT_EQ(logits_of(model, resumed), cold);
}

INSTANTIATE_TEST_SUITE_P(Caches, NanoOnGpu, ::testing::Values(CacheType::bf16, CacheType::fp8),
                         [](const auto& one) { return std::string(model::name_of(one.param)); });

TEST(GpuModel, RefusesFp32Caches) {
  const Loaded& nano = loaded("nano");
  EXPECT_THROW(GpuModel(device::gpu_under_test(), nano.shape, nano.weights, capacity_for(CacheType::f32)), Error);
}

}  // namespace
}  // namespace tandem::forward::gpu_model_gpu_test
