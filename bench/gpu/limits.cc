// What the GPU can do at the most, measured in the same run as what is compared with it.
#include <fmt/format.h>

#include <array>

#include "benchmarks.h"
#include "device/rates_args.h"
#include "ops/linear/linear_cuda.h"

namespace tandem::bench {
namespace {

// Of an H200 with 132 multiprocessors at its highest clock; the matrix rate is what a library's best product reached on
// one (spec/performance.md), a lead where nothing better was measured here.
constexpr double known_matrix_rate = 790e6;  // operations a microsecond
constexpr double fp32_of_multiprocessor = 128 * 2 * 1980.0;

}  // namespace

void measure_limits(Bench& bench, Report& report, const std::vector<std::string>& defines, int64_t most_bytes,
                    int64_t matrix_size) {
  device::Gpu& gpu = bench.gpu();
  const auto kernel = [&](const char* name) { return gpu.load({"device/rates.cu", name, defines}); };
  const device::Kernel fill = kernel("fill_random"), read = kernel("read_stream"), nothing = kernel("do_nothing");
  const auto blocks = static_cast<uint32_t>(gpu.properties().multiprocessors * 8);
  bench.fp32_rate = gpu.properties().multiprocessors * fp32_of_multiprocessor;
  bench.matrix_rate = known_matrix_rate;

  const Timing empty = bench.graph(256, [&] {
    for (int i = 0; i < 256; ++i) gpu.launch({.kernel = nothing}, device::NothingArgs{0});
  });
  bench.launch_us = empty.median();
  report.add("limits", "empty kernel in a graph", 0, empty);

  const device::GpuMemory memory = gpu.allocate(most_bytes, "a stream"), word = gpu.allocate(256, "its sum");
  gpu.launch({.kernel = fill, .grid = {blocks, 1, 1}, .threads = 256},
             device::FillRandomArgs{memory.as<uint32_t>(), most_bytes / 4, 1, 0x80ff80ffu, 0x3c003c00u});
  const auto rate = [](double bytes, double us) { return fmt::format("{:.2f} TB/s", bytes / us / 1e6); };
  // Small streams take turns over the memory, so that none is found in the cache.
  std::vector<int64_t> sizes;
  for (int64_t size = int64_t{1} << 20; size <= most_bytes / 8; size *= 2) sizes.push_back(size);
  sizes.push_back(most_bytes);
  for (const int64_t size : sizes) {
    const int64_t count = std::clamp<int64_t>(most_bytes / size, 1, 64);
    const int64_t stride = most_bytes / count / 256 * 256;
    const Timing timing = bench.graph(count, [&] {
      for (int64_t i = 0; i < count; ++i)
        gpu.launch({.kernel = read, .grid = {blocks, 1, 1}, .threads = 256},
                   device::ReadStreamArgs{memory.as<uint8_t>() + i * stride, size / 16, word.as<uint32_t>()});
    });
    const auto bytes = static_cast<double>(size);
    bench.read_rate = bytes / timing.median();
    report.add("limits", fmt::format("read {} MB", size >> 20), 0, timing,
               {{"bytes", size}, {"rate", rate(bytes, timing.median())}});
  }
  const int64_t half = most_bytes / 2;
  const Timing copied = bench.queued(1, [&] { gpu.copy(memory.data() + half, memory.data(), half); });
  report.add("limits", fmt::format("copy {} MB", half >> 20), 0, copied,
             {{"bytes", 2 * half}, {"rate", rate(2.0 * static_cast<double>(half), copied.median())}});

  const ops::CudaLinear linear(gpu, defines);
  const int64_t n = matrix_size;
  const device::GpuMemory w = gpu.allocate(n * n * 2, "a matrix"), x = gpu.allocate(n * n * 2, "rows"),
                          y = gpu.allocate(n * n * 2, "a product"), count = gpu.allocate(256, "rows");
  for (const device::GpuMemory* of : {&w, &x})
    gpu.launch({.kernel = fill, .grid = {blocks, 1, 1}, .threads = 256},
               device::FillRandomArgs{of->as<uint32_t>(), n * n / 2, 2, 0x80ff80ffu, 0x3c003c00u});
  const auto rows = static_cast<int32_t>(n);
  gpu.upload(count.data(), &rows, 4);
  gpu.synchronize();
  const std::array call{
      ops::CudaLinearCall{{w.as<device::bf16>(), rows, rows, rows, rows}, x.as<device::bf16>(), n, y.data(), n, false}};
  const Timing product = bench.graph(1, [&] { linear.run(call, count.as<int32_t>(), n); });
  const double operations = 2.0 * static_cast<double>(n * n) * static_cast<double>(n);
  report.add("limits", fmt::format("our linear {0}x{0}, {0} rows", n), n, product,
             {{"operations", operations},
              {"floor_us", operations / bench.matrix_rate},
              {"rate", fmt::format("{:.0f} TFLOP/s", operations / product.median() / 1e6)}});
}

}  // namespace tandem::bench
