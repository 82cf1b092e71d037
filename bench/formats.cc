// What each weight format costs to multiply by, on the CPU: weights a second of a product with 1 row and with 8 rows
// over random matrices, all formats in turn in one run, against BF16 and against the machine's floor; once with weights
// that come from memory (all formats together exceed the last-level cache) and once with weights in the cache.
// Floors as in cpu_generate: bytes over the read rate or multiply-adds over their rate, whichever is larger; decoding
// and EXL3's transforms are not counted. With --threads 1 everything is in the thread's own processor time.
//   formats [--threads N] [--rounds N] [--simd scalar|neon|avx2|avx512] [--json]
#include <fmt/format.h>

#include <array>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "common.h"
#include "device/threads.h"
#include "forward/cost.h"
#include "ops/linear/linear.h"
#include "quant/exl3_codebook.h"

namespace tandem {
namespace {

using bench::median;
using ops::Matrix;
using ops::WeightFormat;
using quant::Exl3Codebook;
using Json = nlohmann::ordered_json;

constexpr std::array<int64_t, 2> row_counts = {1, 8};
// What EXL3 of 4 bits shall reach of BF16's rate with as many rows.
constexpr std::array<double, 2> exl3_targets = {0.25, 0.5};

// Where the weights are when a product begins. The two answer different questions: a large model's come from memory,
// which holds BF16 back and coded formats not; a small model's are in the cache.
struct Residence {
  const char* name;
  std::array<std::array<int64_t, 2>, 2> shapes;  // [out, in]
  int64_t read_bytes;                            // set whose read rate the floors use
  bool cached;                                   // each timed product follows one that is not
};
constexpr Residence residences[] = {
    {"memory", {{{2048, 4096}, {4096, 2048}}}, int64_t{192} << 20, false},
    {"cache", {{{512, 2048}, {1024, 1024}}}, int64_t{4} << 20, true},
};

struct Format {
  std::string name;
  WeightFormat format;
  int bits = 0;  // EXL3
  Exl3Codebook codebook = Exl3Codebook::mcg;

  bool has_target() const { return format == WeightFormat::exl3 && bits == 4; }
};

std::vector<Format> formats() {
  std::vector<Format> list = {{"F32", WeightFormat::f32},
                              {"BF16", WeightFormat::bf16},
                              {"FP8 blocks", WeightFormat::fp8_block},
                              {"NVFP4", WeightFormat::nvfp4}};
  for (int bits = 2; bits <= 6; ++bits)
    list.push_back({fmt::format("EXL3 {} bits mcg", bits), WeightFormat::exl3, bits, Exl3Codebook::mcg});
  list.push_back({"EXL3 4 bits mul1", WeightFormat::exl3, 4, Exl3Codebook::mul1});
  list.push_back({"EXL3 4 bits 3inst", WeightFormat::exl3, 4, Exl3Codebook::three_inst});
  return list;
}
constexpr size_t bf16_index = 1;

// splitmix64: the same matrices everywhere.
class Random {
 public:
  uint64_t bits() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  float uniform() { return static_cast<float>(static_cast<double>(bits() >> 11) * 0x1p-52 - 1.0); }  // [-1, 1)
  std::byte byte() { return static_cast<std::byte>(bits() >> 56); }

 private:
  uint64_t state_ = 5;
};

// A matrix in memory of its own. Copying would leave `view` pointing at the original.
struct Stored {
  Matrix view;
  std::vector<std::byte> data, scales, output_scales;

