// The drafter against its golden vectors: from the given taps, and with taps recomputed by the text model.
#include "forward/dflash2.h"

#include <cmath>
#include <cstring>

#include "forward/dflash2_test_streams.h"
#include "forward/probe.h"
#include "ops/embed/embed.h"
#include "ops/linear/linear.h"
#include "ops/simd/kernels.h"

namespace tandem::forward::dflash2_test {
namespace {

struct Case {
  std::vector<int32_t> ids, candidates, path;
  std::vector<float> taps, context_last4, hidden, unary;
  std::span<const int32_t> past() const { return std::span(ids).first(ids.size() - 1); }
  int64_t length() const { return std::ssize(ids) - 1; }
};

template <typename T>
std::vector<T> values(const model::Checkpoint& file, const char* name) {
  const model::Tensor& tensor = file.at(name);
  std::vector<T> out(static_cast<size_t>(tensor.elements()));
  if constexpr (std::is_same_v<T, float>) {
    if (tensor.dtype == model::DType::bf16) {
      ops::kernels().decode_bf16(tensor.data.data(), tensor.elements(), out.data());
      return out;
    }
  }
  EXPECT_EQ(out.size() * sizeof(T), tensor.data.size());
  std::memcpy(out.data(), tensor.data.data(), tensor.data.size());
  return out;
}

Case golden_case(int number) {
  const auto file = model::Checkpoint::open(golden + "nano-dflash2/case" + std::to_string(number) + ".safetensors");
  return {values<int32_t>(file, "ids"), values<int32_t>(file, "cand"),        values<int32_t>(file, "path"),
          values<float>(file, "taps"),  values<float>(file, "context_last4"), values<float>(file, "hidden"),
          values<float>(file, "unary")};
}

// max|a − b| / max|b|.
double difference(std::span<const float> a, std::span<const float> b) {
  EXPECT_EQ(a.size(), b.size());
  double worst = 0, largest = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    worst = std::max(worst, std::abs(static_cast<double>(a[i]) - b[i]));
    largest = std::max(largest, std::abs(static_cast<double>(b[i])));
  }
  return worst / largest;
}

// The drafter alone, driven by hand: taps put in, the target's embedding and head around the block.
class Alone {
 public:
  explicit Alone(const Case& c)
      : drafter_({&nano_drafter().shape, &nano_drafter().weights}, target_.shape, {.max_rows = 512}, threads_) {
    drafter_.begin_text(single_stream_step(c.past(), 0, 16));
    EXPECT_EQ(drafter_.taps().size(), c.taps.size());
    std::copy(c.taps.begin(), c.taps.end(), drafter_.taps().begin());
    drafter_.store_context();
    context_.assign(drafter_.context().begin(), drafter_.context().end());
    const Anchor anchor{0, c.ids.back(), c.length()};
    const Step step = block_step({&anchor, 1});
    ops::embed(target_.weights.embed_tokens, step.tokens, 1, drafter_.block_input(), drafter_.block_stride());
    ops::embed(target_.weights.embed_tokens, {&drafter_.shape().mask_token_id, 1}, 1, drafter_.mask_input(), 0);
    drafter_.run_blocks(step);
    const auto rows = static_cast<size_t>(drafter_.draft_rows());
    hidden_.assign(drafter_.draft_hidden(), drafter_.draft_hidden() + rows * 256);
    std::vector<float> logits(rows * 2048);
    ops::linear(threads_, target_.weights.lm_head, hidden_.data(), logits.data(), drafter_.draft_rows());
    drafter_.candidates(0, 3, logits.data());  // in pieces, as the model gives them
    drafter_.candidates(3, drafter_.draft_rows() - 3, logits.data() + 3 * 2048);
    drafter_.finish(step);
    lattice_ = lattice_of(drafter_.lattices(), 0);
  }
  std::span<const float> context_last4() const { return std::span(context_).last(4 * 256); }

  const Loaded& target_ = loaded("nano");
  device::Threads threads_{2};
  Dflash2 drafter_;
  std::vector<float> context_, hidden_;
  Lattice lattice_;
};

class Golden : public ::testing::TestWithParam<int> {};

TEST_P(Golden, FromTheGivenTaps) {
  const Case c = golden_case(GetParam());
  const Alone alone(c);
  EXPECT_LT(difference(alone.context_last4(), c.context_last4), 1e-5);
  EXPECT_LT(difference(alone.hidden_, std::span(c.hidden).subspan(256)), 1e-5);  // row 0 proposes nothing
  EXPECT_EQ(alone.lattice_.ids, c.candidates);
  EXPECT_LT(difference(alone.lattice_.unary, c.unary), 1e-5);
  EXPECT_EQ(path_of(alone.lattice_, 7, 16), c.path);
}

// Hands the streams of a step to a drafter.
class TapProbe : public Probe {
 public:
  explicit TapProbe(Dflash2& drafter) : drafter_(drafter) {}
  void streams(int64_t layer, int64_t, const float* values) override { drafter_.tap(layer, 4, values); }

 private:
  Dflash2& drafter_;
};

// Streams → taps. Where fp32 sums in another order lie on the other side of a rounding border, a tap is the next bf16.
TEST_P(Golden, Taps) {
  const Case c = golden_case(GetParam());
  const Loaded& target = loaded("nano");
  device::Threads threads(2);
  Dflash2 drafter({&nano_drafter().shape, &nano_drafter().weights}, target.shape, {.max_rows = 512}, threads);
  TextModel text(target.shape, target.weights, threads, {.pages = 9, .max_rows = 512});
  const Step step = single_stream_step(c.past(), 0, 2);
  TapProbe probe(drafter);
  drafter.begin_text(step);
  text.run(step, &probe);
  const std::span<const float> taps = drafter.taps();
  ASSERT_EQ(taps.size(), c.taps.size());
  int64_t differ = 0;
  for (size_t i = 0; i < taps.size(); ++i) {
    if (taps[i] == c.taps[i]) continue;
    ++differ;
    EXPECT_LE(std::abs(taps[i] - c.taps[i]), std::abs(c.taps[i]) * 0x1p-7f + 1e-6f) << i;
  }
  EXPECT_LT(differ * 500, std::ssize(taps));
}

TEST_P(Golden, WithTheTextModelsOwnTaps) {
  const Case c = golden_case(GetParam());
  DraftedNano nano;
  nano.feed(c.past(), 50);
  const Lattice lattice = nano.block({0, c.ids.back(), c.length()});
  EXPECT_LT(difference(lattice.unary, c.unary), 1e-4);
  EXPECT_EQ(lattice.ids, c.candidates);
  EXPECT_EQ(path_of(lattice, 7, 16), c.path);
}

INSTANTIATE_TEST_SUITE_P(Cases, Golden, ::testing::Values(1, 2, 3));

}  // namespace
}  // namespace tandem::forward::dflash2_test
