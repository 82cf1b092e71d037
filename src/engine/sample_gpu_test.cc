// The GPU's sampler (ops/sample) against the host's: the same token for every row, whatever is asked of it.
#include <algorithm>
#include <cstddef>
#include <limits>
#include <random>

#include "device/kernel_dimensions.h"
#include "device/test_gpu.h"
#include "engine/sampler.h"
#include "ops/sample/sample_cuda.h"

namespace tandem::engine::sample_gpu_test {
namespace {

using device::from_gpu;
using device::on_gpu;

constexpr float infinity = std::numeric_limits<float>::infinity();

struct Question {
  int64_t row = 0;  // of the logits
  SamplingParams params;
  int64_t position = 0;
  int32_t size = 0;
  std::vector<int32_t> masked = {};
};

// One question more than there are: its answer stays as it was.
std::vector<ops::Sampled> ask_gpu(const std::vector<float>& logits, int64_t vocab, const std::vector<Question>& all) {
  const ops::CudaSample sample(device::gpu_under_test(), device::model_defines({}));
  std::vector<ops::SampleRow> rows;
  std::vector<int32_t> masked = {0};
  for (const Question& q : all) {
    ops::SampleRow row{};
    row.temperature = q.params.temperature;
    row.top_p = q.params.top_p;
    row.min_p = q.params.min_p;
    row.seed = q.params.seed;
    row.position = q.position;
    row.logits = static_cast<int32_t>(q.row);
    row.top_k = q.params.top_k;
    row.size = q.size;
    row.first_masked = static_cast<int32_t>(masked.size());
    row.masked = static_cast<int32_t>(q.masked.size());
    row.wants_probability = q.masked.empty() ? 1 : 0;
    masked.insert(masked.end(), q.masked.begin(), q.masked.end());
    rows.push_back(row);
  }
  rows.emplace_back();
  const auto gpu_logits = on_gpu(logits);
  const auto params = on_gpu(rows);
  const auto ids = on_gpu(masked), count = on_gpu(std::vector<int32_t>{static_cast<int32_t>(all.size())});
  const auto out = on_gpu(std::vector<ops::Sampled>(rows.size(), {-7, -7, -7}));
  const auto max_rows = static_cast<int64_t>(rows.size());
  const auto scratch = device::gpu_under_test().allocate(ops::CudaSample::scratch_bytes(max_rows), "scratch");
  ops::SampleArgs args{};
  args.rows = count.as<int32_t>();
  args.params = params.as<ops::SampleRow>();
  args.masked = ids.as<int32_t>();
  args.logits = gpu_logits.as<float>();
  args.logits_stride = vocab;
  args.vocab_size = static_cast<int32_t>(vocab);
  args.out = out.as<ops::Sampled>();
  sample.run(args, scratch.data(), max_rows);
  std::vector<ops::Sampled> answers = from_gpu<ops::Sampled>(out.data(), static_cast<int64_t>(rows.size()));
  EXPECT_EQ(answers.back().token, -7);
  EXPECT_EQ(answers.back().status, -7);
  answers.pop_back();
  return answers;
}

void compare(const std::vector<float>& logits, int64_t vocab, const std::vector<Question>& all) {
  Sampler sampler(static_cast<int32_t>(vocab));
  const std::vector<ops::Sampled> answers = ask_gpu(logits, vocab, all);
  for (size_t i = 0; i < all.size(); ++i) {
    const Question& q = all[i];
    const std::span<const float> row(logits.data() + q.row * vocab, static_cast<size_t>(vocab));
    const Picked picked = sampler.pick(row, q.params, q.position, {q.size, q.masked});
    EXPECT_EQ(answers[i].token, picked.token)
        << "temperature " << q.params.temperature << ", top_k " << q.params.top_k << ", top_p " << q.params.top_p
        << ", min_p " << q.params.min_p << ", row " << q.row << ", position " << q.position;
    EXPECT_EQ(answers[i].status, ops::sample_chosen);
    // fp32 exponentials of GPUs have errors near 2^-22 and arguments of up to some tens.
    const double expected = q.masked.empty() ? picked.probability : 1;
    EXPECT_NEAR(answers[i].probability, expected, 2e-5 * expected) << i;
  }
}

// Peaked, flat, all equal, few levels with many ties, −inf among them.
std::vector<float> rows_of_logits(int64_t vocab, std::mt19937_64& random) {
  std::normal_distribution<float> normal;
  std::vector<float> logits;
  for (int64_t i = 0; i < vocab; ++i) logits.push_back(6.0f * normal(random));
  for (int64_t i = 0; i < vocab; ++i) logits.push_back(0.01f * normal(random));
  for (int64_t i = 0; i < vocab; ++i) logits.push_back(2.5f);
  for (int64_t i = 0; i < vocab; ++i) logits.push_back(static_cast<float>(random() % 4) * (i % 3 == 0 ? -0.0f : 1.0f));
  for (int64_t i = 0; i < vocab; ++i) logits.push_back(random() % 8 == 0 ? 3.0f * normal(random) : -infinity);
  return logits;
}

TEST(SampleGpu, AgreesWithTheHost) {
  const int64_t vocab = device::gpu_is_emulated() ? 3000 : 154880;
  std::mt19937_64 random(1);
  const std::vector<float> logits = rows_of_logits(vocab, random);
  std::vector<Question> all;
  for (int64_t row = 0; row < 5; ++row) {
    for (const double temperature : {0.0, 0.3, 1.0, 1.7}) {
      for (const int32_t top_k : {0, 1, 20, 1500, 5000}) {
        for (const double top_p : {1.0, 0.95, 0.3, 1e-9}) {
          if (temperature == 0.0 && (top_k != 20 || top_p != 0.3)) continue;
          Question q;
          q.row = row;
          q.params = {.temperature = temperature, .top_k = top_k, .top_p = top_p, .min_p = 0.0, .seed = random()};
          if (random() % 3 == 0) q.params.min_p = 0.05;
          q.position = static_cast<int64_t>(random() % 1'000'000);
          q.size = static_cast<int32_t>(vocab - (random() % 2 == 0 ? 0 : 30));
          for (uint64_t i = random() % 4; i > 0; --i)
            q.masked.push_back(static_cast<int32_t>(random() % static_cast<uint64_t>(vocab + 5)) - 2);
          all.push_back(q);
        }
      }
    }
  }
  compare(logits, vocab, all);
  // The fewer rows, the more blocks share one.
  std::shuffle(all.begin(), all.end(), random);
  for (const std::ptrdiff_t questions : {1, 2, 3, 7, 60})
    compare(logits, vocab, std::vector<Question>(all.begin(), all.begin() + questions));
}

// Rows shorter than a part for each block, and those whose parts all but one are empty or masked.
TEST(SampleGpu, FewTokens) {
  std::mt19937_64 random(3);
  for (const int64_t vocab : {1, 5, 127, 129, 600}) {
    std::vector<float> logits(static_cast<size_t>(vocab), -infinity);
    logits[static_cast<size_t>(random() % static_cast<uint64_t>(vocab))] = -3.0f;
    logits.back() = 1.0f;
    for (const double temperature : {0.0, 1.0}) {
      Question q{0, {.temperature = temperature, .top_k = 3, .top_p = 0.9, .seed = 9}, 11, static_cast<int32_t>(vocab)};
      compare(logits, vocab, {q});
      q.params.top_k = 0;
      compare(logits, vocab, {q});
    }
  }
}

// Many draws from one row: where noise decides, both decide alike.
TEST(SampleGpu, ManyPositions) {
  constexpr int64_t vocab = 700;
  std::mt19937_64 random(2);
  const std::vector<float> logits = rows_of_logits(vocab, random);
  std::vector<Question> all;
  for (int64_t position = 0; position < 300; ++position)
    all.push_back(
        {position % 4, {.temperature = 1.0, .top_p = position % 2 == 0 ? 1.0 : 0.9, .seed = 5}, position, vocab});
  compare(logits, vocab, all);
}

TEST(SampleGpu, SaysWhatIsWrong) {
  const std::vector<float> logits = {1.0f, infinity, 0.0f,      1.0f, std::numeric_limits<float>::quiet_NaN(),
                                     0.0f, 1.0f,     -infinity, 0.5f};
  const SamplingParams params{.temperature = 1.0};
  const std::vector<ops::Sampled> answers =
      ask_gpu(logits, 3, {{0, params, 0, 3}, {1, params, 0, 1}, {2, params, 0, 3, {0, 2}}, {2, params, 0, 2}});
  EXPECT_EQ(answers[0].status, ops::sample_not_finite);
  EXPECT_EQ(answers[1].status, ops::sample_not_finite);  // also beyond the ids that may be chosen
  EXPECT_EQ(answers[2].status, ops::sample_all_masked);
  EXPECT_EQ(answers[2].token, -1);
  EXPECT_EQ(answers[3].status, ops::sample_chosen);
  EXPECT_EQ(answers[3].token, 0);
}

}  // namespace
}  // namespace tandem::engine::sample_gpu_test
