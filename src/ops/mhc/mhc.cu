// Hyper-connections between two sub-layers (mhc_cuda.h says what is computed and where it is rounded).
//
// mhc_map: leave, and the mapping's product. A block has one piece of the columns (128 of every stream) of fn in
// registers and walks over tiles of 8 rows: half a warp makes a row's new streams, warp s multiplies stream s by its
// part of fn. Floor: streams read and written, y and the partial sums, (8 · hidden + hidden + hidden / 4) · 2 bytes a
// row, fn once: 0.2 µs at one row, 19 ns a row of 4096.
// mhc_enter: adds the pieces in order, then one block a row collapses and norms (streams read, x written: 5 · hidden ·
// 2 bytes, 9 ns a row) while other blocks run the Sinkhorn steps, which nothing in this launch waits for. mhc_mean:
// streams read, out written.
#include "device/kernel.h"
#include "ops/mhc/mhc_args.h"

namespace {

using namespace tandem;
using namespace tandem::device;
using namespace tandem::ops;

constexpr int32_t n = cuda_streams;
constexpr int32_t rows_of_tile = 8, steps = mhc_piece / 16;
constexpr int32_t row_pieces = n * mhc_piece / 8;  // 16-byte pieces of a row of all streams, or of fn

// Rows of 1 KiB in shared memory; 16-byte pieces are placed so that ldmatrix meets no bank twice.
TANDEM_DEVICE uint32_t piece_offset(uint32_t row, uint32_t piece) {
  return (row * row_pieces + (piece ^ (row & 7u))) * 16u;
}

TANDEM_DEVICE void unpack(float (&values)[8], const uint4& pieces) {
  const uint32_t pairs[4] = {pieces.x, pieces.y, pieces.z, pieces.w};
#pragma unroll
  for (int32_t i = 0; i < 4; ++i) {
    values[2 * i] = first_of(pairs[i]);
    values[2 * i + 1] = second_of(pairs[i]);
  }
}
TANDEM_DEVICE uint4 pack(const float (&values)[8]) {
  return make_uint4(pack_bf16(values[0], values[1]), pack_bf16(values[2], values[3]), pack_bf16(values[4], values[5]),
                    pack_bf16(values[6], values[7]));
}

// Eight columns of a row's streams after the sub-layer: streams[j] = post[j] y + Σ_i comb[i][j] streams[i], i
// ascending.
TANDEM_DEVICE void leave_columns(uint4 (&streams)[n], const MhcMapArgs& args, int64_t row, int32_t column) {
  float y[8], old[n][8];
  unpack(y, *reinterpret_cast<const uint4*>(args.y + row * args.y_stride + column));
#pragma unroll
  for (int32_t s = 0; s < n; ++s) unpack(old[s], streams[s]);
  const float* post = args.at.post + row * n;
  const float* comb = args.at.comb + row * n * n;
#pragma unroll
  for (int32_t j = 0; j < n; ++j) {
    float mixed[8];
#pragma unroll
    for (int32_t k = 0; k < 8; ++k) mixed[k] = y[k] * post[j];
#pragma unroll
    for (int32_t s = 0; s < n; ++s) {
#pragma unroll
      for (int32_t k = 0; k < 8; ++k) mixed[k] = fma_(comb[s * n + j], old[s][k], mixed[k]);
    }
    streams[j] = pack(mixed);
  }
}

// fn's part of warp `stream`: A fragments of the outputs 0 … 15 and 16 … 23.
struct FnFragments {
  uint32_t low[steps][4], high[steps][2];
};
TANDEM_DEVICE void load_fn(FnFragments& fn, const unsigned char* shared, uint32_t stream, uint32_t lane) {
#pragma unroll
  for (uint32_t step = 0; step < steps; ++step) {
    const uint32_t piece = stream * (mhc_piece / 8) + 2 * step;
    load_matrices(fn.low[step], shared + piece_offset(lane % 16, piece + lane / 16));
    if (step % 2 == 0) {  // eight outputs, two steps
      uint32_t two[4];
      load_matrices(two, shared + piece_offset(16 + lane % 8, piece + lane / 8));
      fn.high[step][0] = two[0];
      fn.high[step][1] = two[1];
      fn.high[step + 1][0] = two[2];
      fn.high[step + 1][1] = two[3];
    }
  }
}

constexpr int32_t fn_bytes = mhc_outputs * row_pieces * 16, tile_bytes = rows_of_tile * row_pieces * 16;
constexpr int32_t sums_pitch = mhc_outputs + 4;  // [stream][row][output]

TANDEM_KERNEL(mhc_map, MhcMapArgs, 128) {
  static_assert(mhc_outputs == 24 && n == 4, "fragments and warps are laid out for four streams");
  TANDEM_SHARED(unsigned char, shared);
  unsigned char* tile = shared + fn_bytes;
  float* sums = reinterpret_cast<float*>(tile + tile_bytes);
  const int32_t rows = *args.at.rows;
  int32_t first_row = static_cast<int32_t>(blockIdx.y) * rows_of_tile;
  if (first_row >= rows) return;
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int32_t hidden = args.hidden, first_column = static_cast<int32_t>(blockIdx.x) * mhc_piece;

  const bool maps = args.fn != nullptr;
  FnFragments fn;
  if (maps) {
    for (uint32_t i = threadIdx.x; i < mhc_outputs * row_pieces; i += 128) {
      const uint32_t output = i / row_pieces, piece = i % row_pieces, stream = piece / (mhc_piece / 8);
      const int32_t column = first_column + static_cast<int32_t>(piece % (mhc_piece / 8)) * 8;
      copy_async_16(shared + piece_offset(output, piece),
                    args.fn + (static_cast<int64_t>(output) * n + stream) * hidden + column, column < hidden);
    }
    commit_copies();
  }
  bool fn_is_loaded = false;

  const int32_t row_in_tile = static_cast<int32_t>(threadIdx.x / 16), part = static_cast<int32_t>(lane % 16);
  const int32_t column = first_column + part * 8;
  for (; first_row < rows; first_row += static_cast<int32_t>(gridDim.y) * rows_of_tile) {
    const int64_t row = first_row + row_in_tile;
    uint4 streams[n];
#pragma unroll
    for (int32_t s = 0; s < n; ++s) streams[s] = make_uint4(0, 0, 0, 0);
    if (row < rows && column < hidden) {
      bf16* at = args.at.streams + row * n * hidden + column;
#pragma unroll
      for (int32_t s = 0; s < n; ++s)
        streams[s] = *reinterpret_cast<const uint4*>(at + static_cast<int64_t>(s) * hidden);
      if (args.y != nullptr) {
        leave_columns(streams, args, row, column);
#pragma unroll
        for (int32_t s = 0; s < n; ++s) *reinterpret_cast<uint4*>(at + static_cast<int64_t>(s) * hidden) = streams[s];
      }
    }
    if (!maps) continue;

    float squares = 0.0f;
#pragma unroll
    for (int32_t s = 0; s < n; ++s) {
      float values[8];
      unpack(values, streams[s]);
#pragma unroll
      for (int32_t k = 0; k < 8; ++k) squares = fma_(values[k], values[k], squares);
      *reinterpret_cast<uint4*>(tile + piece_offset(static_cast<uint32_t>(row_in_tile),
                                                    static_cast<uint32_t>(s * (mhc_piece / 8) + part))) = streams[s];
    }
#pragma unroll
    for (uint32_t mask = 8; mask > 0; mask /= 2) squares += shuffle_xor(squares, mask);
    float* partials = args.at.scratch + (static_cast<int64_t>(first_row) * gridDim.x + blockIdx.x) * mhc_partials;
    const int64_t partials_pitch = static_cast<int64_t>(gridDim.x) * mhc_partials;
    if (part == 0 && row < rows) partials[row_in_tile * partials_pitch + mhc_outputs] = squares;
    if (!fn_is_loaded) wait_for_copies<0>();
    __syncthreads();
    if (!fn_is_loaded) load_fn(fn, shared, warp, lane);
    fn_is_loaded = true;

    float low[4] = {0.0f, 0.0f, 0.0f, 0.0f}, high[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (uint32_t step = 0; step < steps; step += 2) {
      uint32_t b[4];
      load_matrices(b, tile + piece_offset(lane % 8, warp * (mhc_piece / 8) + 2 * step + lane / 8));
#pragma unroll
      for (uint32_t half = 0; half < 2; ++half) {
        const uint32_t x[2] = {b[2 * half], b[2 * half + 1]};
        const uint32_t eight[4] = {fn.high[step + half][0], 0, fn.high[step + half][1], 0};
        mma_bf16(low, fn.low[step + half], x);
        mma_bf16(high, eight, x);
      }
    }
    float* of_stream = sums + warp * rows_of_tile * sums_pitch;
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      const uint32_t of_row = (lane % 4 * 2 + i % 2) * sums_pitch + lane / 4;
      of_stream[of_row + i / 2 * 8] = low[i];
      if (i < 2) of_stream[of_row + 16] = high[i];
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < rows_of_tile * mhc_partials; i += 128) {
      const uint32_t r = i / mhc_partials, output = i % mhc_partials;
      if (output >= mhc_outputs || first_row + static_cast<int32_t>(r) >= rows) continue;
      float sum = 0.0f;
#pragma unroll
      for (uint32_t s = 0; s < n; ++s) sum += sums[(s * rows_of_tile + r) * sums_pitch + output];
      partials[r * partials_pitch + output] = sum;
    }
  }
}

// Lane o of a warp gets value o of the mapping, scaled and shifted (steps 2 to 5 before their functions).
TANDEM_DEVICE float mapping_value(const MhcEnterArgs& args, int64_t row, uint32_t lane) {
  const int32_t pieces = (args.hidden + mhc_piece - 1) / mhc_piece;
  constexpr int32_t together = 16;  // loads on their way at a time
  const float* from = args.at.scratch + row * pieces * mhc_partials + lane;
  float sum = 0.0f;
  for (int32_t first = 0; first < pieces; first += together) {
    float of_piece[together];
#pragma unroll
    for (int32_t i = 0; i < together; ++i)
      of_piece[i] = lane <= mhc_outputs && first + i < pieces ? from[(first + i) * mhc_partials] : 0.0f;
#pragma unroll
    for (int32_t i = 0; i < together; ++i) sum += of_piece[i];
  }
  const float squares = shuffle(sum, mhc_outputs);
  const float r = 1.0f / sqrt_(squares / static_cast<float>(n * args.hidden) + args.rms_norm_eps);
  if (lane >= mhc_outputs) return 0.0f;
  return fma_(sum * r, args.site.scale[lane < n ? 0 : lane < 2 * n ? 1 : 2], args.site.base[lane]);
}

// post and comb of a row: softmax along rows, then 20 column and 19 row steps, the last a column step. All lanes do the
// same on 16 registers.
TANDEM_DEVICE void mix_of_row(const MhcEnterArgs& args, int64_t row, uint32_t lane) {
  const float value = mapping_value(args, row, lane);
  if (lane >= n && lane < 2 * n) args.at.post[row * n + lane - n] = 2.0f * sigmoid(value);
  float c[n][n];
#pragma unroll
  for (uint32_t i = 0; i < n; ++i) {
#pragma unroll
    for (uint32_t j = 0; j < n; ++j) c[i][j] = shuffle(value, 2 * n + n * i + j);
    float largest = c[i][0], sum = 0.0f;
#pragma unroll
    for (uint32_t j = 1; j < n; ++j) largest = c[i][j] > largest ? c[i][j] : largest;
#pragma unroll
    for (uint32_t j = 0; j < n; ++j) sum += c[i][j] = exp_(c[i][j] - largest);
#pragma unroll
    for (uint32_t j = 0; j < n; ++j) c[i][j] = c[i][j] / sum + args.hc_eps;
  }
  for (int32_t step = 0; step < 2 * args.sinkhorn_iters - 1; ++step) {
    if (step % 2 == 0) {
#pragma unroll
      for (uint32_t j = 0; j < n; ++j) {
        const float factor = reciprocal_((c[0][j] + c[1][j]) + (c[2][j] + c[3][j]) + args.hc_eps);
#pragma unroll
        for (uint32_t i = 0; i < n; ++i) c[i][j] *= factor;
      }
    } else {
#pragma unroll
      for (uint32_t i = 0; i < n; ++i) {
        const float factor = reciprocal_((c[i][0] + c[i][1]) + (c[i][2] + c[i][3]) + args.hc_eps);
#pragma unroll
        for (uint32_t j = 0; j < n; ++j) c[i][j] *= factor;
      }
    }
  }
  if (lane != 0) return;
#pragma unroll
  for (uint32_t i = 0; i < n; ++i)
    *reinterpret_cast<float4*>(args.at.comb + (row * n + i) * n) = make_float4(c[i][0], c[i][1], c[i][2], c[i][3]);
}

constexpr uint32_t row_threads = 256;
constexpr int32_t kept = 2;  // pieces of eight columns whose streams a thread reads while the mapping is on its way

// The columns of one thread: piece threadIdx.x, then every row_threads further one.
TANDEM_DEVICE void collapse_row(const MhcEnterArgs& args, int64_t row, uint4* x, float* scratch) {
  __shared__ float pre[n];
  const int32_t hidden = args.hidden, pieces = hidden / 8, first = static_cast<int32_t>(threadIdx.x);
  const bf16* streams = args.at.streams + row * n * hidden;
  uint4 early[kept][n];
#pragma unroll
  for (int32_t i = 0; i < kept; ++i) {
    const int32_t piece = first + i * static_cast<int32_t>(row_threads);
#pragma unroll
    for (int32_t s = 0; s < n; ++s) {
      if (piece < pieces)
        early[i][s] = *reinterpret_cast<const uint4*>(streams + static_cast<int64_t>(s) * hidden + piece * 8);
    }
  }
  if (threadIdx.x < 32) {
    const float value = mapping_value(args, row, threadIdx.x);
    if (threadIdx.x < n) pre[threadIdx.x] = sigmoid(value) + args.hc_eps;
  }
  __syncthreads();
  float squares = 0.0f;
  const auto collapse = [&](int32_t piece, const uint4(&of_streams)[n]) {
    float sum[8];
#pragma unroll
    for (int32_t s = 0; s < n; ++s) {
      float values[8];
      unpack(values, of_streams[s]);
#pragma unroll
      for (int32_t k = 0; k < 8; ++k) sum[k] = s == 0 ? pre[0] * values[k] : fma_(pre[s], values[k], sum[k]);
    }
    x[piece] = pack(sum);
    unpack(sum, x[piece]);
#pragma unroll
    for (int32_t k = 0; k < 8; ++k) squares = fma_(sum[k], sum[k], squares);
  };
#pragma unroll
  for (int32_t i = 0; i < kept; ++i) {
    const int32_t piece = first + i * static_cast<int32_t>(row_threads);
    if (piece < pieces) collapse(piece, early[i]);
  }
  for (int32_t piece = first + kept * static_cast<int32_t>(row_threads); piece < pieces;
       piece += static_cast<int32_t>(row_threads)) {
    uint4 late[n];
#pragma unroll
    for (int32_t s = 0; s < n; ++s)
      late[s] = *reinterpret_cast<const uint4*>(streams + static_cast<int64_t>(s) * hidden + piece * 8);
    collapse(piece, late);
  }
  const float factor = 1.0f / sqrt_(sum_over_block(squares, scratch) / static_cast<float>(hidden) + args.rms_norm_eps);
  for (int32_t piece = first; piece < pieces; piece += static_cast<int32_t>(row_threads)) {
    float values[8];
    unpack(values, x[piece]);
#pragma unroll
    for (int32_t k = 0; k < 8; ++k) values[k] = values[k] * factor * args.site.norm[piece * 8 + k];
    *reinterpret_cast<uint4*>(args.x + row * args.x_stride + piece * 8) = pack(values);
  }
}

// The first args.mix_blocks blocks run the Sinkhorn steps of eight rows each (they take longest), the others collapse
// one row each, last rows first: those are the ones that mhc_map has left in the second cache.
TANDEM_KERNEL(mhc_enter, MhcEnterArgs, 256) {
  __shared__ float scratch[32];
  TANDEM_SHARED(uint4, x);
  const int32_t rows = *args.at.rows, block = static_cast<int32_t>(blockIdx.x);
  if (block < args.mix_blocks) {
    const int32_t row = block * 8 + static_cast<int32_t>(threadIdx.x / 32);
    if (row < rows) mix_of_row(args, row, threadIdx.x % 32);
    return;
  }
  const int32_t row = rows - 1 - (block - args.mix_blocks);
  if (row >= 0) collapse_row(args, row, x, scratch);
}

// Dynamic shared memory: a row of fp32 means.
TANDEM_KERNEL(mhc_mean, MhcMeanArgs, 256) {
  __shared__ float scratch[32];
  TANDEM_SHARED(float, mean);
  const int64_t out_row = blockIdx.x;
  if (out_row >= *args.rows) return;
  const int64_t row = args.row_list != nullptr ? args.row_list[out_row] : out_row;
  const bf16* streams = args.streams + row * n * args.hidden;
  float squares = 0.0f;
  for (int32_t piece = static_cast<int32_t>(threadIdx.x); piece < args.hidden / 8; piece += 256) {
    float sum[8], values[8];
#pragma unroll
    for (int32_t s = 0; s < n; ++s) {
      unpack(values, *reinterpret_cast<const uint4*>(streams + static_cast<int64_t>(s) * args.hidden + piece * 8));
#pragma unroll
      for (int32_t k = 0; k < 8; ++k) sum[k] = s == 0 ? values[k] : sum[k] + values[k];
    }
#pragma unroll
    for (int32_t k = 0; k < 8; ++k) {
      sum[k] /= static_cast<float>(n);
      squares = fma_(sum[k], sum[k], squares);
      mean[piece * 8 + k] = sum[k];
    }
  }
  float factor = 1.0f;
  if (args.norm != nullptr)
    factor = 1.0f / sqrt_(sum_over_block(squares, scratch) / static_cast<float>(args.hidden) + args.eps);
  for (int32_t piece = static_cast<int32_t>(threadIdx.x); piece < args.hidden / 8; piece += 256) {
    float values[8];
#pragma unroll
    for (int32_t k = 0; k < 8; ++k) {
      values[k] = mean[piece * 8 + k];
      if (args.norm != nullptr) values[k] = values[k] * factor * args.norm[piece * 8 + k];
    }
    *reinterpret_cast<uint4*>(args.out + out_row * args.out_stride + piece * 8) = pack(values);
  }
}

}  // namespace
