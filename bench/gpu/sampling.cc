// The head and what chooses tokens behind it, at a large vocabulary: in the step, and as it was without: logits copied
// to the host and its sampler.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <random>

#include "benchmarks.h"
#include "device/rates_args.h"
#include "engine/sampler.h"
#include "ops/linear/linear_cuda.h"
#include "ops/sample/sample_cuda.h"

namespace tandem::bench {
namespace {

struct Kind {
  const char* name;
  engine::SamplingParams params;
  int64_t passes;  // over the logits
};

const std::array<Kind, 5> kinds = {{
    {"greedy", {.temperature = 0}, 1},
    {"temperature 1", {.temperature = 1}, 2},
    {"temperature 1, top_p 0.95", {.temperature = 1, .top_p = 0.95}, 4},
    {"temperature 1, top_k 20", {.temperature = 1, .top_k = 20}, 4},
    {"temperature 0.7, top_k 50, top_p 0.9, min_p 0.01",
     {.temperature = 0.7, .top_k = 50, .top_p = 0.9, .min_p = 0.01},
     6},
}};

// As a model's rows are: most tokens far below a few.
std::vector<float> some_logits(int64_t rows, int64_t vocab) {
  std::mt19937_64 random(7);
  std::normal_distribution<float> normal(-5.0f, 2.5f);
  std::vector<float> logits(static_cast<size_t>(rows * vocab));
  for (float& logit : logits) logit = normal(random);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < 40; ++i)
      logits[static_cast<size_t>(row * vocab + static_cast<int64_t>(random() % static_cast<uint64_t>(vocab)))] =
          12.0f - 0.2f * static_cast<float>(i);
  }
  return logits;
}

class Sampling {
 public:
  Sampling(const Bench& bench, Report& report, const std::vector<std::string>& defines, int64_t vocab, int64_t rows)
      : bench_(bench),
        report_(report),
        vocab_(vocab),
        rows_(rows),
        host_logits_(some_logits(rows, vocab)),
        sample_(bench.gpu(), defines),
        logits_(bench.gpu().allocate(rows * vocab * 4, "logits")),
        params_(bench.gpu().allocate(rows * static_cast<int64_t>(sizeof(ops::SampleRow)), "settings")),
        out_(bench.gpu().allocate(rows * static_cast<int64_t>(sizeof(ops::Sampled)), "tokens")),
        scratch_(bench.gpu().allocate(ops::CudaSample::scratch_bytes(rows), "scratch of sampling")),
        count_(bench.gpu().allocate(256, "rows")),
        pinned_(bench.gpu().allocate_pinned(rows * vocab * 4, "logits")) {
    device::Gpu& gpu = bench.gpu();
    const auto count = static_cast<int32_t>(rows);
    gpu.upload(count_.data(), &count, 4);
    gpu.upload(logits_.data(), host_logits_.data(), rows * vocab * 4);
    gpu.synchronize();
  }

  // W [vocab, hidden] in bf16.
  void head(const std::vector<std::string>& defines, int64_t hidden) {
    device::Gpu& gpu = bench_.gpu();
    const ops::CudaLinear linear(gpu, defines);
    const device::GpuMemory w = gpu.allocate(vocab_ * hidden * 2, "a head"),
                            x = gpu.allocate(rows_ * hidden * 2, "rows"),
                            y = gpu.allocate(rows_ * vocab_ * 4, "logits");
    const device::Kernel fill = gpu.load({"device/rates.cu", "fill_random", defines});
    for (const device::GpuMemory* of : {&w, &x})
      gpu.launch({.kernel = fill, .grid = {256, 1, 1}, .threads = 256},
                 device::FillRandomArgs{of->as<uint32_t>(), of->size() / 4, 2, 0x80ff80ffu, 0x3c003c00u});
    const auto columns = static_cast<int32_t>(hidden), outputs = static_cast<int32_t>(vocab_);
    const std::array call{ops::CudaLinearCall{{w.as<device::bf16>(), outputs, columns, columns, columns},
                                              x.as<device::bf16>(),
                                              hidden,
                                              y.data(),
                                              vocab_,
                                              true}};
    const Timing timing = bench_.graph(1, [&] { linear.run(call, count_.as<int32_t>(), rows_); });
    const auto bytes = static_cast<double>(ops::CudaLinear::cost(call, rows_).bytes);
    report_.add(section(), "head", rows_, timing, {{"bytes", bytes}, {"floor_us", bytes / bench_.read_rate}});
  }

