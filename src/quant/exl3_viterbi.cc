// Passes, the way back, and the choice of the level; the inner loops are in exl3_viterbi.inl.h.
#include "quant/exl3_viterbi.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "base/error.h"
#include "quant/exl3_viterbi_levels.h"

namespace tandem::quant {

namespace scalar {
extern const Exl3Kernels kernels;
}
#if defined(__x86_64__)
namespace avx2 {
extern const Exl3Kernels kernels;
}
namespace avx512 {
extern const Exl3Kernels kernels;
}
#endif

namespace {

std::atomic<Exl3Level>& current() {
  static std::atomic<Exl3Level> level{exl3_level_available(Exl3Level::avx512) ? Exl3Level::avx512
                                      : exl3_level_available(Exl3Level::avx2) ? Exl3Level::avx2
                                                                              : Exl3Level::scalar};
  return level;
}

}  // namespace

bool exl3_level_available(Exl3Level level) {
  switch (level) {
    case Exl3Level::scalar: return true;
#if defined(__x86_64__)
    case Exl3Level::avx2: return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    case Exl3Level::avx512: return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("fma");
#endif
    default: return false;
  }
}

Exl3Level exl3_level() { return current().load(std::memory_order_relaxed); }
void use_exl3_level(Exl3Level level) { current() = level; }

const Exl3Kernels& exl3_kernels() {
  switch (exl3_level()) {
#if defined(__x86_64__)
    case Exl3Level::avx2: return avx2::kernels;
    case Exl3Level::avx512: return avx512::kernels;
#endif
    default: return scalar::kernels;
  }
}

const float* exl3_step_table(Exl3Codebook codebook, int bits, int lanes) {
  static std::mutex mutex;
  static std::map<std::tuple<Exl3Codebook, int, int>, std::vector<float>> tables;  // 256 KiB each; nodes stay in place
  const std::lock_guard lock(mutex);
  std::vector<float>& table = tables[{codebook, bits, lanes}];
  if (table.empty()) {
    const float* values = exl3_values(codebook);
    table.resize(exl3_states);
    for (uint32_t state = 0; state < exl3_states; ++state)
      table[static_cast<size_t>(exl3_table_place(bits, lanes, state))] = values[state];
  }
  return table.data();
}

Exl3Viterbi::Exl3Viterbi(Exl3Codebook codebook, int bits)
    : bits_(bits), edges_(int64_t{1} << (16 - bits)), kernels_(&exl3_kernels()) {
  if (bits < 1 || bits > exl3_max_bits)
    throw Error(ErrorCode::internal, "EXL3 search", std::to_string(bits) + " bits a weight", "1 to 8");
  table_ = exl3_step_table(codebook, bits, kernels_->lanes);
  // Arrays lie an odd number of cache lines apart, or all would share the same cache sets.
  constexpr int64_t line = 64 / sizeof(float), skew = 5 * line;
  const int64_t one = edges_ + skew, many = (exl3_tile_weights / exl3_trace_steps(bits) + 1) * edges_ + skew;
  memory_ = std::make_unique_for_overwrite<float[]>(static_cast<size_t>(exl3_step_tiles * (2 * one + many) + line));
  const auto address = reinterpret_cast<uintptr_t>(memory_.get());
  float* next = memory_.get() + (64 - address % 64) % 64 / sizeof(float);
  for (int tile = 0; tile < exl3_step_tiles; ++tile) {
    for (float*& costs : passing_[tile]) {
      costs = next;
      next += one;
    }
    kept_[tile] = next;
    next += many;
  }
}

float* Exl3Viterbi::costs(int tile, const Pass& pass, int step) const {
  const int from_start = step - (pass.count - pass.kept), stretch = exl3_trace_steps(bits_);
  if (from_start < 0 || from_start % stretch != 0) return passing_[tile][step % 2];
  return kept_[tile] + from_start / stretch * edges_;
}

void Exl3Viterbi::start(int tile, const Pass& pass, int64_t edge) {
  float* const before = costs(tile, pass, 0);
  std::fill_n(before, edges_, edge < 0 ? 0.0f : std::numeric_limits<float>::infinity());
  if (edge >= 0) before[edge] = 0;
}

void Exl3Viterbi::forward(const float* const* tiles, const Pass& pass) {
  for (int i = 0; i < pass.count; ++i) {
    const int p = (pass.first + i) % exl3_tile_weights;
    const float* before[exl3_step_tiles] = {costs(0, pass, i), costs(1, pass, i)};
    float* after[exl3_step_tiles] = {costs(0, pass, i + 1), costs(1, pass, i + 1)};
    const float weights[exl3_step_tiles] = {tiles[0][p], tiles[1][p]};
    kernels_->step[bits_ - 1](table_, before, weights, after);
  }
}

uint32_t Exl3Viterbi::cheapest(int tile, const Pass& pass) const {
  const float* const after = costs(tile, pass, pass.count);
  return static_cast<uint32_t>(std::min_element(after, after + edges_) - after);
}

uint32_t Exl3Viterbi::trace(int tile, const float* weights, const Pass& pass, uint32_t edge, uint16_t* states) const {
  const int stretch = exl3_trace_steps(bits_);
  for (int step = pass.count - stretch; step >= pass.count - pass.kept; step -= stretch) {
    const int p = (pass.first + step) % exl3_tile_weights;  // stretches do not cross the end of the ring
    edge = kernels_->trace[bits_ - 1](table_, costs(tile, pass, step), weights + p, edge, states + p);
  }
  return edge;
}

// A last tile without a partner is searched twice.
template <class Body>
void Exl3Viterbi::by_pairs(const float* tiles, int64_t count, uint16_t* states, const Body& body) {
  for (int64_t i = 0; i < count; i += exl3_step_tiles) {
    const int here = static_cast<int>(std::min<int64_t>(exl3_step_tiles, count - i));
    const float* const first = tiles + i * exl3_tile_weights;
    const float* pair[exl3_step_tiles] = {first, here == 2 ? first + exl3_tile_weights : first};
    body(pair, here, states + i * exl3_tile_weights);
  }
}

void Exl3Viterbi::encode(const float* tiles, int64_t count, uint16_t* states) {
  // Half a ring before weight 0 and half a ring from it on decide the edge at which the ring starts. Paths merge
  // slowly: 64 and 64 weights choose another edge in a third of the tiles at 4 bits, for 0.25 % more error.
  constexpr int half = exl3_tile_weights / 2;
  const Pass opening{half, 2 * half, half};
  const Pass ring{0, exl3_tile_weights, exl3_tile_weights};
  by_pairs(tiles, count, states, [&](const float* const* pair, int here, uint16_t* out) {
    for (int i = 0; i < exl3_step_tiles; ++i) start(i, opening, -1);
    forward(pair, opening);
    uint16_t unused[exl3_tile_weights];
    uint32_t edges[exl3_step_tiles] = {};
    for (int i = 0; i < exl3_step_tiles; ++i) edges[i] = trace(i, pair[i], opening, cheapest(i, opening), unused);
    // Only paths that enter weight 0 through that edge are finite; the way back starts from it too.
    for (int i = 0; i < exl3_step_tiles; ++i) start(i, ring, edges[i]);
    forward(pair, ring);
    for (int i = 0; i < here; ++i) trace(i, pair[i], ring, edges[i], out + i * exl3_tile_weights);
  });
}

void Exl3Viterbi::encode_open(const float* tiles, int64_t count, uint16_t* states) {
  const Pass open{0, exl3_tile_weights, exl3_tile_weights};
  by_pairs(tiles, count, states, [&](const float* const* pair, int here, uint16_t* out) {
    for (int i = 0; i < exl3_step_tiles; ++i) start(i, open, -1);
    forward(pair, open);
    for (int i = 0; i < here; ++i) trace(i, pair[i], open, cheapest(i, open), out + i * exl3_tile_weights);
  });
}

}  // namespace tandem::quant