  Stored() = default;
  Stored(Stored&&) = default;
  Stored& operator=(Stored&&) = default;
  int64_t bytes() const { return static_cast<int64_t>(data.size() + scales.size() + output_scales.size()); }
};

std::vector<std::byte> random_bytes(Random& random, int64_t count) {
  std::vector<std::byte> bytes(static_cast<size_t>(count));
  for (std::byte& byte : bytes) byte = random.byte();
  return bytes;
}

// Values in [-1, 1); BF16 truncated.
std::vector<std::byte> plain_values(Random& random, int64_t count, size_t width) {
  std::vector<std::byte> bytes(static_cast<size_t>(count) * width);
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
    const uint32_t value = std::bit_cast<uint32_t>(random.uniform());
    const auto half = static_cast<uint16_t>(value >> 16);
    if (width == 4) std::memcpy(bytes.data() + 4 * i, &value, 4);
    if (width == 2) std::memcpy(bytes.data() + 2 * i, &half, 2);
  }
  return bytes;
}

std::vector<std::byte> fp16_signs(Random& random, int64_t count) {  // +1 or -1 each
  std::vector<std::byte> bytes(static_cast<size_t>(2 * count));
  for (size_t i = 1; i < bytes.size(); i += 2) bytes[i] = (random.byte() & std::byte{0x80}) | std::byte{0x3c};
  return bytes;
}

Stored make(Random& random, const Format& format, int64_t out, int64_t in) {
  Stored m;
  const int64_t count = out * in;
  m.view.format = format.format;
  m.view.out_features = out;
  m.view.in_features = m.view.leaf_columns = in;
  switch (format.format) {
    case WeightFormat::f32: m.data = plain_values(random, count, 4); break;
    case WeightFormat::bf16: m.data = plain_values(random, count, 2); break;
    case WeightFormat::fp8_block: {
      m.data = random_bytes(random, count);
      for (std::byte& code : m.data)
        if ((code & std::byte{0x7f}) == std::byte{0x7f}) code = std::byte{0};  // NaN
      m.scales.resize(static_cast<size_t>(count / (128 * 128) * 4));
      const float scale = 0.004f;
      for (size_t i = 0; i < m.scales.size(); i += 4) std::memcpy(m.scales.data() + i, &scale, 4);
      break;
    }
    case WeightFormat::nvfp4:
      m.data = random_bytes(random, count / 2);
      m.scales = random_bytes(random, count / 16);
      for (std::byte& scale : m.scales) scale = (scale & std::byte{0x3f}) | std::byte{1};  // positive, no NaN
      m.view.outer_scale = 0.1f;
      break;
    case WeightFormat::exl3:
      m.data = random_bytes(random, count * format.bits / 8);
      m.scales = fp16_signs(random, in);
      m.output_scales = fp16_signs(random, out);
      m.view.exl3.bits = format.bits;
      m.view.exl3.codebook = format.codebook;
      m.view.exl3.tile_stride = out / 16;
      m.view.exl3.suh = m.scales.data();
      m.view.exl3.svh = m.output_scales.data();
      break;
  }
  m.view.data = m.data.data();
  if (format.format != WeightFormat::exl3 && !m.scales.empty()) m.view.block_scales = m.scales.data();
  return m;
}

const char* level_name() {
  switch (ops::kernels().level) {
    case ops::SimdLevel::scalar: return "scalar";
    case ops::SimdLevel::neon: return "NEON";
    case ops::SimdLevel::avx2: return "AVX2";
    case ops::SimdLevel::avx512: return "AVX-512";
  }
  return "?";
}

std::array<double, 3> load_averages() {  // of 1, 5 and 15 minutes; 0 where the system does not say
  std::array<double, 3> loads{};
  if (getloadavg(loads.data(), 3) < 0) loads = {};
  return loads;
}

// All formats with weights of one residence.
class Comparison {
 public:
  Comparison(const Residence& residence, device::Threads& threads)
      : residence_(residence),
        threads_(threads),
        now_ms_(threads.count() == 1 ? bench::own_ms : bench::wall_ms),
        machine_(residence.read_bytes) {
    Random random;
    for (const Format& format : formats()) {
      std::vector<Stored> matrices;
      for (const auto& [out, in] : residence.shapes) matrices.push_back(make(random, format, out, in));
      measured_.push_back({format, std::move(matrices), {}});
    }
    for (float& x : x_) x = random.uniform();
  }

  void run(int round) {  // a negative one is a warm-up
    if (round >= 0) measure_machine();
    for (size_t rows = 0; rows < row_counts.size(); ++rows) {
      for (size_t turn = 0; turn < measured_.size(); ++turn) {
        Measured& one = measured_[(turn + static_cast<size_t>(round + 1)) % measured_.size()];
        const double time = time_of(one, row_counts[rows]);
        if (round >= 0) one.seconds[rows].push_back(time);
      }
    }
  }

  void print() const {
    fmt::print("\nweights from {}: {:.1f} G multiply-adds/s, {:.1f} GB/s reading {:.1f} MB\n", residence_.name,
               median(machine_.fma_per_second) / 1e9, median(machine_.bytes_per_second) / 1e9,
               static_cast<double>(residence_.read_bytes) / 1e6);
    for (size_t rows = 0; rows < row_counts.size(); ++rows) {
      fmt::print("\n{:<18} {:>12} {:>8} {:>8} {:>12} {:>9}  {}\n", fmt::format("rows: {}", row_counts[rows]),
                 "Gweights/s", "of BF16", "quick", "floor", "of floor", "target");
      for (const Measured& one : measured_) {
        const double floor = floor_seconds(one, rows), ratio = of_bf16(one, rows);
        fmt::print("{:<18} {:12.2f} {:7.0f}% {:7.0f}% {:12.2f} {:8.0f}%  {}\n", one.format.name, rate(one, rows) / 1e9,
                   100 * ratio, 100 * quick_of_bf16(one, rows), static_cast<double>(one.weights()) / floor / 1e9,
                   100 * floor / median(one.seconds[rows]), target(one, rows, ratio));
      }
    }
  }

