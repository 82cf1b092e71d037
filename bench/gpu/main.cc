// gpu_bench: what one GPU reaches of its limits, operation by operation, on GLM-5.3-Flash's dimensions with random
// weights and on the bundled model. `./dev gpu-test` builds it and tests/gpu/run_on_device.sh runs it; the receipt is
// tandem.gpu_bench/1 (bench/gpu/README.md).
#include <fmt/format.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <string>
#include <string_view>

#include "base/error.h"
#include "benchmarks.h"
#include "device/cuda_gpu.h"

namespace tandem::bench {
namespace {

struct Settings {
  device::CudaOptions cuda;
  std::filesystem::path source = ".", out;
  std::string commit, clocks;
  bool start = false;  // only how long the bundled model takes to be ready
};

forward::Capacity capacity_for(int64_t pages, int32_t rows, int32_t slots, forward::CacheType type) {
  forward::Capacity c;
  c.slots = slots;
  c.pages = pages;
  c.max_rows = rows;
  c.max_logit_rows = 64;
  c.cache_type = type;
  c.mtp = false;
  return c;
}

// A context of 4,096 tokens in decode: more than the 2,048 that are attended to.
std::vector<RankPlan> plans() {
  constexpr int64_t context = 4096 + 8;
  const auto plain = forward::CacheType::bf16, fp8 = forward::CacheType::fp8;
  const std::vector<RankPlan::Load> loads = {
      {1, 1, context}, {1, 8, context}, {8, 1, context}, {64, 1, context}, {1, 2048, context - 8}};
  std::vector<RankPlan::Load> selections;
  for (const int64_t rows : {1, 8, 64, 512})
    for (const int64_t length : {2048, 32768, 131072, 524288}) selections.push_back({1, rows, length});
  std::vector<RankPlan> out;
  out.push_back({"whole model on one GPU",
                 glm_shape(1),
                 288,
                 2048,
                 2,
                 capacity_for(1200, 2048, 64, plain),
                 {loads[0], loads[2], loads[4]},
                 64,
                 {}});
  out.push_back(
      {"selection, FP8 cache, 32 heads", glm_shape(2), 8, 1024, 1, capacity_for(2056, 512, 1, fp8), {}, 0, selections});
  out.push_back({"one rank of two", glm_shape(2), 144, 1024, 1, capacity_for(1200, 8192, 64, plain), loads, 2048, {}});
  out.back().loads.push_back({1, 8192, 0});
  return out;
}

std::string now() {
  const std::time_t seconds = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  char text[32];
  std::strftime(text, sizeof text, "%FT%TZ", std::gmtime(&seconds));
  return text;
}

void measure(device::Gpu& gpu, const Settings& settings, Report& report) {
  const std::vector<std::string> defines = forward::kernel_defines(glm_shape(1));
  Bench bench(gpu, int64_t{8} << 30, 11, 32);
  measure_limits(bench, report, defines, int64_t{8} << 30, 8192);
  const std::vector<RankPlan> all = plans();
  for (const RankPlan& plan : all) measure_rank(bench, report, plan);
  measure_sampling(bench, report, defines, glm_shape(1).vocab_size, glm_shape(1).hidden_size,
                   std::array<int64_t, 3>{1, 8, 64});
  measure_nano(bench, report, settings.source, std::array{1, 8}, 64);
}

void write(const Settings& settings, const Report& report) {
  if (settings.out.empty()) return;
  std::ofstream(settings.out) << const_cast<Report&>(report).json().dump() << "\n";
}

int run(int argc, char** argv) {
  Settings settings;
  std::string command;
  for (int i = 0; i < argc; ++i) command += fmt::format("{}{}", i == 0 ? "" : " ", argv[i]);
  for (int i = 1; i < argc; ++i) {
    const std::string_view name = argv[i];
    if (name == "--start") {
      settings.start = true;
      continue;
    }
    if (i + 1 == argc) throw Error(ErrorCode::usage, std::string(name), "no value", "a value");
    const std::string value = argv[++i];
    if (name == "--cache-dir")
      settings.cuda.cache_dir = std::filesystem::absolute(value);
    else if (name == "--nvrtc")
      settings.cuda.nvrtc = value;
    else if (name == "--source")
      settings.source = value;
    else if (name == "--out")
      settings.out = value;
    else if (name == "--commit")
      settings.commit = value;
    else if (name == "--clocks")
      settings.clocks = value;
    else
      throw Error(ErrorCode::usage, std::string(name), "an unknown flag",
                  "--start, --cache-dir, --nvrtc, --source, --out, --commit or --clocks");
  }
  const auto start = std::chrono::steady_clock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); };
  const std::unique_ptr<device::Gpu> gpu = device::open_cuda_gpu(0, settings.cuda);
  Report report;
  report.json() = {{"schema", "tandem.gpu_bench/1"},
                   {"commit", settings.commit},
                   {"command", command},
                   {"date", now()},
                   {"clocks", settings.clocks},
                   {"gpu", gpu->properties().name},
                   {"driver", gpu->properties().driver},
                   {"multiprocessors", gpu->properties().multiprocessors}};
  if (settings.start) {
    const double opened = seconds(), ready = start_nano(*gpu, settings.source);
    report.note("start", "device opened", opened, "s");
    report.note("start", "nano ready after that", ready, "s");
  } else {
    try {
      measure(*gpu, settings, report);
    } catch (const Error& e) {  // what was measured before it is still worth having
      std::printf("%s", report.table().c_str());
      write(settings, report);
      throw;
    }
    report.note("run", "all of this took", seconds(), "s");
  }
  write(settings, report);
  std::printf("%s", report.table().c_str());
  return 0;
}

}  // namespace
}  // namespace tandem::bench

int main(int argc, char** argv) {
  try {
    return tandem::bench::run(argc, argv);
  } catch (const tandem::Error& e) {
    std::fprintf(stderr, "gpu_bench: %s\n", e.what());
    return tandem::exit_status(e.code());
  } catch (const std::exception& e) {
    std::fprintf(stderr, "gpu_bench: %s\n", e.what());
    return 70;
  }
}
