// Quality runs over made-up logits, and what reports make of them.
#include "eval/quality.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "eval/quality_math.h"
#include "eval/quality_report.h"
#include "eval/test_quality.h"

namespace tandem::eval::quality_test {
namespace {

constexpr int64_t vocab = 50;
const std::vector<int64_t> sizes = {16, 16, 5, 2};  // 35 positions

TableSource source(const std::string& name, uint32_t seed) {
  return {name, vocab, random_logits(vocab * counted_windows(sizes, vocab).positions(), seed)};
}

std::string token_text(int32_t id) { return fmt::format("<{}>", id); }

TEST(Quality, EveryPositionIsMeasured) {
  const Windows windows = counted_windows(sizes, vocab);
  auto teacher = source("teacher", 1), student = source("student", 2);
  const QualityRun run = run_quality(windows, &teacher, &student);
  ASSERT_EQ(std::ssize(run.kld), 35);
  size_t i = 0;
  LogitRow p, q;
  for (const Window& window : windows.windows) {
    for (int64_t position = 0; position < window.positions(); ++position, ++i) {
      ASSERT_TRUE(normalise(std::span(teacher.logits).subspan(i * vocab, vocab), p));
      ASSERT_TRUE(normalise(std::span(student.logits).subspan(i * vocab, vocab), q));
      EXPECT_EQ(run.kld[i], kl_divergence(p, q));
      const auto next = static_cast<size_t>(window.ids[static_cast<size_t>(position) + 1]);
      EXPECT_EQ(run.teacher.nll[i], -p.log_p[next]);
      EXPECT_EQ(run.student.nll[i], -q.log_p[next]);
      EXPECT_EQ(run.student.best[i], q.best);
    }
  }
  EXPECT_EQ(i, run.kld.size());
}

TEST(Quality, ChunksMakeNoDifference) {
  const Windows windows = counted_windows(sizes, vocab);
  std::vector<QualityRun> runs;
  for (const int64_t chunk : {0, 1, 4, 15, 100}) {
    auto teacher = source("teacher", 1), student = source("student", 2);
    int64_t done = 0;
    QualityRunOptions options;
    options.chunk_rows = chunk;
    options.progress = [&](int64_t positions) {
      EXPECT_GT(positions, done);
      done = positions;
    };
    options.threads = chunk == 4 ? 3 : 1;
    runs.push_back(run_quality(windows, &teacher, &student, options));
    EXPECT_EQ(done, 35);
    EXPECT_EQ(runs.back().kld, runs[0].kld);
    EXPECT_EQ(runs.back().audit.means, runs[0].audit.means);
  }
  EXPECT_EQ(chunk_rows_for(2048), 512);
  EXPECT_EQ(chunk_rows_for(154880), 108);
  EXPECT_EQ(chunk_rows_for(int64_t{1} << 40), 1);
}

// Windows of several blocks of rows, whose borders chunks need not know.
TEST(Quality, ThreadsMakeNoDifference) {
  const Windows windows = counted_windows({200, 65, 34, 33}, vocab, 200);
  std::vector<QualityRun> runs;
  for (const int threads : {1, 2, 5}) {
    TableSource teacher("teacher", vocab, random_logits(vocab * windows.positions(), 1)),
        student("student", vocab, random_logits(vocab * windows.positions(), 2));
    QualityRunOptions options;
    options.threads = threads;
    options.chunk_rows = threads == 5 ? 50 : 0;
    runs.push_back(run_quality(windows, &teacher, &student, options));
    EXPECT_EQ(std::ssize(runs.back().kld), 328);
    EXPECT_EQ(runs.back().kld, runs[0].kld);
    EXPECT_EQ(runs.back().teacher.nll, runs[0].teacher.nll);
    EXPECT_EQ(runs.back().student.best, runs[0].student.best);
    EXPECT_EQ(runs.back().audit.means, runs[0].audit.means);
    EXPECT_EQ(runs.back().audit.positions, 324);
  }
}

TEST(Quality, OneSideAlone) {
  const Windows windows = counted_windows(sizes, vocab);
  auto model = source("model", 1);
  const QualityRun run = run_quality(windows, nullptr, &model);
  EXPECT_TRUE(run.teacher.empty());
  EXPECT_TRUE(run.kld.empty());
  const auto report = quality_report(windows, {run});
  EXPECT_FALSE(report.divergence.has_value());
  EXPECT_DOUBLE_EQ(report.student_perplexity.value().value(), std::exp(mean_of(run.student.nll)));
}

TEST(Quality, TheSameLogitsAreNoDistanceAtAll) {
  const Windows windows = counted_windows(sizes, vocab);
  auto teacher = source("teacher", 1), student = source("student", 1);
  const QualityRun run = run_quality(windows, &teacher, &student);
  for (const double kld : run.kld) EXPECT_EQ(kld, 0);
  EXPECT_TRUE(run.audit.passes());
  const auto report = quality_report(windows, {run});
  EXPECT_EQ(report.divergence.value().top1, 1);
  EXPECT_EQ(report.divergence.value().histogram.below, 35);
}

TEST(Quality, TheAuditSeesRowsThatAreOffByOne) {
  const Windows windows = counted_windows({16}, vocab);
  const auto all = random_logits(vocab * 17, 1);
  for (const int64_t shift : {-1, 0, 1}) {
    const auto begin = [&](int64_t first) { return all.begin() + static_cast<std::ptrdiff_t>(vocab * first); };
    TableSource teacher("teacher", vocab, {begin(1), begin(16)});
    TableSource student("student", vocab, {begin(1 + shift), begin(16 + shift)});
    const OffsetAudit audit = run_quality(windows, &teacher, &student).audit;
    EXPECT_EQ(audit.positions, 14);
    EXPECT_EQ(audit.passes(), shift == 0);
    // student[i − shift] is what teacher[i] is: its distance is 0 at this place.
    EXPECT_EQ(audit.means[static_cast<size_t>(1 - shift)], 0);
  }
  const Windows pairs = counted_windows({2, 2}, vocab);
  auto teacher = source("teacher", 1), student = source("student", 2);
  const OffsetAudit none = run_quality(pairs, &teacher, &student).audit;
  EXPECT_EQ(none.positions, 0);
  EXPECT_TRUE(none.passes());
}

TEST(Quality, BadSources) {
  const Windows windows = counted_windows(sizes, vocab);
  auto teacher = source("teacher", 1);
  TableSource wide("wide", vocab + 1, random_logits((vocab + 1) * 35, 2));
  try {
    run_quality(windows, &teacher, &wide);
    FAIL();
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "wide: a vocabulary of 51; expected 50 as teacher has");
  }
  auto student = source("student", 2);
  student.logits[(15 + 15 + 2) * vocab + 7] = std::numeric_limits<float>::quiet_NaN();
  try {
    run_quality(windows, &teacher, &student);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.where(), "student: window 2, position 2");
  }
}

