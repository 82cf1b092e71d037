// What the product kernels of the feed-forward share: which rows and columns a block works on, and how weights become
// fragments of the matrix instruction.
//
// Both kernels walk a leaf's columns in chunks of 32. A lane takes 8 neighbouring columns of a chunk, 16 bytes: columns
// 8·(lane mod 4) + {0, 1, 2, 3} are its four k of the first mma, {4, 5, 6, 7} those of the second. Which k is which
// column is the same for weights and rows, so the sum is the same set of products, and it is the same in both kernels,
// so their bits agree.
#pragma once

#include "device/kernel.h"
#include "ops/experts/experts_args.h"

namespace {

using namespace tandem;
using namespace tandem::device;

constexpr int32_t slice_columns = 512, chunk_columns = 32;

// BF16 weights [outputs, columns]. A format has these types and functions: a matrix, what a lane loads of 16 outputs
// and a chunk, and its fragments.
struct Bf16Matrix {
  const bf16* data;
  int64_t columns;
};
struct Bf16Lane {
  uint4 upper, lower;  // outputs lane / 4 and lane / 4 + 8
};

TANDEM_DEVICE uint4 zeros() { return make_uint4(0, 0, 0, 0); }

// Outputs from first_output on, `outputs` in all; the lane's 8 columns from `column` on are there or not.
TANDEM_DEVICE Bf16Lane load_weights(const Bf16Matrix& w, int32_t first_output, int32_t outputs, int32_t column,
                                    bool present) {
  const int32_t output = first_output + static_cast<int32_t>(threadIdx.x % 32 / 4);
  const bf16* at = w.data + output * w.columns + column;
  return {present && output < outputs ? load_once_16(at) : zeros(),
          present && output + 8 < outputs ? load_once_16(at + 8 * w.columns) : zeros()};
}
TANDEM_DEVICE void make_fragments(const Bf16Lane& lane, uint32_t (&first)[4], uint32_t (&second)[4]) {
  first[0] = lane.upper.x, first[1] = lane.lower.x, first[2] = lane.upper.y, first[3] = lane.lower.y;
  second[0] = lane.upper.z, second[1] = lane.lower.z, second[2] = lane.upper.w, second[3] = lane.lower.w;
}

// The products of a block's tile: of gate and up, or of one leaf of down.
struct Work {
  Bf16Matrix weights[2];
  int32_t outputs;     // of the matrices
  int32_t begin, end;  // columns
  const bf16* x;       // of row 0, column 0; row r is row_of[r] if there is a row_of
  int64_t x_stride;
  const int32_t* row_of;
  int32_t rows;
};

// Tile `index` of the launch; false: there is none.
TANDEM_DEVICE bool find_tile(const ops::ExpertProductArgs& args, int32_t index, int32_t leaves, ops::ExpertTile& tile,
                             int32_t& leaf) {
  const int32_t shared = args.shared_tiles * leaves;
  leaf = 0;
  if (index < shared) {
    leaf = index / args.shared_tiles;
    tile.expert = -1;
    tile.first = index % args.shared_tiles * args.tile_rows;
    tile.rows = *args.rows - tile.first;
    if (tile.rows > args.tile_rows) tile.rows = args.tile_rows;
    return tile.rows > 0;
  }
  if (args.tile_count == nullptr || index - shared >= *args.tile_count) return false;
  tile = args.tiles[index - shared];
  return true;
}

// gate and up of tile `index`, and where its activations go.
TANDEM_DEVICE bool find_gate_up(const ops::ExpertProductArgs& args, int32_t index, Work& work, bf16*& activation) {
  ops::ExpertTile tile;
  int32_t leaf;
  if (!find_tile(args, index, 1, tile, leaf)) return false;
  const bool shared = tile.expert < 0;
  const ops::ExpertPointers pointers = shared ? args.shared : args.routed[tile.expert];
  work.weights[0] = {static_cast<const bf16*>(pointers.gate), args.hidden};
  work.weights[1] = {static_cast<const bf16*>(pointers.up), args.hidden};
  work.outputs = shared ? args.shared_width : args.width;
  work.begin = 0;
  work.end = args.hidden;
  work.x = shared ? args.x + tile.first * args.x_stride : args.x;
  work.x_stride = args.x_stride;
  work.row_of = shared ? nullptr : args.row_of + tile.first;
  work.rows = tile.rows;
  activation = (shared ? args.shared_activation : args.activation) + static_cast<int64_t>(tile.first) * work.outputs;
  return true;
}

// down of tile `index`, and where its outputs go: [rows, args.outputs].
TANDEM_DEVICE bool find_down(const ops::ExpertProductArgs& args, int32_t index, Work& work, float*& output) {
  ops::ExpertTile tile;
  int32_t leaf;
  const int32_t leaves = args.shared_leaf < args.shared_width ? 2 : 1;
  if (!find_tile(args, index, leaves, tile, leaf)) return false;
  const bool shared = tile.expert < 0;
  const int32_t width = shared ? args.shared_width : args.width;
  const ops::ExpertPointers pointers = shared ? args.shared : args.routed[tile.expert];
  work.weights[0] = work.weights[1] = {static_cast<const bf16*>(pointers.down), width};
  work.outputs = args.first_output + args.outputs;
  work.begin = leaf == 0 ? 0 : args.shared_leaf;
  work.end = shared && leaf == 0 ? args.shared_leaf : width;
  work.x = (shared ? args.shared_activation : args.activation) + static_cast<int64_t>(tile.first) * width;
  work.x_stride = width;
  work.row_of = nullptr;
  work.rows = tile.rows;
  const int64_t row = shared ? leaf * args.max_rows + tile.first : tile.first;
  output = (shared ? args.shared_output : args.output) + row * args.outputs;
  return true;
}

TANDEM_DEVICE const bf16* row_pointer(const Work& work, int32_t row) {
  return work.x + (work.row_of == nullptr ? row : work.row_of[row]) * work.x_stride;
}

TANDEM_DEVICE float clamped_swiglu(float gate, float up, float limit) {
  const float high = gate < limit ? gate : limit;
  const float low = up > -limit ? up : -limit;
  return silu(high) * (low < limit ? low : limit);
}

}  // namespace
