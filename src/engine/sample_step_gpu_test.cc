// Tokens chosen inside a step on a GPU: the host's, from the same rows, and whole logits for the rows beside them.
#include <array>
#include <numeric>

#include "base/error.h"
#include "device/test_gpu.h"
#include "engine/sampler.h"
#include "engine/sampling_check.h"
#include "engine/step_runner.h"
#include "forward/test_models.h"

namespace tandem::engine::sample_step_gpu_test {
namespace {

using forward::RowSample;
using forward::Step;
using forward::StepKind;
using Ids = std::vector<int32_t>;
using Rows = std::vector<float>;

constexpr int32_t rows_of_step = 12;

class SampleInStep : public ::testing::TestWithParam<bool> {
 protected:
  SampleInStep() {
    capacity_.slots = 2;
    capacity_.pages = 9;
    capacity_.max_stream_pages = 4;
    capacity_.max_rows = 24;
    capacity_.max_logit_rows = 16;
    capacity_.page_rows = 16;
    capacity_.cache_type = forward::CacheType::bf16;
    capacity_.compute = forward::Compute::bf16;
  }
  std::unique_ptr<forward::GpuModel> make_model() const {
    return std::make_unique<forward::GpuModel>(device::gpu_under_test(), tiny_.shape, tiny_.weights, capacity_,
                                               forward::DrafterModel{}, forward::GpuModelOptions{.graphs = GetParam()});
  }
  int64_t vocab() const { return tiny_.shape.vocab_size; }
  Ids some_tokens() const {
    Ids tokens(rows_of_step);
    for (int32_t i = 0; i < rows_of_step; ++i)
      tokens[static_cast<size_t>(i)] = static_cast<int32_t>((i * 7919 + 3) % vocab());
    return tokens;
  }
  // All rows wanted.
  Step step_of(StepKind kind = StepKind::text) const {
    Step step = forward::single_stream_step(some_tokens(), 0, 2);
    step.kind = kind;
    step.logit_rows.resize(rows_of_step);
    std::iota(step.logit_rows.begin(), step.logit_rows.end(), 0);
    return step;
  }
  static RowSample sample_of(int32_t row, int64_t vocab) {
    const std::array<RowSample, 5> kinds = {{{.temperature = 0},
                                             {.temperature = 1},
                                             {.temperature = 0.7, .top_k = 5},
                                             {.temperature = 1.5, .top_p = 0.8},
                                             {.temperature = 1, .min_p = 0.1}}};
    RowSample sample = kinds[static_cast<size_t>(row) % kinds.size()];
    sample.row = row;
    sample.seed = 77;
    sample.position = 1000 + row;
    sample.size = static_cast<int32_t>(vocab) - row % 3;
    sample.wants_probability = 1;
    return sample;
  }
  // What `found` must be, whole being the step's logits without samples.
  void expect(const Step& step, const Rows& whole, std::span<const float> logits,
              std::span<const ops::Sampled> found) const {
    Sampler sampler(static_cast<int32_t>(vocab()));
    const auto width = static_cast<size_t>(vocab());
    ASSERT_EQ(found.size(), step.samples.size());
    Rows rest;
    size_t next = 0;
    for (size_t row = 0; row < whole.size() / width; ++row) {
      const auto of_row = std::span(whole).subspan(row * width, width);
      if (next == step.samples.size() || step.samples[next].row != static_cast<int32_t>(row)) {
        rest.insert(rest.end(), of_row.begin(), of_row.end());
        continue;
      }
      const RowSample& s = step.samples[next];
      const auto masked =
          std::span(step.masked_tokens).subspan(static_cast<size_t>(s.first_masked), static_cast<size_t>(s.masked));
      const Picked picked = sampler.pick(
          of_row, {.temperature = s.temperature, .top_k = s.top_k, .top_p = s.top_p, .min_p = s.min_p, .seed = s.seed},
          s.position, {s.size, masked});
      EXPECT_EQ(found[next].status, ops::sample_chosen);
      EXPECT_EQ(found[next].token, picked.token) << "row " << row;
      if (s.masked == 0) {
        EXPECT_NEAR(found[next].probability, picked.probability, 1e-5) << "row " << row;
      }
      ++next;
    }
    EXPECT_TRUE(Rows(logits.begin(), logits.end()) == rest) << "logits of the rows without a sample";
  }