  Json json() const {
    Json out{{"weights_from", residence_.name},
             {"fma_per_second", machine_.fma_per_second},
             {"read_bytes", residence_.read_bytes},
             {"read_bytes_per_second", machine_.bytes_per_second}};
    for (const Measured& one : measured_) {
      for (size_t rows = 0; rows < row_counts.size(); ++rows) {
        Json entry{{"format", one.format.name},
                   {"rows", row_counts[rows]},
                   {"weights", one.weights()},
                   {"bytes", one.bytes()},
                   {"seconds", one.seconds[rows]},
                   {"weights_per_second", rate(one, rows)},
                   {"of_bf16", of_bf16(one, rows)},
                   {"quick_of_bf16", quick_of_bf16(one, rows)},
                   {"floor_seconds", floor_seconds(one, rows)}};
        if (one.format.has_target()) entry["target_of_bf16"] = exl3_targets[rows];
        out["products"].push_back(entry);
      }
    }
    return out;
  }

 private:
  struct Measured {
    Format format;
    std::vector<Stored> matrices;
    std::array<std::vector<double>, row_counts.size()> seconds;  // [rows][round], of all matrices

    int64_t bytes() const {
      int64_t sum = 0;
      for (const Stored& m : matrices) sum += m.bytes();
      return sum;
    }
    int64_t weights() const {
      int64_t sum = 0;
      for (const Stored& m : matrices) sum += m.view.out_features * m.view.in_features;
      return sum;
    }
  };

  void measure_machine() {
    machine_.measure(threads_, now_ms_);
    if (!residence_.cached) return;
    machine_.fma_per_second.pop_back(), machine_.bytes_per_second.pop_back();  // that one brought the set in
    machine_.measure(threads_, now_ms_);
  }

  void multiply(const Measured& one, int64_t rows) {
    for (const Stored& m : one.matrices) ops::linear(threads_, m.view, x_.data(), y_.data(), rows);
  }

  double time_of(const Measured& one, int64_t rows) {
    if (residence_.cached) multiply(one, rows);
    const double time = bench::seconds([&] { multiply(one, rows); }, now_ms_);
    for (int64_t i = 0; i < rows * one.matrices.back().view.out_features; ++i)
      if (!std::isfinite(y_[static_cast<size_t>(i)]))
        throw Error(ErrorCode::internal, one.format.name, "a product that is not finite", "finite products");
    return time;
  }

  double rate(const Measured& one, size_t rows) const {  // weights a second
    return static_cast<double>(one.weights()) / median(one.seconds[rows]);
  }
  double of_bf16(const Measured& one, size_t rows) const { return rate(one, rows) / rate(measured_[bf16_index], rows); }
  // The same of the quick samples: what else the machine does is in the others.
  double quick_of_bf16(const Measured& one, size_t rows) const {
    return bench::quantile(measured_[bf16_index].seconds[rows], 0.1) / bench::quantile(one.seconds[rows], 0.1);
  }
  double floor_seconds(const Measured& one, size_t rows) const {
    forward::Cost cost;
    cost.weight_bytes = one.bytes();
    cost.multiply_adds = one.weights() * row_counts[rows];
    return machine_.floor_of(cost);
  }

  static std::string target(const Measured& one, size_t rows, double ratio) {
    if (!one.format.has_target()) return "";
    return fmt::format("{:.0f}% {}", 100 * exl3_targets[rows], ratio >= exl3_targets[rows] ? "met" : "MISSED");
  }

  const Residence& residence_;
  device::Threads& threads_;
  bench::NowMs now_ms_;
  bench::Machine machine_;
  std::vector<Measured> measured_;
  std::vector<float> x_ = std::vector<float>(8 * 4096), y_ = std::vector<float>(8 * 4096);  // most rows, widest side
};

void run(const bench::Options& options) {
  device::Threads threads(options.threads);
  const char* clock = threads.count() == 1 ? "processor" : "wall";
  std::vector<Comparison> comparisons;
  for (const Residence& residence : residences) comparisons.emplace_back(residence, threads);
  for (int round = -1; round < options.rounds; ++round)
    for (Comparison& comparison : comparisons) comparison.run(round);
  const std::array<double, 3> loads = load_averages();
  if (options.json) {
    Json out{{"schema", "tandem.bench.formats/1"},
             {"simd", level_name()},
             {"threads", threads.count()},
             {"clock", clock},
             {"load", loads}};
    for (const Comparison& comparison : comparisons) out["comparisons"].push_back(comparison.json());
    fmt::print("{}\n", out.dump(1));
    return;
  }
  fmt::print("{}, {} threads ({} time), load {:.1f} {:.1f} {:.1f}, median of {} rounds\n", level_name(),
             threads.count(), clock, loads[0], loads[1], loads[2], options.rounds);
  for (const Comparison& comparison : comparisons) comparison.print();
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) {
  const tandem::bench::Options options = tandem::bench::parse(argc, argv, 15);
  return tandem::bench::run("formats", [&] { tandem::run(options); });
}
