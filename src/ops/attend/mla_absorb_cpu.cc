// kv_b_proj on both sides of the latent attention, on the CPU; one task a head, tile of rows and piece of columns.
#include <algorithm>

#include "base/error.h"
#include "ops/attend/mla_absorb.h"
#include "ops/simd/kernels.h"

namespace tandem::ops {

void mla_absorb_query(device::Threads& threads, const MlaAbsorb& a, const float* q, float* out) {
  if (a.kv_b->format != WeightFormat::bf16 && a.kv_b->format != WeightFormat::f32)
    throw Error(ErrorCode::internal, "mla_absorb_query", "kv_b_proj is in a coded format", "BF16 or F32");
  const int64_t rank = a.kv_b->in_features, bytes = a.kv_b->format == WeightFormat::bf16 ? 2 : 4;
  const int64_t piece = 128, pieces = (rank + piece - 1) / piece;  // latent columns of a task
  const int64_t tiles = (a.rows + max_tile_rows - 1) / max_tile_rows;
  threads.run(a.heads * pieces * tiles, [&](int64_t task) {
    const int64_t head = task / (pieces * tiles), column = task / tiles % pieces * piece,
                  row = task % tiles * max_tile_rows;
    CombineRows c;
    c.base = a.kv_b->data + (head * (a.key_dim + a.value_dim) * rank + column) * bytes;
    c.base_stride = rank * bytes;
    c.bf16 = bytes == 2;
    c.count = a.key_dim;
    c.dims = std::min(piece, rank - column);
    c.x = q + (row * a.heads + head) * a.key_dim;
    c.x_stride = a.heads * a.key_dim;
    c.rows = std::min(max_tile_rows, a.rows - row);
    c.out = out + (row * a.heads + head) * rank + column;
    c.out_stride = a.heads * rank;
    kernels().combine_rows(c);
  });
}

void mla_expand_value(device::Threads& threads, const MlaAbsorb& a, const float* l, float* out) {
  const int64_t rank = a.kv_b->in_features;
  const int64_t piece = 64, pieces = (a.value_dim + piece - 1) / piece;
  const int64_t tiles = (a.rows + max_tile_rows - 1) / max_tile_rows;
  threads.run(a.heads * pieces * tiles, [&](int64_t task) {
    const int64_t head = task / (pieces * tiles), row = task % tiles * max_tile_rows;
    const int64_t first_row = head * (a.key_dim + a.value_dim) + a.key_dim;  // of Wv_h in kv_b
    MatmulTile t;
    t.w = a.kv_b;
    t.first_output = first_row + task / tiles % pieces * piece;
    t.last_output = std::min(t.first_output + piece, first_row + a.value_dim);
    t.last_column = rank;
    t.x = l + (row * a.heads + head) * rank;
    t.x_stride = a.heads * rank;
    t.rows = std::min(max_tile_rows, a.rows - row);
    t.y = out + (row * a.heads + head) * a.value_dim - first_row;  // y is indexed by the row in kv_b
    t.y_stride = a.heads * a.value_dim;
    kernels().matmul(t);
  });
}

}  // namespace tandem::ops
