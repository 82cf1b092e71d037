// What the benchmarks of the CPU share: their arguments, and what the machine can do, measured in the same run.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "device/threads.h"
#include "forward/cost.h"
#include "ops/simd/kernels.h"

namespace tandem::bench {

struct Options {
  std::string model = std::string(TANDEM_SOURCE_DIR) + "/models/nano";
  int threads = 0, rounds = 0;
  bool json = false;
};

// --simd: the instruction set that kernels use; by default the machine's best.
inline void use_simd(const std::string& name) {
  for (const auto& [known, level] : {std::pair{"scalar", ops::SimdLevel::scalar},
                                     {"neon", ops::SimdLevel::neon},
                                     {"avx2", ops::SimdLevel::avx2},
                                     {"avx512", ops::SimdLevel::avx512}}) {
    if (name != known) continue;
    if (ops::simd_level_available(level)) return ops::use_simd_level(level);
  }
  fmt::print(stderr, "--simd {}: not an instruction set of this machine\n", name);
  std::exit(2);
}

// [MODEL] [--threads N] [--rounds N] [--simd LEVEL] [--json]
inline Options parse(int argc, char** argv, int default_rounds) {
  Options options;
  options.rounds = default_rounds;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--json") {
      options.json = true;
    } else if (argument == "--threads" && i + 1 < argc) {
      options.threads = std::atoi(argv[++i]);
    } else if (argument == "--rounds" && i + 1 < argc) {
      options.rounds = std::max(1, std::atoi(argv[++i]));
    } else if (argument == "--simd" && i + 1 < argc) {
      use_simd(argv[++i]);
    } else {
      options.model = argument;
    }
  }
  return options;
}

// Runs body and returns the exit status.
template <typename Body>
int run(const char* name, const Body& body) {
  try {
    body();
  } catch (const std::exception& e) {
    fmt::print(stderr, "{}: {}\n", name, e.what());
    return 1;
  }
  return 0;
}

inline double wall_ms() {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
// Processor time of this thread: what else the machine does is not in it. Right for work on this thread alone.
inline double own_ms() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return 1e3 * static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_nsec);
}
using NowMs = double (*)();

template <typename Body>
double seconds(const Body& body, NowMs now_ms = wall_ms) {
  const double start = now_ms();
  body();
  return (now_ms() - start) / 1000;
}

inline double quantile(std::vector<double> samples, double q) {
  std::sort(samples.begin(), samples.end());
  return samples[static_cast<size_t>(std::lround(q * static_cast<double>(samples.size() - 1)))];
}
inline double median(const std::vector<double>& samples) { return quantile(samples, 0.5); }

// Samples of the fp32 multiply-add rate of all threads in registers, and of their rate of reading `bytes` bytes.
class Machine {
 public:
  explicit Machine(int64_t bytes) : set_(static_cast<size_t>(bytes), std::byte{1}) {}

  // `threads` must be idle.
  void measure(device::Threads& threads, NowMs now_ms = wall_ms) {
    const int64_t rounds = 2'000'000, pieces = 64, size = static_cast<int64_t>(set_.size()) / pieces, repeats = 4;
    std::vector<float> sums(static_cast<size_t>(threads.count()));
    std::vector<uint64_t> sink(static_cast<size_t>(pieces));
    const double multiplying = seconds(
        [&] {
          threads.run(threads.count(),
                      [&](int64_t i) { sums[static_cast<size_t>(i)] = ops::kernels().fma_rounds(rounds); });
        },
        now_ms);
    const double reading = seconds(
        [&] {
          for (int64_t repeat = 0; repeat < repeats; ++repeat) {
            threads.run(pieces, [&](int64_t i) {
              sink[static_cast<size_t>(i)] = ops::kernels().read_bytes(set_.data() + i * size, size);
            });
          }
        },
        now_ms);
    fma_per_second.push_back(static_cast<double>(rounds * ops::fma_round * threads.count()) / multiplying);
    bytes_per_second.push_back(static_cast<double>(pieces * size * repeats) / reading);
  }
  // The larger of the step's bytes over the one rate and its multiply-adds over the other, in seconds.
  double floor_of(const forward::Cost& cost) const {
    return std::max(static_cast<double>(cost.bytes()) / median(bytes_per_second),
                    static_cast<double>(cost.multiply_adds) / median(fma_per_second));
  }

  std::vector<double> fma_per_second, bytes_per_second;

 private:
  std::vector<std::byte> set_;
};

}  // namespace tandem::bench