TEST(QualityReport, CurveHistogramAndOutliers) {
  const Windows windows = counted_windows(sizes, vocab);
  auto teacher = source("teacher", 1), student = source("student", 2);
  QualityRun run = run_quality(windows, &teacher, &student);
  for (size_t i = 0; i < run.kld.size(); ++i) run.kld[i] = 1e-3;
  run.kld[0] = 0;
  run.kld[1] = -1e-17;
  run.kld[2] = 1e-16;
  run.kld[15 + 3] = 5e9;
  run.kld[30 + 2] = 7;
  run.student.best = run.teacher.best;
  run.student.best[15 + 3] += 1;
  const Divergence d = quality_report(windows, {run}).divergence.value();
  ASSERT_EQ(d.curve.size(), 15u);
  EXPECT_EQ(d.curve[0].count, 4);
  EXPECT_EQ(d.curve[1].count, 3);  // the window of two tokens has one position
  EXPECT_EQ(d.curve[4].count, 2);
  EXPECT_DOUBLE_EQ(d.curve[3].mean_kld, (1e-3 + 5e9 + 1e-3) / 3);
  EXPECT_DOUBLE_EQ(d.curve[3].top1, 2.0 / 3);
  EXPECT_EQ(d.curve[14].last, 14);
  EXPECT_EQ(d.histogram.below, 2);
  EXPECT_EQ(d.histogram.counts.front(), 1);      // 1e-16 itself
  EXPECT_EQ(d.histogram.counts.back(), 1);       // what is too large for the last
  EXPECT_EQ(d.histogram.counts[2 * 16 + 1], 1);  // 7: from 10^0.5 on
  ASSERT_EQ(d.worst.size(), 10u);
  EXPECT_EQ(d.worst[0].window, 1);
  EXPECT_EQ(d.worst[0].position, 3);
  EXPECT_EQ(d.worst[0].next, windows.windows[1].ids[4]);
  EXPECT_EQ(d.worst[0].student_best, d.worst[0].teacher_best + 1);
  EXPECT_EQ(d.worst[1].window, 2);
  EXPECT_EQ(d.worst[1].position, 2);
  EXPECT_NEAR(d.top1, 34.0 / 35, 1e-15);
}

