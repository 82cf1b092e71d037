// The golden sequences on a GPU: how far logits lie from those of the CPU's bf16 mode, which rounds at the same points,
// and from the reference's fp32 logits (tests/golden/README.md: what bf16 costs other people's code).
#include <algorithm>
#include <cmath>

#include "device/test_gpu.h"
#include "device/threads.h"
#include "forward/gpu_model.h"
#include "forward/test_models.h"

namespace tandem::forward::golden_gpu_test {
namespace {

constexpr int32_t pages = 32;

// Of rows of logits: relative L2 and Kullback-Leibler divergence (nats).
struct Distances {
  std::vector<double> l2, kl;

  // p is what q should be.
  void add(std::span<const float> p, std::span<const float> q) {
    const auto log_sum = [](std::span<const float> row) {
      const double most = *std::max_element(row.begin(), row.end());
      double sum = 0;
      for (const float x : row) sum += std::exp(x - most);
      return most + std::log(sum);
    };
    const double of_p = log_sum(p), of_q = log_sum(q);
    double difference = 0, size = 0, divergence = 0;
    for (size_t i = 0; i < p.size(); ++i) {
      difference += std::pow(static_cast<double>(p[i]) - q[i], 2);
      size += std::pow(static_cast<double>(p[i]), 2);
      divergence += std::exp(p[i] - of_p) * ((p[i] - of_p) - (q[i] - of_q));
    }
    l2.push_back(std::sqrt(difference / size));
    kl.push_back(divergence);
  }
  double median_l2() {
    std::sort(l2.begin(), l2.end());
    return l2[l2.size() / 2];
  }
  double mean_kl() const {
    double sum = 0;
    for (const double x : kl) sum += x;
    return sum / static_cast<double>(kl.size());
  }
};

template <typename T>
std::vector<T> values_of(const model::Tensor& tensor) {
  std::vector<T> values(static_cast<size_t>(tensor.elements()));
  std::memcpy(values.data(), tensor.data.data(), tensor.data.size());
  return values;
}

// Bounds. In the random models one row in a few chooses another expert or pool than the reference and is far off, so
// their divergence has no bound; the median row has. In tinyA, whose six experts of 40 columns lie closest together,
// bf16 itself moves the median row of a long prompt that far from fp32: on the CPU by 0.07 to 0.16.
struct GoldenCase {
  const char* model;
  const char* name;
  double l2_to_cpu, l2_to_reference;
  double kl_to_cpu, kl_to_reference;
};

std::vector<GoldenCase> cases() {
  constexpr double any = 1e9;
  std::vector<GoldenCase> all = {{"nano", "case_T40", 0.02, 0.02, 1e-4, 1e-4},
                                 {"tinyA", "case_T15", 0.05, 0.2, any, any}};
  if (device::gpu_is_emulated()) return all;
  for (const char* name : {"case_T259", "case_T700", "case_T1500"})
    all.push_back({"nano", name, 0.02, 0.02, 1e-4, 1e-4});
  for (const char* name : {"case_T3", "case_T12", "case_T46", "case_T67", "case_T130"})
    all.push_back({"tinyA", name, 0.2, 0.2, any, any});
  for (const char* name : {"case_T66", "case_T67", "case_T69", "case_T200"})
    all.push_back({"tinyB", name, 0.05, 0.2, any, any});
  return all;
}

// One prompt in two chunks; the logits of the golden positions.
TEST(GoldenOnGpu, LogitsLieNearTheCpusAndTheReferences) {
  for (const GoldenCase& one : cases()) {
    const Loaded& model = loaded(one.model);
    const auto file = model::Checkpoint::open(golden + one.model + "/" + one.name + ".safetensors");
    const std::vector<int32_t> ids = values_of<int32_t>(file.at("ids")),
                               positions = values_of<int32_t>(file.at("logits_pos"));
    const std::vector<float> reference = values_of<float>(file.at("logits"));
    const auto length = std::ssize(ids);
    Capacity capacity;
    capacity.pages = 1 + pages;
    capacity.max_rows = static_cast<int32_t>(length);
    capacity.max_logit_rows = static_cast<int32_t>(positions.size());
    capacity.page_rows = 64;
    capacity.cache_type = CacheType::bf16;
    capacity.mtp = false;
    GpuModel gpu(device::gpu_under_test(), model.shape, model.weights, capacity, {}, {.graphs = false});
    capacity.compute = Compute::bf16;
    device::Threads threads(device::gpu_is_emulated() ? 1 : 0);
    TextModel cpu(model.shape, model.weights, threads, capacity);
    Distances to_cpu, to_reference, of_cpu;
    const int64_t border = length / 3;
    for (const auto& [from, to] : {std::pair{int64_t{0}, border}, std::pair{border, length}}) {
      if (from == to) continue;
      Step step = single_stream_step(std::span(ids).subspan(static_cast<size_t>(from), static_cast<size_t>(to - from)),
                                     from, pages);
      std::vector<size_t> wanted;
      for (size_t i = 0; i < positions.size(); ++i) {
        if (positions[i] < from || positions[i] >= to) continue;
        wanted.push_back(i);
        step.logit_rows.push_back(static_cast<int32_t>(positions[i] - from));
      }
      gpu.run(step);
      cpu.run(step);
      const auto vocab = static_cast<size_t>(model.shape.vocab_size);
      for (size_t i = 0; i < wanted.size(); ++i) {
        const auto on_gpu = gpu.logits().subspan(i * vocab, vocab), on_cpu = cpu.logits().subspan(i * vocab, vocab);
        const auto expected = std::span(reference).subspan(wanted[i] * vocab, vocab);
        to_cpu.add(on_cpu, on_gpu);
        to_reference.add(expected, on_gpu);
        of_cpu.add(expected, on_cpu);
      }
    }
    ASSERT_EQ(to_cpu.l2.size(), positions.size());
    std::printf(
        "%s %s, %zu rows: median relative L2 %.5f to the CPU's bf16 mode, %.5f to fp32 (the CPU's %.5f); "
        "mean KL %.2e, %.2e (%.2e)\n",
        one.model, one.name, positions.size(), to_cpu.median_l2(), to_reference.median_l2(), of_cpu.median_l2(),
        to_cpu.mean_kl(), to_reference.mean_kl(), of_cpu.mean_kl());
    const std::string of = std::string(one.model) + " " + one.name;
    EXPECT_LE(to_cpu.median_l2(), one.l2_to_cpu) << of;
    EXPECT_LE(to_reference.median_l2(), one.l2_to_reference) << of;
    EXPECT_LE(to_cpu.mean_kl(), one.kl_to_cpu) << of;
    EXPECT_LE(to_reference.mean_kl(), one.kl_to_reference) << of;
  }
}

}  // namespace
}  // namespace tandem::forward::golden_gpu_test
