// Pairs of a row and an expert in the order of experts and, within an expert, of rows: one block, a counting sort with
// integers alone, so that the order is the same every time. Floor: the choices read once, the lists written once.
#include "device/kernel.h"
#include "ops/experts/experts_args.h"

namespace {

using namespace tandem;
using namespace tandem::device;

constexpr int32_t window_rows = ops::ExpertSortArgs::window_rows, window_words = window_rows / 32,
                  words_stride = ops::ExpertSortArgs::words_of_expert;

// Sums of the values before a lane's, and of all.
TANDEM_DEVICE int32_t sum_before(int32_t value, int32_t& all) {
  const uint32_t lane = threadIdx.x % 32;
  int32_t sum = value;
  for (uint32_t step = 1; step < 32; step *= 2) {
    const int32_t other = shuffle(sum, lane >= step ? lane - step : lane);
    if (lane >= step) sum += other;
  }
  all = shuffle(sum, 31);
  return sum - value;
}

// Places of the experts and their tiles, by the first warp. counts becomes the first places.
TANDEM_DEVICE void lay_out(const ops::ExpertSortArgs& args, int32_t* counts) {
  int32_t places = 0, tiles = 0;
  for (int32_t first = 0; first < args.routed_count; first += 32) {
    const int32_t expert = first + static_cast<int32_t>(threadIdx.x);
    const int32_t count = expert < args.routed_count ? counts[expert] : 0;
    const int32_t own_tiles = (count + args.tile_rows - 1) / args.tile_rows;
    int32_t all_places, all_tiles;
    const int32_t place = places + sum_before(count, all_places);
    const int32_t tile = tiles + sum_before(own_tiles, all_tiles);
    if (expert < args.routed_count) counts[expert] = place;
    for (int32_t i = 0; i < own_tiles; ++i) {
      const int32_t done = i * args.tile_rows, left = count - done;
      args.tiles[tile + i] = {expert, place + done, left < args.tile_rows ? left : args.tile_rows};
    }
    places += all_places;
    tiles += all_tiles;
  }
  if (threadIdx.x == 0) *args.tile_count = tiles;
}

TANDEM_KERNEL(sort_by_expert, ops::ExpertSortArgs, 1024) {
  TANDEM_SHARED(int32_t, next);  // [routed_count] places, then bits of the window's rows [routed_count, words_stride]
  uint32_t* bits = reinterpret_cast<uint32_t*>(next + args.routed_count);
  const int32_t rows = *args.rows, thread = static_cast<int32_t>(threadIdx.x),
                threads = static_cast<int32_t>(blockDim.x);
  for (int32_t e = thread; e < args.routed_count; e += threads) next[e] = 0;
  __syncthreads();
  for (int32_t i = thread; i < rows * args.per_token; i += threads) {
    const int32_t expert = args.chosen[i] - args.first_routed;
    if (expert >= 0 && expert < args.routed_count) atomic_add(next + expert, 1);
  }
  __syncthreads();
  if (thread < 32) lay_out(args, next);
  for (int32_t first = 0; first < rows; first += window_rows) {
    const int32_t here = rows - first < window_rows ? rows - first : window_rows;
    for (int32_t i = thread; i < args.routed_count * words_stride; i += threads) bits[i] = 0;
    __syncthreads();
    const int32_t begin = first * args.per_token, end = begin + here * args.per_token;
    for (int32_t i = begin + thread; i < end; i += threads) {
      const int32_t expert = args.chosen[i] - args.first_routed, row = i / args.per_token - first;
      // A row has an expert once, so adding its bit sets it.
      if (expert >= 0 && expert < args.routed_count)
        atomic_add(bits + expert * words_stride + row / 32, 1u << (row % 32));
    }
    __syncthreads();
    for (int32_t i = begin + thread; i < end; i += threads) {
      const int32_t expert = args.chosen[i] - args.first_routed, row = i / args.per_token - first;
      if (expert < 0 || expert >= args.routed_count) {
        args.place_of[i] = -1;
        continue;
      }
      const uint32_t* mine = bits + expert * words_stride;
      int32_t place = next[expert] + count_bits(mine[row / 32] & ((1u << (row % 32)) - 1u));
      for (int32_t word = 0; word < row / 32; ++word) place += count_bits(mine[word]);
      args.place_of[i] = place;
      args.row_of[place] = first + row;
    }
    __syncthreads();
    for (int32_t e = thread; e < args.routed_count; e += threads)
      for (int32_t word = 0; word < window_words; ++word) next[e] += count_bits(bits[e * words_stride + word]);
    __syncthreads();
  }
}

}  // namespace
