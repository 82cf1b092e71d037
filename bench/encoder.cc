// How fast the EXL3 encoder is, in this thread's own processor time: candidates a second of the trellis search for
// several widths, against the machine's rate of the same three instructions on registers, measured in turn with it; and
// the time of one expert of a model, from which that of all its routed experts on N cores follows.
//   encoder [MODEL] [--threads N] [--rounds N] [--simd scalar|avx2|avx512] [--json]
// --threads: the cores that the estimate divides by. Everything is measured on one.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common.h"
#include "model/shape.h"
#include "quant/exl3_encode.h"
#include "quant/exl3_viterbi.h"
#include "quant/exl3_viterbi_levels.h"

namespace tandem {
namespace {

using bench::median;
using Json = nlohmann::ordered_json;

constexpr std::array<int, 8> widths = {1, 2, 3, 4, 5, 6, 7, 8};
constexpr double target = 0.4;  // of the machine's rate, for the widths below
constexpr bool has_target(int bits) { return bits == 2 || bits == 3 || bits == 4 || bits == 6; }
constexpr int64_t tiles = 8;
constexpr int64_t steps = 2 * 256;                     // of a tile: both passes
constexpr int64_t candidates = tiles * steps * 65536;  // of one sample
constexpr int64_t register_rounds = 4'000'000;

// Nearly normal, RMS 1.2: what a regularised matrix looks like.
std::vector<float> weights(int64_t count) {
  uint64_t state = 7;
  std::vector<float> values(static_cast<size_t>(count));
  for (float& w : values) {
    double sum = -2;
    for (int draw = 0; draw < 4; ++draw) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      sum += static_cast<double>(state >> 11) * 0x1p-53;
    }
    w = static_cast<float>(sum * 2.08);
  }
  return values;
}

struct Search {
  int bits;
  std::vector<double> per_second, share;  // candidates; of the machine's rate just before
};

struct Machine {
  std::vector<double> per_second;
  double measure() {
    volatile float sink = 0;
    const double time = bench::seconds([&] { sink = quant::exl3_kernels().rounds(register_rounds); }, bench::own_ms);
    per_second.push_back(static_cast<double>(register_rounds * quant::exl3_round) / time);
    return per_second.back();
  }
};

struct Expert {
  const char* search;
  quant::Exl3ScaleSearch setting;
  double seconds = 0;  // of gate, up and down
};

double expert_seconds(const model::Shape& shape, quant::Exl3ScaleSearch search) {
  device::Threads one(1);
  const int64_t hidden = shape.hidden_size, inner = shape.moe_intermediate_size;
  const std::vector<float> w = weights(hidden * inner);
  quant::Exl3EncodeSettings settings;
  settings.scale_search = search;
  const quant::Exl3Hessian up("up", hidden, 1), down("down", inner, 1);
  const auto time = [&](int64_t out, int64_t in, const quant::Exl3Hessian& hessian) {
    return bench::seconds([&] { quant::exl3_encode("expert", w.data(), out, in, hessian, settings, one); },
                          bench::own_ms);
  };
  return 2 * time(inner, hidden, up) + time(hidden, inner, down);
}

const char* level_name() {
  switch (quant::exl3_level()) {
    case quant::Exl3Level::scalar: return "scalar";
    case quant::Exl3Level::avx2: return "AVX2";
    case quant::Exl3Level::avx512: return "AVX-512";
  }
  return "?";
}

void use_level(ops::SimdLevel level) {
  quant::Exl3Level wanted = quant::Exl3Level::scalar;
  if (level == ops::SimdLevel::avx2) wanted = quant::Exl3Level::avx2;
  if (level == ops::SimdLevel::avx512) wanted = quant::Exl3Level::avx512;
  if (quant::exl3_level_available(wanted)) quant::use_exl3_level(wanted);
}

void run(const bench::Options& options) {
  use_level(ops::kernels().level);
  const model::Shape shape = model::read_shape(options.model);
  const int cores = options.threads > 0 ? options.threads : device::Threads(0).count();
  const std::vector<float> tile_weights = weights(tiles * 256);
  std::vector<uint16_t> states(tile_weights.size());
  std::vector<Search> searches;
  for (const int bits : widths) searches.push_back({bits, {}, {}});
  Machine machine;
  for (int round = 0; round < options.rounds; ++round) {
    for (Search& search : searches) {
      quant::Exl3Viterbi viterbi(quant::Exl3Codebook::mcg, search.bits);
      viterbi.encode(tile_weights.data(), 2, states.data());  // touches its memory
      const double before = machine.measure();
      const double time =
          bench::seconds([&] { viterbi.encode(tile_weights.data(), tiles, states.data()); }, bench::own_ms);
      search.per_second.push_back(static_cast<double>(candidates) / time);
      search.share.push_back(search.per_second.back() / std::max(before, machine.measure()));
    }
  }
  std::array<Expert, 2> experts = {Expert{"full", quant::Exl3ScaleSearch::full},
                                   Expert{"small", quant::Exl3ScaleSearch::small}};
  for (Expert& expert : experts) expert.seconds = expert_seconds(shape, expert.setting);
  const int64_t layers =
      std::count(shape.mlp_layer_types.begin(), shape.mlp_layer_types.end(), model::FeedForwardKind::moe) +
      shape.num_nextn_predict_layers;
  const int64_t count = layers * shape.n_routed_experts;

  if (options.json) {
    Json out{{"schema", "tandem.bench.encoder/1"}, {"simd", level_name()}, {"register_candidates", machine.per_second}};
    for (const Search& s : searches)
      out["search"].push_back({{"bits", s.bits}, {"candidates", s.per_second}, {"share", s.share}});
    for (const Expert& e : experts)
      out["expert"].push_back({{"scale_search", e.search}, {"seconds", e.seconds}, {"experts", count}});
    fmt::print("{}\n", out.dump(1));
    return;
  }
  fmt::print("{}, one thread, processor time, median of {} rounds; {:.1f} G candidates/s in registers\n\n",
             level_name(), options.rounds, median(machine.per_second) / 1e9);
  fmt::print("{:>4} {:>16} {:>14} {:>10}  {}\n", "bits", "G candidates/s", "of registers", "ms a tile", "target");
  for (const Search& s : searches) {
    const double share = median(s.share), rate = median(s.per_second);
    fmt::print("{:4} {:16.1f} {:13.0f}% {:10.2f}  {}\n", s.bits, rate / 1e9, 100 * share,
               1e3 * static_cast<double>(steps * 65536) / rate,
               has_target(s.bits) ? fmt::format("{:.0f}% {}", 100 * target, share >= target ? "met" : "MISSED") : "");
  }
  fmt::print("\n{}: {} routed experts of 3 matrices, 4 bits\n",
             std::filesystem::path(options.model).filename().string(), count);
  for (const Expert& e : experts)
    fmt::print("  {:<5} scale search: {:6.2f} s an expert, {:5.1f} minutes on {} cores\n", e.search, e.seconds,
               e.seconds * static_cast<double>(count) / cores / 60, cores);
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) {
  const tandem::bench::Options options = tandem::bench::parse(argc, argv, 5);
  return tandem::bench::run("encoder", [&] { tandem::run(options); });
}
