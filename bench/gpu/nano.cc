// The bundled model: what a user sees on the smallest real checkpoint, where launches rather than bytes take the time.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>

#include "benchmarks.h"
#include "engine/sampler.h"
#include "forward/gpu_model.h"
#include "model/checkpoint.h"
#include "model/weights.h"
#include "operations.h"

namespace tandem::bench {
namespace {

using Clock = std::chrono::steady_clock;

double microseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

struct Nano {
  model::Shape shape;
  model::Checkpoint checkpoint;
  model::TextWeights weights;

  explicit Nano(const std::filesystem::path& source)
      : shape(model::read_shape(source / "models/nano")),
        checkpoint(model::Checkpoint::open(source / "models/nano")),
        weights(model::load_text_weights(checkpoint, shape)) {}
};

constexpr int32_t pages_of_stream = 16;

forward::Capacity capacity_for(int32_t slots, int32_t max_rows) {
  forward::Capacity c;
  c.slots = slots;
  c.pages = 1 + slots * pages_of_stream;
  c.max_stream_pages = pages_of_stream;
  c.max_rows = max_rows;
  c.max_logit_rows = slots;
  c.cache_type = forward::CacheType::bf16;
  return c;
}

// Steps of `streams` streams that all stand at `position`, so many rows each.
forward::Step rows_of(int32_t streams, int32_t rows, int64_t position) {
  forward::Step step;
  for (int32_t stream = 0; stream < streams; ++stream) {
    const int32_t first = stream * rows;
    step.segments.push_back({stream, stream * pages_of_stream, pages_of_stream, first, rows, rows, position, 0});
    for (int32_t i = 0; i < rows; ++i) {
      step.tokens.push_back(static_cast<int32_t>((position + i) * 7919 % 1900));
      step.positions.push_back(position + i);
    }
    for (int32_t page = 0; page < pages_of_stream; ++page)
      step.page_tables.push_back(1 + stream * pages_of_stream + page);
    step.logit_rows.push_back(first + rows - 1);
  }
  return step;
}

// Of a decode step's launches: all in order without the host, and those of each operation one after the other.
void measure_launches(const Bench& bench, Report& report, const Nano& nano, int32_t streams, int64_t prompt) {
  TracedGpu gpu(bench.gpu());
  forward::GpuModel model(gpu, nano.shape, nano.weights, capacity_for(streams, static_cast<int32_t>(streams * prompt)),
                          {}, {.graphs = false});
  model.run(rows_of(streams, static_cast<int32_t>(prompt), 0));
  gpu.trace();
  model.run(rows_of(streams, 1, prompt));
  const std::vector<TracedLaunch> launches = gpu.take();
  const Timing step = bench.graph(1, [&] {
    for (const TracedLaunch& one : launches) gpu.repeat(one);
  });
  // Kernels of one operation stay together: each reads what the one before it left.
  std::map<std::string, std::vector<const TracedLaunch*>> kernels;
  const std::vector<Operation> operations = operations_of(launches, {});
  for (const Operation& of : operations) {
    const TracedLaunch& first = of.launches.front();
    const bool linear = first.kernel.source.starts_with("ops/linear/");
    for (const TracedLaunch& one : of.launches) kernels[linear ? first.kernel.name : of.name].push_back(&one);
  }
  double sum = 0;
  nlohmann::json list;
  std::string largest;
  double most = 0;
  for (const auto& [name, of] : kernels) {
    const std::vector<const TracedLaunch*>& list_of_kernel = of;  // clang 14 captures no structured binding
    const Timing timing = bench.graph(1, [&] {
      for (const TracedLaunch* one : list_of_kernel) gpu.repeat(*one);
    });
    sum += timing.median();
    list.push_back({{"name", name}, {"launches", of.size()}, {"us", timing.median()}});
    if (timing.median() > most) {
      most = timing.median();
      largest = fmt::format("{} ({} of them) {:.0f} us", name, of.size(), most);
    }
  }
  report.add(
      "nano", fmt::format("decode on the device, {} launches", launches.size()), streams, step,
      {{"sum_of_kernels_us", sum}, {"kernels", list}, {"rate", fmt::format("kernels {:.0f}; {}", sum, largest)}});
}

// A decoded token as a request with temperature and top_p gets it: its row's logits copied and sampled by the host, or
// its token alone. Streams stand at `position`.
void measure_sampled(Report& report, const Nano& nano, forward::GpuModel& model, int32_t streams, int64_t position,
                     int64_t steps) {
  const engine::SamplingParams params{.temperature = 1, .top_p = 0.95, .seed = 3};
  const auto vocab = static_cast<int32_t>(nano.shape.vocab_size);
  engine::Sampler sampler(vocab);
  for (const bool in_step : {false, true}) {
    Timing timing;
    const int64_t before = model.counts().result_bytes;
    for (int64_t i = 0; i < steps; ++i, ++position) {
      forward::Step step = rows_of(streams, 1, position);
      for (int32_t row = 0; in_step && row < streams; ++row)
        step.samples.push_back({.temperature = params.temperature,
                                .top_p = params.top_p,
                                .seed = params.seed,
                                .position = position + 1,
                                .row = row,
                                .size = vocab});
      const Clock::time_point start = Clock::now();
      model.run(step);
      for (int32_t row = 0; !in_step && row < streams; ++row)
        sampler.select(
            model.logits().subspan(static_cast<size_t>(row) * static_cast<size_t>(vocab), static_cast<size_t>(vocab)),
            params, position + 1, {vocab, {}});
      timing.samples.push_back(microseconds_since(start));
    }
    const int64_t bytes = (model.counts().result_bytes - before) / steps;
    report.add("nano", in_step ? "decode and sampling in the step" : "decode and sampling on the host", streams, timing,
               {{"result_bytes", bytes}, {"rate", fmt::format("{} bytes of results", bytes)}});
  }
}

}  // namespace

double start_nano(device::Gpu& gpu, const std::filesystem::path& folder) {
  const Clock::time_point start = Clock::now();
  const Nano nano(folder);
  const forward::GpuModel model(gpu, nano.shape, nano.weights, capacity_for(8, 512));
  return microseconds_since(start) / 1e6;
}

void measure_nano(const Bench& bench, Report& report, const std::filesystem::path& folder,
                  std::span<const int32_t> stream_counts, int64_t steps) {
  const Nano nano(folder);
  const int32_t prompt = static_cast<int32_t>(16 * steps);
  for (const int32_t streams : stream_counts) {
    forward::GpuModel model(bench.gpu(), nano.shape, nano.weights, capacity_for(streams, prompt * streams));
    Timing prefill, decode;
    for (int64_t i = 0; i < std::min<int64_t>(steps, 5); ++i) {
      const forward::Step step = rows_of(streams, prompt, 0);
      const Clock::time_point start = Clock::now();
      model.run(step);
      prefill.samples.push_back(microseconds_since(start));
    }
    for (int64_t i = 0; i < steps; ++i) {
      const forward::Step step = rows_of(streams, 1, prompt + i);
      const Clock::time_point start = Clock::now();
      model.run(step);
      decode.samples.push_back(microseconds_since(start));
    }
    const auto rate = [&](double tokens, const Timing& of) {
      return fmt::format("{:.0f} tokens/s", tokens * 1e6 / of.median());
    };
    report.add("nano", "prompt step, host time", int64_t{prompt} * streams, prefill,
               {{"rate", rate(prompt * streams, prefill)}});
    report.add("nano", "decode step, host time", streams, decode, {{"rate", rate(streams, decode)}});
    measure_sampled(report, nano, model, streams, prompt + steps, steps);
    measure_launches(bench, report, nano, streams, steps);
  }
}

}  // namespace tandem::bench