  void in_the_step(const Kind& kind) {
    device::Gpu& gpu = bench_.gpu();
    std::vector<ops::SampleRow> rows;
    for (int64_t row = 0; row < rows_; ++row) {
      ops::SampleRow one{};
      one.temperature = kind.params.temperature;
      one.top_p = kind.params.top_p;
      one.min_p = kind.params.min_p;
      one.top_k = kind.params.top_k;
      one.seed = 5;
      one.position = 100 + row;
      one.logits = static_cast<int32_t>(row);
      one.size = static_cast<int32_t>(vocab_);
      rows.push_back(one);
    }
    gpu.upload(params_.data(), rows.data(), std::ssize(rows) * static_cast<int64_t>(sizeof(ops::SampleRow)));
    gpu.synchronize();
    ops::SampleArgs args{};
    args.rows = count_.as<int32_t>();
    args.params = params_.as<ops::SampleRow>();
    args.logits = logits_.as<float>();
    args.logits_stride = vocab_;
    args.vocab_size = static_cast<int32_t>(vocab_);
    args.out = out_.as<ops::Sampled>();
    const int64_t count = std::max<int64_t>(1, bench_.least_launches / 4);
    const Timing timing = bench_.graph(count, [&] {
      for (int64_t i = 0; i < count; ++i) sample_.run(args, scratch_.data(), rows_);
    });
    // Once from memory: what the head has just written mostly lies in the second cache.
    const auto bytes = static_cast<double>(ops::CudaSample::cost(rows_, vocab_, 1).bytes);
    report_.add(section(), fmt::format("in the step, {}", kind.name), rows_, timing,
                {{"bytes", bytes}, {"floor_us", bytes / bench_.read_rate}, {"passes", kind.passes}});
  }

  void copied() {
    device::Gpu& gpu = bench_.gpu();
    const Timing timing = bench_.queued(1, [&] { gpu.download(pinned_.data(), logits_.data(), rows_ * vocab_ * 4); });
    report_.add(
        section(), "logits to the host", rows_, timing,
        {{"bytes", rows_ * vocab_ * 4},
         {"rate", fmt::format("{:.1f} GB/s", static_cast<double>(rows_ * vocab_ * 4) / timing.median() / 1e3)}});
  }

  void on_the_host(const Kind& kind) {
    engine::Sampler sampler(static_cast<int32_t>(vocab_));
    Timing timing;
    for (int repeat = 0; repeat < 3; ++repeat) {
      const auto start = std::chrono::steady_clock::now();
      int64_t sum = 0;  // so that nothing is left out
      for (int64_t row = 0; row < rows_; ++row)
        sum += sampler.select(
            std::span(host_logits_).subspan(static_cast<size_t>(row * vocab_), static_cast<size_t>(vocab_)),
            kind.params, 100 + row, {static_cast<int32_t>(vocab_), {}});
      const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - start;
      timing.samples.push_back(sum >= 0 ? time.count() : 0);
    }
    report_.add(section(), fmt::format("on the host, {}", kind.name), rows_, timing);
  }

 private:
  std::string section() const { return fmt::format("sampling, vocabulary {}", vocab_); }

  const Bench& bench_;
  Report& report_;
  const int64_t vocab_, rows_;
  const std::vector<float> host_logits_;
  const ops::CudaSample sample_;
  const device::GpuMemory logits_, params_, out_, scratch_, count_;
  const device::PinnedMemory pinned_;
};

}  // namespace

void measure_sampling(const Bench& bench, Report& report, const std::vector<std::string>& defines, int64_t vocab,
                      int64_t hidden, std::span<const int64_t> row_counts) {
  for (const int64_t rows : row_counts) {
    Sampling sampling(bench, report, defines, vocab, rows);
    sampling.head(defines, hidden);
    for (const Kind& kind : kinds) sampling.in_the_step(kind);
    sampling.copied();
    for (const Kind& kind : kinds) sampling.on_the_host(kind);
  }
}

}  // namespace tandem::bench
