// Writes raw index rows and pools the finished ones on the CPU.
#include <algorithm>
#include <array>

#include "base/error.h"
#include "ops/index/index_store.h"
#include "ops/norm/norm.h"
#include "ops/simd/kernels.h"

namespace tandem::ops {
namespace {

constexpr int64_t piece = 64;  // channels at a time

// Channels d … d + n − 1 of pool_keys(), n ≤ piece, to out[0 … n).
void pool_piece(const float* const* keys, const float* const* gates, const float* ape, int64_t kpool, int64_t dim,
                int64_t d, int64_t n, float* out) {
  const Kernels& k = kernels();
  float weight[max_kpool * piece], largest[piece], sum[piece];
  for (int64_t j = 0; j < kpool; ++j) {
    float* w = weight + j * piece;
    k.add(gates[j] + d, ape + j * dim + d, n, w);
    for (int64_t i = 0; i < n; ++i) largest[i] = j == 0 ? w[i] : std::max(largest[i], w[i]);
  }
  for (int64_t j = 0; j < kpool; ++j) {
    float* w = weight + j * piece;
    k.subtract(w, largest, n, w);
    k.exp(w, n, w);
    for (int64_t i = 0; i < n; ++i) sum[i] = j == 0 ? w[i] : sum[i] + w[i];
  }
  for (int64_t i = 0; i < n; ++i) {
    float total = 0.0f;
    for (int64_t j = 0; j < kpool; ++j) total += weight[j * piece + i] / sum[i] * keys[j][d + i];
    out[i] = total;
  }
}

// Plain values piece by piece; a record that the whole key makes, as one.
void store_pool(const IndexStore& a, const float* const* keys, const float* const* gates, int64_t pool) {
  constexpr int64_t widest = 1024;  // of keys in such a record (quant/cache_records.h)
  float key[widest];
  const bool plain = is_plain(a.pooled.element);
  for (int64_t d = 0; d < a.dim; d += piece) {
    const int64_t n = std::min(piece, a.dim - d);
    pool_piece(keys, gates, a.ape, a.kpool, a.dim, d, n, plain ? key : key + d);
    if (plain) a.pooled.store(pool, d, n, key);
  }
  if (!plain) a.pooled.store(pool, key);
}

}  // namespace

void index_key_norm(const float* x, const float* weight, const float* bias, int64_t dim, float* y) {
  constexpr float eps = 1e-6f;
  layer_norm(x, weight, bias, eps, dim, y);
}

void pool_keys(const float* const* keys, const float* const* gates, const float* ape, int64_t kpool, int64_t dim,
               float* out) {
  for (int64_t d = 0; d < dim; d += piece)
    pool_piece(keys, gates, ape, kpool, dim, d, std::min(piece, dim - d), out + d);
}

void index_store(device::Threads& threads, const IndexStore& a) {
  if (a.kpool > max_kpool) throw Error(ErrorCode::internal, "index_store", "index_kpool too large");
  const int64_t mask = a.ring_rows - 1;
  const int64_t end = a.position + a.rows;
  const int64_t first_pool = a.position / a.kpool, last_pool = end / a.kpool;  // pools completed by these rows
  const int64_t pools_of_task = 8;
  threads.run((last_pool - first_pool + pools_of_task - 1) / pools_of_task, [&](int64_t task) {
    const int64_t stop = std::min(last_pool, first_pool + (task + 1) * pools_of_task);
    for (int64_t pool = first_pool + task * pools_of_task; pool < stop; ++pool) {
      if (!a.pooled.holds(pool)) continue;
      std::array<const float*, max_kpool> keys{}, gates{};
      for (int64_t j = 0; j < a.kpool; ++j) {
        const int64_t p = pool * a.kpool + j;
        const bool here = p >= a.position;
        const int64_t offset = (here ? p - a.position : p & mask) * a.dim;
        keys[static_cast<size_t>(j)] = (here ? a.key : a.ring_key) + offset;
        gates[static_cast<size_t>(j)] = (here ? a.gate : a.ring_gate) + offset;
      }
      store_pool(a, keys.data(), gates.data(), pool);
    }
  });
  for (int64_t row = std::max<int64_t>(0, a.rows - a.ring_rows); row < a.rows; ++row) {
    const int64_t at = ((a.position + row) & mask) * a.dim;
    std::copy_n(a.key + row * a.dim, a.dim, a.ring_key + at);
    std::copy_n(a.gate + row * a.dim, a.dim, a.ring_gate + at);
  }
}

}  // namespace tandem::ops