  const forward::Loaded& tiny_ = forward::loaded("tinyA");
  forward::Capacity capacity_;
};

TEST_P(SampleInStep, SomeRowsOrAll) {
  const auto model = make_model();
  Step step = step_of();
  model->run(step);
  const Rows whole(model->logits().begin(), model->logits().end());
  EXPECT_TRUE(model->sampled().empty());
  int64_t bytes = model->counts().result_bytes;
  EXPECT_EQ(bytes, rows_of_step * vocab() * 4);
  for (const int32_t every : {1, 2, 5}) {
    step.samples.clear();
    step.masked_tokens = {
        1, static_cast<int32_t>(std::max_element(whole.begin(), whole.begin() + vocab()) - whole.begin()), 0};
    for (int32_t row = every - 1; row < rows_of_step; row += every) step.samples.push_back(sample_of(row, vocab()));
    step.samples[0].first_masked = 1;  // row 0's best token among them, where it is sampled
    step.samples[0].masked = 2;
    model->run(step);
    expect(step, whole, model->logits(), model->sampled());
    const auto samples = std::ssize(step.samples);
    EXPECT_EQ(model->counts().result_bytes - bytes, (rows_of_step - samples) * vocab() * 4 + samples * 16);
    bytes = model->counts().result_bytes;
  }
  step.samples.clear();
  step.masked_tokens.clear();
  model->run(step);
  EXPECT_TRUE(Rows(model->logits().begin(), model->logits().end()) == whole);
  EXPECT_TRUE(model->sampled().empty());
  EXPECT_EQ(model->graph_steps() > 0, GetParam());
}

TEST_P(SampleInStep, NothingIsAllocatedAfterReady) {
  const auto model = make_model();
  const forward::RunnerCounts before = model->counts();
  Step step = step_of();
  for (int32_t row = 0; row < rows_of_step; row += 3) step.samples.push_back(sample_of(row, vocab()));
  model->run(step);
  EXPECT_EQ(model->counts().allocations, before.allocations);
  EXPECT_EQ(model->counts().kernels_loaded, before.kernels_loaded);
}

// The head row of a slot, and rows of the MTP layer.
TEST_P(SampleInStep, HeadSlotsAndMtpRows) {
  const auto model = make_model();
  const auto both = [&](const Step& plain, std::vector<RowSample> samples) {
    model->run(plain);
    const Rows whole(model->logits().begin(), model->logits().end());
    Step sampled = plain;
    sampled.samples = std::move(samples);
    model->run(sampled);
    expect(sampled, whole, model->logits(), model->sampled());
  };
  Step text = step_of();
  model->run(text);
  Step head;
  head.head_slots = {0};
  both(head, {sample_of(0, vocab())});
  const Ids ids = some_tokens();
  Step absorb = forward::single_stream_step(std::span(ids).subspan(1), 0, 2);
  absorb.kind = StepKind::mtp_absorb;
  absorb.logit_rows = {8, 10};
  both(absorb, {sample_of(1, vocab())});
  Step other;  // another stream with rows beside the head row
  other = forward::single_stream_step(std::span(ids).first(3), 0, 2);
  other.segments[0].slot = 1;
  other.page_tables = {5, 6};
  other.logit_rows = {0, 2};
  other.head_slots = {0};
  both(other, {sample_of(1, vocab()), sample_of(2, vocab())});
}

TEST_P(SampleInStep, RefusesWhatCannotBe) {
  const auto model = make_model();
  Step step = step_of();
  step.samples = {sample_of(rows_of_step, vocab())};
  EXPECT_THROW(model->run(step), Error) << "a row that is not wanted";
  Step none = step_of();
  none.logit_rows.clear();
  none.samples = {sample_of(0, vocab())};
  EXPECT_THROW(model->run(none), Error);
}

INSTANTIATE_TEST_SUITE_P(Launches, SampleInStep, ::testing::Bool(),
                         [](const auto& one) { return std::string(one.param ? "graphs" : "launched"); });

TEST(SampleInStepOnRanks, AgreesWithTheHost) {
  const std::array gpus{&device::gpu_under_test(), &device::second_gpu_under_test()};
  const forward::Loaded& model = forward::loaded("tinyA");
  forward::Capacity capacity;
  capacity.pages = 3;
  capacity.max_rows = 16;
  capacity.max_logit_rows = 16;
  capacity.cache_type = forward::CacheType::bf16;
  capacity.compute = forward::Compute::bf16;
  for (const int32_t ranks : {1, 2}) {
    const auto runner =
        run_on_gpus(gpus, model.shape, model.weights, capacity, {0, ranks, 1}, {}, {.graphs = ranks == 1});
    EXPECT_EQ(check_sampling(*runner, capacity, static_cast<int32_t>(model.shape.vocab_size),
                             static_cast<int32_t>(model.shape.vocab_size) - 1),
              64);
  }
}

}  // namespace
}  // namespace tandem::engine::sample_step_gpu_test
