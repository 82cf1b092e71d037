// Every part of gpu_bench once on the emulated GPU at tiny sizes: that it runs, reports what it should and finds a
// floor for every operation that has one. Times mean nothing here.
#include <array>
#include <set>

#include "base/error.h"
#include "benchmarks.h"
#include "device/test_gpu.h"

namespace tandem::bench {
namespace {

RankPlan tiny_plan(forward::CacheType type, int64_t held) {
  forward::Capacity c;
  c.slots = 2;
  c.pages = 12;
  c.max_rows = 24;
  c.max_logit_rows = 2;
  c.page_rows = 16;
  c.cache_type = type;
  c.mtp = false;
  return {"tiny", tiny_shape(), held, 32, 1, c, {{2, 1, 40}, {1, 9, 32}}, 8, {{1, 1, 80}}};
}

std::set<std::string> names(const nlohmann::json& list) {
  std::set<std::string> out;
  for (const nlohmann::json& one : list) out.insert(one.at("name").get<std::string>());
  return out;
}

class GpuBench : public ::testing::Test {
 protected:
  GpuBench() : bench_(device::gpu_under_test(), 4096, 1, 1) {
    bench_.read_rate = bench_.matrix_rate = bench_.fp32_rate = 1;
  }
  Bench bench_;
  Report report_;
};

TEST_F(GpuBench, Limits) {
  measure_limits(bench_, report_, forward::kernel_defines(tiny_shape()), int64_t{16} << 20, 64);
  EXPECT_EQ(report_.json().at("limits").size(), 6u) << report_.table();
}

TEST_F(GpuBench, RankWithHalfOfTheExperts) {
  measure_rank(bench_, report_, tiny_plan(forward::CacheType::bf16, 2));
  const nlohmann::json& list = report_.json().at("tiny");
  const std::set<std::string> found = names(list);
  for (const char* name : {"q k v f_a g_a b",
                           "f_b g_b",
                           "kda_block",
                           "kda_output",
                           "o_proj kda",
                           "mhc",
                           "dense",
                           "router",
                           "route",
                           "experts",
                           "q_a kv_a wk gate w",
                           "norm",
                           "q_b wq_b",
                           "absorb",
                           "latent",
                           "index_store",
                           "index_select",
                           "attend",
                           "expand",
                           "o_proj mla",
                           "head",
                           "LAYER KDA + dense",
                           "LAYER KDA + MoE",
                           "LAYER DSA + MoE",
                           "STEP, all layers and head",
                           "index_select at 0K"})
    EXPECT_TRUE(found.count(name)) << name;
  for (const nlohmann::json& one : list) EXPECT_GT(one.at("floor_us").get<double>(), 0) << one.at("name");
}

TEST_F(GpuBench, RankWithAllExpertsAndCodedCaches) {
  measure_rank(bench_, report_, tiny_plan(forward::CacheType::fp8, 4));
  EXPECT_TRUE(names(report_.json().at("tiny")).count("index_queries"));
}

TEST_F(GpuBench, Nano) {
  measure_nano(bench_, report_, TANDEM_SOURCE_DIR, std::array{1}, 1);
  EXPECT_EQ(report_.json().at("nano").size(), 5u) << report_.table();
  const std::set<std::string> found = names(report_.json().at("nano"));
  EXPECT_TRUE(found.count("decode and sampling on the host")) << report_.table();
  EXPECT_TRUE(found.count("decode and sampling in the step")) << report_.table();
}

TEST_F(GpuBench, Sampling) {
  measure_sampling(bench_, report_, forward::kernel_defines(tiny_shape()), 300, 64, std::array<int64_t, 2>{1, 3});
  const nlohmann::json& list = report_.json().at("sampling, vocabulary 300");
  EXPECT_EQ(list.size(), 2u * 12) << report_.table();
  EXPECT_TRUE(names(list).count("in the step, temperature 1, top_p 0.95"));
}

TEST_F(GpuBench, Start) { EXPECT_GT(start_nano(bench_.gpu(), TANDEM_SOURCE_DIR), 0); }

}  // namespace
}  // namespace tandem::bench