TEST(QualityReport, CurveOfLongWindowsHasAtMost32Bins) {
  const Windows windows = counted_windows({2048, 300}, vocab, 2048);
  TableSource teacher("teacher", vocab, random_logits(vocab * windows.positions(), 1)),
      student("student", vocab, random_logits(vocab * windows.positions(), 2));
  const auto report = quality_report(windows, {run_quality(windows, &teacher, &student)});
  const auto& curve = report.divergence.value().curve;
  ASSERT_EQ(curve.size(), 32u);
  int64_t next = 0, count = 0;
  for (const CurveBin& bin : curve) {
    EXPECT_EQ(bin.first, next);
    next = bin.last + 1;
    count += bin.count;
  }
  EXPECT_EQ(next, 2047);
  EXPECT_EQ(count, windows.positions());
}

TEST(QualityReport, RunsAndWords) {
  const Windows windows = counted_windows(sizes, vocab);
  std::vector<QualityRun> runs;
  for (const uint32_t seed : {2u, 3u}) {
    auto teacher = source("teacher", 1), student = source("student", seed);
    runs.push_back(run_quality(windows, &teacher, &student));
  }
  auto report = quality_report(windows, runs);
  const double a = mean_of(runs[0].kld), b = mean_of(runs[1].kld);
  EXPECT_DOUBLE_EQ(report.mean_of_runs(), (a + b) / 2);
  EXPECT_DOUBLE_EQ(report.deviation_of_runs(), std::abs(a - b) / 2);
  report.text = "a.txt";
  report.teacher = QualitySide{"big", {}, "big.logits", 0xABC};
  report.student = QualitySide{"<small & fast>", "bf16", {}, 1};

  const auto text = quality_report_json(report, token_text);
  EXPECT_TRUE(text.starts_with("{\"schema\":\"tandem.eval_kld/1\""));
  const auto json = nlohmann::json::parse(text);
  EXPECT_EQ(json["teacher"]["capture"], "big.logits");
  EXPECT_EQ(json["teacher"]["config_crc32c"], "00000abc");
  EXPECT_TRUE(json["teacher"]["kv_cache_dtype"].is_null());
  EXPECT_EQ(json["student"]["kv_cache_dtype"], "bf16");
  EXPECT_EQ(json["text"]["positions"], 35);
  EXPECT_EQ(json["runs"]["list"].size(), 2u);
  EXPECT_DOUBLE_EQ(json["kld"]["mean"], a);
  EXPECT_DOUBLE_EQ(json["runs"]["mean_kld_std"], std::abs(a - b) / 2);
  EXPECT_TRUE(json["offset_audit"].is_object());
  EXPECT_EQ(json["worst"].size(), 10u);
  EXPECT_EQ(json["worst"][0]["next"]["text"], token_text(json["worst"][0]["next"]["id"]));

  const auto words = quality_report_text(report, token_text);
  for (const char* word : {"big.logits", "bf16", "runs        2", "offset", "worst positions", "SHA-256"})
    EXPECT_NE(words.find(word), std::string::npos) << word;
  const auto svg = quality_report_svg(report);
  EXPECT_TRUE(svg.starts_with("<svg "));
  EXPECT_TRUE(svg.ends_with("</svg>\n"));
  EXPECT_NE(svg.find("&lt;small &amp; fast&gt;"), std::string::npos);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_EQ(svg.find("inf"), std::string::npos);

  auto alone = quality_report(windows, {runs[0]});
  alone.divergence.reset();
  alone.student = report.student;
  EXPECT_TRUE(quality_report_json(alone, token_text).starts_with("{\"schema\":\"tandem.eval_ppl/1\""));
}

}  // namespace
}  // namespace tandem::eval::quality_test
