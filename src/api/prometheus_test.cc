// The text format, byte by byte and through a strict reader.
#include "api/prometheus.h"

#include <cmath>

#include "api/process_stats.h"
#include "api/prometheus_parser.h"
#include "api/quantiles.h"

namespace tandem::api::prometheus_test {
namespace {

TEST(Prometheus, Lines) {
  PrometheusText page;
  page.counter("a:b_total", "Back\\slash and\nline end.", {}, 3);
  page.gauge("g", "Help.", {{"x", "q\"uo\\te\n"}, {"y", ""}}, 0.25);
  EXPECT_EQ(page.text(),
            "# HELP a:b_total Back\\\\slash and\\nline end.\n# TYPE a:b_total counter\na:b_total 3\n"
            "# HELP g Help.\n# TYPE g gauge\ng{x=\"q\\\"uo\\\\te\\n\",y=\"\"} 0.25\n");
  const ParsedMetrics parsed(page.text());
  EXPECT_EQ(parsed.value("g", {{"x", "q\"uo\\te\n"}, {"y", ""}}), 0.25);
}

TEST(Prometheus, Numbers) {
  PrometheusText page;
  page.family("g", PrometheusText::Type::gauge, "Help.");
  page.sample({{"n", "1"}}, 1e15);
  page.sample({{"n", "2"}}, INFINITY);
  page.sample({{"n", "3"}}, -INFINITY);
  page.sample({{"n", "4"}}, NAN);
  page.sample({{"n", "5"}}, 1e-7);
  page.sample({{"n", "6"}}, 1e300);
  EXPECT_EQ(page.text().substr(page.text().find("g{")),
            "g{n=\"1\"} 1000000000000000\ng{n=\"2\"} +Inf\ng{n=\"3\"} -Inf\ng{n=\"4\"} NaN\ng{n=\"5\"} 1e-07\n"
            "g{n=\"6\"} 1e+300\n");
}

TEST(Prometheus, Histogram) {
  Histogram histogram({0.5, 1, 20});
  for (const double value : {0.1, 0.5, 0.75, 3.0, 20.0, 21.0}) histogram.observe(value);
  histogram.observe(NAN);
  PrometheusText page;
  page.family("h", PrometheusText::Type::histogram, "Help.");
  page.sample({{"x", "y"}}, histogram);
  EXPECT_EQ(
      page.text(),
      "# HELP h Help.\n# TYPE h histogram\nh_bucket{x=\"y\",le=\"0.5\"} 2\nh_bucket{x=\"y\",le=\"1.0\"} 3\n"
      "h_bucket{x=\"y\",le=\"20.0\"} 5\nh_bucket{x=\"y\",le=\"+Inf\"} 6\nh_sum{x=\"y\"} 45.35\nh_count{x=\"y\"} 6\n");
  EXPECT_EQ(ParsedMetrics(page.text()).value("h_bucket", {{"le", "1.0"}}), 3);
}

TEST(Prometheus, Series125) {
  EXPECT_EQ(series_1_2_5(0), std::vector<double>({1}));
  EXPECT_EQ(series_1_2_5(1), std::vector<double>({1}));
  EXPECT_EQ(series_1_2_5(60), std::vector<double>({1, 2, 5, 10, 20, 50}));
  EXPECT_EQ(series_1_2_5(1000), std::vector<double>({1, 2, 5, 10, 20, 50, 100, 200, 500, 1000}));
  EXPECT_EQ(series_1_2_5(INT64_MAX).back(), 5e18);
}

// The reader that the other tests trust refuses what is wrong.
TEST(PrometheusParser, Refuses) {
  const std::string head = "# HELP a Help.\n# TYPE a counter\n";
  EXPECT_NO_THROW(ParsedMetrics(head + "a 1\n"));
  for (const std::string& bad :
       {head + "a 1", head + "b 1\n", head + "a 1\na 2\n", head + "a -1\n", head + "a x\n", head + "a  1\n",
        head + "a{x=\"1\",x=\"2\"} 1\n", head + "a{x=1} 1\n", head + "a{x=\"\\t\"} 1\n", head + "a{x=\"1} 1\n",
        head + "a{1x=\"1\"} 1\n", head + "\n", head + "a 1\n" + head, std::string("a 1\n"),
        std::string("# TYPE a counter\na 1\n"), std::string("# HELP a Help.\n# TYPE a summary\na 1\n"),
        std::string("# HELP a Help.\na 1\n")}) {
    EXPECT_ANY_THROW(ParsedMetrics{bad}) << bad;
  }
  const std::string histogram = "# HELP h Help.\n# TYPE h histogram\n";
  EXPECT_NO_THROW(ParsedMetrics(histogram + "h_bucket{le=\"1\"} 1\nh_bucket{le=\"+Inf\"} 2\nh_sum 3\nh_count 2\n"));
  for (const std::string bad :
       {"h 1\n", "h_bucket 1\n", "h_count{le=\"1\"} 1\n", "h_bucket{le=\"1\"} 1\nh_sum 1\nh_count 1\n",
        "h_bucket{le=\"2\"} 1\nh_bucket{le=\"1\"} 1\nh_bucket{le=\"+Inf\"} 1\nh_sum 1\nh_count 1\n",
        "h_bucket{le=\"1\"} 2\nh_bucket{le=\"+Inf\"} 1\nh_sum 1\nh_count 1\n",
        "h_bucket{le=\"+Inf\"} 1\nh_sum 1\nh_count 2\n", "h_bucket{le=\"+Inf\"} 1\nh_count 1\n"}) {
    EXPECT_ANY_THROW(ParsedMetrics{histogram + bad}) << bad;
  }
}

TEST(Quantiles, WithinTheirWidth) {
  Quantiles quantiles;
  EXPECT_FALSE(quantiles.at(0.5));
  for (int i = 1; i <= 1000; ++i) quantiles.add(i * 0.1);
  EXPECT_EQ(quantiles.count(), 1000);
  EXPECT_NEAR(*quantiles.at(0.5), 50, 50 * 0.025);
  EXPECT_NEAR(*quantiles.at(0.99), 99, 99 * 0.025);
  EXPECT_NEAR(*quantiles.at(0.001), 0.1, 0.1 * 0.025);
  EXPECT_NEAR(*quantiles.at(1), 100, 100 * 0.025);
}

TEST(Quantiles, OutliersStayAtTheEnds) {
  Quantiles quantiles;
  quantiles.add(0);
  quantiles.add(-5);
  quantiles.add(1e12);
  EXPECT_LT(*quantiles.at(0.5), 0.011);
  EXPECT_GT(*quantiles.at(1), 1e6);
}

TEST(ProcessStats, AreThoseOfThisProcess) {
  const ProcessStats stats = read_process_stats();
  ASSERT_TRUE(stats.resident_bytes && stats.virtual_bytes && stats.cpu_seconds && stats.start_time_seconds);
  EXPECT_GT(*stats.resident_bytes, 1 << 20);
  EXPECT_GE(*stats.virtual_bytes, *stats.resident_bytes);
  EXPECT_GT(*stats.cpu_seconds, 0);
  const auto now = static_cast<double>(std::time(nullptr));
  EXPECT_LE(*stats.start_time_seconds, now + 2);
  EXPECT_GT(*stats.start_time_seconds, now - 3600);
  ASSERT_TRUE(stats.open_fds);
  EXPECT_GE(*stats.open_fds, 3);
}

}  // namespace
}  // namespace tandem::api::prometheus_test
