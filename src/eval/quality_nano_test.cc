// Quality runs of the bundled model on its evaluation text.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/mapped_file.h"
#include "eval/capture.h"
#include "eval/quality_math.h"
#include "eval/quality_model.h"
#include "eval/test_quality.h"

namespace tandem::eval::quality_nano_test {
namespace {

const std::string nano = std::string(TANDEM_SOURCE_DIR) + "/models/nano";

// Three windows of the bundled text's second conversation.
const Windows& windows() {
  static const Windows cut = [] {
    const std::string path = nano + "/eval_text.jsonl";
    const auto texts = parse_eval_texts(MappedFile::open(path).text(), path);
    EXPECT_EQ(texts.size(), 40u);
    auto all = cut_windows(std::span(texts).subspan(1, 1), text::Tokenizer::load(nano), 2048, 160);
    all.windows.resize(3);
    return all;
  }();
  return cut;
}

ModelLogits model(forward::CacheType cache_type = forward::CacheType::f32, int64_t chunk = 0,
                  forward::Compute compute = forward::Compute::f32) {
  return {nano,
          {.window = windows().size, .chunk_rows = chunk, .cache_type = cache_type, .compute = compute, .threads = 0}};
}

TEST(QualityNano, StudentIsTeacher) {
  auto teacher = model(), student = model(forward::CacheType::f32, 64);
  QualityRunOptions options;
  options.chunk_rows = 64;
  const QualityRun run = run_quality(windows(), &teacher, &student, options);
  EXPECT_EQ(std::ssize(run.kld), 3 * 159);
  EXPECT_LT(*std::max_element(run.kld.begin(), run.kld.end()), 1e-12);
  EXPECT_LT(mean_of(run.kld), 1e-12);
  EXPECT_EQ(run.teacher.best, run.student.best);
  EXPECT_TRUE(run.audit.passes());
  EXPECT_GT(run.audit.means[0], 1);
  EXPECT_GT(run.audit.means[2], 1);
  // The model was trained on such text: about 3.6 over the whole file, 2048 for one that knows nothing.
  const double nll = mean_of(run.student.nll);
  EXPECT_GT(nll, 0.7);
  EXPECT_LT(nll, 2.2);
}

// sqrt(Σ (a − b)² / Σ a²) over the logits of all windows.
double relative_difference(ModelLogits& a, ModelLogits& b) {
  double difference = 0, size = 0;
  for (size_t window = 0; window < windows().windows.size(); ++window) {
    a.start(windows(), window);
    b.start(windows(), window);
    const int64_t rows = std::ssize(windows().windows[window].ids) - 1;
    const auto exact = a.next(rows), other = b.next(rows);
    for (size_t i = 0; i < exact.size(); ++i) {
      difference += std::pow(static_cast<double>(other[i]) - exact[i], 2);
      size += std::pow(static_cast<double>(exact[i]), 2);
    }
  }
  return std::sqrt(difference / size);
}

// transformers in bf16 has a mean KL of 4.7e-5 on chats and a relative L2 of 0.4 to 1.7 % (tests/golden/README.md).
TEST(QualityNano, Bf16ComputeCostsALittle) {
  auto teacher = model(), student = model(forward::CacheType::bf16, 0, forward::Compute::bf16);
  const QualityRun run = run_quality(windows(), &teacher, &student);
  const double mean = mean_of(run.kld), relative = relative_difference(teacher, student);
  RecordProperty("mean_kld", std::to_string(mean));
  RecordProperty("relative_l2", std::to_string(relative));
  EXPECT_GT(mean, 1e-9);
  EXPECT_LT(mean, 1e-4);
  EXPECT_GT(relative, 1e-4);
  EXPECT_LT(relative, 0.02);
  EXPECT_TRUE(run.audit.passes());
}

TEST(QualityNano, RoundedCachesCostALittle) {
  auto teacher = model(), student = model(forward::CacheType::bf16);
  const QualityRun run = run_quality(windows(), &teacher, &student);
  const double mean = mean_of(run.kld);
  EXPECT_GT(mean, 1e-15);
  EXPECT_LT(mean, 1e-4);
  EXPECT_TRUE(run.audit.passes());
}

// One rank or two, pages of one pool or shared: the same bits, with rows over several pages.
TEST(QualityNano, RanksMakeNoDifferenceToABit) {
  Windows one = windows();
  one.windows.resize(1);
  one.windows[0].ids.clear();
  for (const Window& window : windows().windows)
    one.windows[0].ids.insert(one.windows[0].ids.end(), window.ids.begin(), window.ids.end());
  one.size = std::ssize(one.windows[0].ids);
  const auto logits = [&](int32_t tensor, int32_t context) {
    ModelLogitsOptions options;
    options.window = one.size;
    options.chunk_rows = 200;
    options.cache_type = forward::CacheType::nvfp4;
    options.threads = 1;
    options.ranks.tensor_parallel_size = tensor;
    options.ranks.decode_context_parallel_size = context;
    ModelLogits source(nano, options);
    source.start(one, 0);
    std::vector<float> all;
    for (int64_t left = one.size - 1; left > 0; left -= 200) {
      const auto rows = source.next(std::min<int64_t>(left, 200));
      all.insert(all.end(), rows.begin(), rows.end());
    }
    return all;
  };
  const std::vector<float> alone = logits(1, 1);
  ASSERT_EQ(alone.size(), 479u * 2048);
  for (const int32_t context : {1, 2}) {
    const std::vector<float> shared = logits(2, context);
    ASSERT_EQ(shared.size(), alone.size());
    EXPECT_EQ(std::memcmp(shared.data(), alone.data(), alone.size() * sizeof(float)), 0) << context;
  }
  EXPECT_THROW(logits(3, 1), Error);
  EXPECT_THROW(logits(1, 2), Error);
}

TEST(QualityNano, AWindowThatTheModelCannotHold) {
  try {
    ModelLogits too_long(nano, {.window = int64_t{1} << 21});
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::usage);
    EXPECT_EQ(e.where(), "--window");
  }
}

}  // namespace
}  // namespace tandem::eval::quality_nano_test
