// The check at the start of a model that chooses tokens in its steps.
#include "engine/sampling_check.h"

#include "base/error.h"
#include "engine/sample_on_host.h"
#include "engine/testing.h"

namespace tandem::engine::sampling_check_test {
namespace {

forward::Capacity capacity_of(int32_t rows, int32_t logit_rows) {
  forward::Capacity capacity = options_for({}).capacity;
  capacity.max_rows = rows;
  capacity.max_logit_rows = logit_rows;
  return capacity;
}

// Tells another token, or a fault, for one sample of a step.
class Wrong : public StepRunner {
 public:
  Wrong(StepRunner& runner, int64_t sample, int32_t status) : runner_(runner), sample_(sample), status_(status) {}
  void run(const forward::Step& step) override {
    runner_.run(step);
    sampled_.assign(runner_.sampled().begin(), runner_.sampled().end());
    for (ops::Sampled& one : sampled_) {
      if (seen_++ != sample_) continue;
      one.status = status_;
      one.token = (one.token + 1) % FakeModel::vocabulary;
    }
  }
  std::span<const float> logits() const override { return runner_.logits(); }
  std::span<const ops::Sampled> sampled() const override { return sampled_; }

 private:
  StepRunner& runner_;
  int64_t sample_, seen_ = 0;
  int32_t status_;
  std::vector<ops::Sampled> sampled_;
};

TEST(SamplingCheck, AgreesWithTheHost) {
  for (const int32_t rows : {1, 3, 8, 64}) {
    const forward::Capacity capacity = capacity_of(64, rows);
    FakeModel model;
    SampleOnHost runner(model, FakeModel::vocabulary, capacity.max_logit_rows);
    EXPECT_EQ(check_sampling(runner, capacity, FakeModel::vocabulary, 60), 8 * std::min(rows, 8));
  }
}

TEST(SamplingCheck, NamesTheRowThatDiffers) {
  const forward::Capacity capacity = capacity_of(64, 8);
  for (const int64_t sample : {0, 13, 63}) {
    FakeModel model;
    SampleOnHost host(model, FakeModel::vocabulary, capacity.max_logit_rows);
    Wrong runner(host, sample, sample == 13 ? ops::sample_not_finite : ops::sample_chosen);
    try {
      check_sampling(runner, capacity, FakeModel::vocabulary, FakeModel::vocabulary);
      FAIL() << sample;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::failed_check);
      EXPECT_NE(e.where().find("row " + std::to_string(sample % 8) + " (temperature"), std::string::npos) << e.where();
      EXPECT_NE(e.expected().find("which the host chooses"), std::string::npos) << e.expected();
    }
  }
}

// Steps that no scheduler makes, as a damaged recording might hold them.
TEST(SampleOnHost, RefusesSamplesThatCannotBe) {
  FakeModel model;
  SampleOnHost runner(model, FakeModel::vocabulary, 4);
  const auto refused = [&](const std::function<void(forward::Step&)>& spoil) {
    forward::Step step = forward::single_stream_step(std::vector<int32_t>{1, 2, 3}, 0, 1);
    step.logit_rows = {1, 2};
    step.masked_tokens = {5, 6};
    step.samples = {{.row = 0, .size = 64, .first_masked = 1, .masked = 1}, {.row = 1, .size = 64}};
    runner.run(step);
    EXPECT_EQ(runner.sampled().size(), 2u);
    spoil(step);
    EXPECT_THROW(runner.run(step), Error);
  };
  refused([](forward::Step& s) { s.samples[1].row = 0; });
  refused([](forward::Step& s) { s.samples[1].row = 2; });
  refused([](forward::Step& s) { s.samples[0].row = -1; });
  refused([](forward::Step& s) { s.samples[0].size = 0; });
  refused([](forward::Step& s) { s.samples[0].size = 65; });
  refused([](forward::Step& s) { s.samples[0].first_masked = 2; });
  refused([](forward::Step& s) { s.samples[0].first_masked = -1; });
  refused([](forward::Step& s) { s.samples[0].masked = 33; });
  refused([](forward::Step& s) { s.masked_tokens.resize(4 * forward::RowSample::most_masked + 1); });
  refused([](forward::Step& s) { s.samples[0].top_k = -1; });
  refused([](forward::Step& s) { s.samples[0].top_p = 0; });
  refused([](forward::Step& s) { s.samples[0].min_p = 2; });
  refused([](forward::Step& s) { s.samples[0].temperature = std::numeric_limits<double>::quiet_NaN(); });
}

}  // namespace
}  // namespace tandem::engine::sampling_check_test
