// The block form of KDA on the CPU.
#include <algorithm>

#include "ops/kda_block/kda_block.h"
#include "ops/simd/kernels.h"

namespace tandem::ops {
namespace {

// One head of one layer while its rows run through.
struct Head {
  int64_t dim, width;  // width = heads·dim, the stride of log rows
  float *log_k, *log_g, *log_delta;
  int64_t log_rows;

  int64_t log_offset(int64_t position) const { return position % log_rows * width; }
};

// out = diag(exp(G_last)) s + Σ_j (k_j ∘ exp(G_last − G_j)) δ_jᵀ over the first `count` rows of the block at `start`.
void advance(const Head& h, const float* s, int64_t start, int64_t count, float* out) {
  const Kernels& kernel = kernels();
  float faded[kda_block_rows * max_kda_dim], decay[max_kda_dim];
  const float* k = h.log_k + h.log_offset(start);
  const float* g = h.log_g + h.log_offset(start);
  const float* last = g + (count - 1) * h.width;
  for (int64_t j = 0; j < count; ++j) kernel.decayed(k + j * h.width, last, g + j * h.width, h.dim, faded + j * h.dim);
  kernel.exp(last, h.dim, decay);
  CombineRows update;
  update.base = reinterpret_cast<const std::byte*>(h.log_delta + h.log_offset(start));
  update.base_stride = h.width * 4;
  update.count = count;
  update.dims = h.dim;
  update.x = faded;
  update.x_stride = 1;
  update.x_step = h.dim;
  update.rows = h.dim;
  update.init = s;
  update.init_stride = h.dim;
  update.init_scale = decay;
  update.out = out;
  update.out_stride = h.dim;
  kernel.combine_rows(update);
}

// What one row of one head reads and writes.
struct RowData {
  const float *q, *k, *v, *g;
  float beta;
  float* o;
};

void append_log(const Head& h, int64_t start, int64_t index, const RowData& row) {
  float* k = h.log_k + h.log_offset(start) + index * h.width;
  float* g = h.log_g + h.log_offset(start) + index * h.width;
  std::copy_n(row.k, h.dim, k);
  if (index == 0) {
    std::copy_n(row.g, h.dim, g);
  } else {
    kernels().add(g - h.width, row.g, h.dim, g);
  }
}

// δ and o of row `index`; from_state holds S₀ᵀ(exp(G) ∘ k) and, at from_state + dim, S₀ᵀ(exp(G) ∘ q).
void solve_row(const Head& h, int64_t start, int64_t index, const RowData& row, const float* from_state) {
  const Kernels& kernel = kernels();
  const float* k = h.log_k + h.log_offset(start);
  const float* g = h.log_g + h.log_offset(start);
  float* delta = h.log_delta + h.log_offset(start);
  float a[kda_block_rows], b[kda_block_rows], rest[max_kda_dim];
  kernel.kda_pairs(row.k, row.q, g + index * h.width, k, g, h.width, index, h.dim, a, b);
  for (int64_t j = 0; j < index; ++j) a[j] = -a[j];
  b[index] = kernel.dot(row.q, row.k, h.dim);
  kernel.subtract(row.v, from_state, h.dim, rest);
  CombineRows sum;
  sum.base = reinterpret_cast<const std::byte*>(delta);
  sum.base_stride = h.width * 4;
  sum.count = index;
  sum.dims = h.dim;
  sum.x = a;
  sum.rows = 1;
  sum.init = rest;
  sum.out = rest;
  kernel.combine_rows(sum);
  kernel.scale(rest, row.beta, h.dim, delta + index * h.width);
  sum.count = index + 1;
  sum.x = b;
  sum.init = from_state + h.dim;
  sum.out = row.o;
  kernel.combine_rows(sum);
}

// Rows first … last − 1 of the segment, all in the block at `start`, against the state s.
void block_rows(const KdaBlock& a, const Head& h, int64_t head, const float* s, int64_t start, int64_t first,
                int64_t last) {
  const Kernels& kernel = kernels();
  float scaled[2 * kda_block_rows * max_kda_dim], from_state[2 * kda_block_rows * max_kda_dim];
  const auto row_data = [&](int64_t row) {
    const int64_t at = row * h.width + head * h.dim;
    return RowData{a.q + at, a.k + at, a.v + at, a.g + at, a.beta[row * a.heads + head], a.o + at};
  };
  for (int64_t row = first; row < last; ++row) {
    const int64_t index = a.position + row - start;
    const RowData data = row_data(row);
    append_log(h, start, index, data);
    const float* g = h.log_g + h.log_offset(start) + index * h.width;
    kernel.decayed(data.k, g, nullptr, h.dim, scaled + 2 * (row - first) * h.dim);
    kernel.decayed(data.q, g, nullptr, h.dim, scaled + (2 * (row - first) + 1) * h.dim);
  }
  CombineRows apply;
  apply.base = reinterpret_cast<const std::byte*>(s);
  apply.base_stride = h.dim * 4;
  apply.count = h.dim;
  apply.dims = h.dim;
  apply.x = scaled;
  apply.x_stride = h.dim;
  apply.rows = 2 * (last - first);
  apply.out = from_state;
  apply.out_stride = h.dim;
  kernel.combine_rows(apply);
  for (int64_t row = first; row < last; ++row) {
    solve_row(h, start, a.position + row - start, row_data(row), from_state + 2 * (row - first) * h.dim);
  }
}

void run_head(const KdaBlock& a, int64_t head) {
  const int64_t width = a.heads * a.dim, size = a.dim * a.dim;
  const Head h{a.dim,
               width,
               a.state.log_k + head * a.dim,
               a.state.log_g + head * a.dim,
               a.state.log_delta + head * a.dim,
               a.state.log_rows};
  float* stored = a.state.s0 + head * size;
  float* working = a.working + head * size;
  const float* s = stored;
  const int64_t certain_end = a.position + a.certain_rows;
  int64_t block = a.state.block;
  for (int64_t row = 0; row < a.rows;) {
    const int64_t start = (a.position + row) / kda_block_rows * kda_block_rows;
    for (; block * kda_block_rows < start; ++block) {
      float* out = (block + 1) * kda_block_rows <= certain_end ? stored : working;
      advance(h, s, block * kda_block_rows, kda_block_rows, out);
      s = out;
    }
    const int64_t last = std::min(a.rows, start + kda_block_rows - a.position);
    block_rows(a, h, head, s, start, row, last);
    row = last;
  }
}

}  // namespace

int64_t kda_block_after(int64_t block, int64_t position, int64_t rows, int64_t certain_rows) {
  const int64_t last_row_block = (position + rows - 1) / kda_block_rows;
  const int64_t certain_block = (position + certain_rows) / kda_block_rows;
  return std::max(block, std::min(last_row_block, certain_block));
}

void kda_block(device::Threads& threads, const KdaBlock& args) {
  threads.run(args.heads, [&](int64_t head) { run_head(args, head); });
}

void kda_materialise(const KdaState& state, int64_t heads, int64_t dim, int64_t length, float* out) {
  for (int64_t head = 0; head < heads; ++head) {
    const Head h{
        dim,           heads * dim, state.log_k + head * dim, state.log_g + head * dim, state.log_delta + head * dim,
        state.log_rows};
    float* s = out + head * dim * dim;
    std::copy_n(state.s0 + head * dim * dim, dim * dim, s);
    for (int64_t start = state.block * kda_block_rows; start < length; start += kda_block_rows) {
      advance(h, s, start, std::min(kda_block_rows, length - start), s);
    }
  }
}

}  // namespace tandem::ops
