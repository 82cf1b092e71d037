// Products of whole tiles in shared memory by the four warps of a warp group, in the background: wgmma on sm_90a, the
// only target that has it. Elsewhere, and in the emulator, the same sums by mma.sync at once, on the same tiles.
//
// A tile has 64 columns of bf16 (K); its rows are 128 bytes apart, in 16-byte pieces whose place is their number xor
// (row mod 8): wgmma's 128-byte swizzle, and no two of eight lanes that copy or read meet in a bank. A tile begins at a
// multiple of 1,024 bytes.
//
// The sums of 16 columns from one instruction have the same bits as mma.sync's over the same 16 (the tests of the
// operations that use this compare them on the GPU); which of the 16 stands where inside them changes nothing there.
#pragma once

#include "device/kernel.h"

namespace tandem::device {

constexpr int32_t tile_columns = 64;
constexpr int32_t tile_row_bytes = 2 * tile_columns;

TANDEM_DEVICE uint32_t tile_offset(uint32_t row, uint32_t piece) {
  return row * tile_row_bytes + ((piece ^ (row & 7u)) * 16u);
}

// Where in the 16 columns of a step a lane's four k of mma.sync stand: the fragments' own order, or columns
// 4·(lane mod 4) … side by side.
enum class ColumnOrder { natural, four_side_by_side };

// What a warp group adds up: 64 rows of A by 128 rows of B. Lane l of warp w (of the group) has rows 16·w + l/4 and 8
// more, columns 8·n + 2·(l mod 4) + {0, 1}, as mma.sync's d.
using WarpgroupSums = float[16][4];

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Of a K-major tile with 128-byte swizzle: address, and 1,024 bytes from eight rows to the next eight.
TANDEM_DEVICE uint64_t tile_descriptor(const void* shared) {
  return (shared_address(shared) & 0x3ffffu) >> 4 | uint64_t{1} << 16 | uint64_t{1024 >> 4} << 32 | uint64_t{1} << 62;
}

// Makes what copies and stores of this thread brought to shared memory visible to the products; before a barrier.
TANDEM_DEVICE void publish_tiles() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

#define TANDEM_SUMS_OF_8(d, i)                                                                                         \
  "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3]), "+f"(d[i + 1][0]), "+f"(d[i + 1][1]), "+f"(d[i + 1][2]), \
      "+f"(d[i + 1][3])
#define TANDEM_ALL_SUMS(d)                                                                        \
  TANDEM_SUMS_OF_8(d, 0), TANDEM_SUMS_OF_8(d, 2), TANDEM_SUMS_OF_8(d, 4), TANDEM_SUMS_OF_8(d, 6), \
      TANDEM_SUMS_OF_8(d, 8), TANDEM_SUMS_OF_8(d, 10), TANDEM_SUMS_OF_8(d, 12), TANDEM_SUMS_OF_8(d, 14)

// Starts sums (+)= A Bᵀ over the 64 columns of a tile: A 64 rows (this warp group's), B 128. By all threads of the
// group; the tiles must stay, and `sums` be left alone, until finish_products.
template <ColumnOrder order>
TANDEM_DEVICE void start_products(WarpgroupSums& sums, const unsigned char* a, const unsigned char* b, bool from_zero) {
  const uint64_t a_tile = tile_descriptor(a), b_tile = tile_descriptor(b);
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
  for (uint32_t step = 0; step < 4; ++step) {
    const int32_t keep = step > 0 || !from_zero;
    asm volatile(
        "{\n"
        ".reg .pred keep;\n"
        "setp.ne.b32 keep, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "%64, %65, keep, 1, 1, 0, 0;\n"
        "}\n"
        : TANDEM_ALL_SUMS(sums)
        : "l"(a_tile + step * 2), "l"(b_tile + step * 2), "r"(keep));
  }
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits until at most one of this group's start_products is under way.
TANDEM_DEVICE void finish_all_but_one() { asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory"); }
// Waits for all; then `sums` may be read.
TANDEM_DEVICE void finish_products(WarpgroupSums& sums) {
  asm volatile("wgmma.wait_group.sync.aligned 0;" : TANDEM_ALL_SUMS(sums)::"memory");
}

#undef TANDEM_ALL_SUMS
#undef TANDEM_SUMS_OF_8

#else

TANDEM_DEVICE void publish_tiles() {}
TANDEM_DEVICE void finish_all_but_one() {}
TANDEM_DEVICE void finish_products(WarpgroupSums&) {}

// Four values of a row: columns 16·step + 4·(lane mod 4) … .
TANDEM_DEVICE uint2 four_columns(const unsigned char* tile, uint32_t row, uint32_t step, uint32_t lane) {
  return *reinterpret_cast<const uint2*>(tile + tile_offset(row, 2 * step + lane % 4 / 2) + lane % 2 * 8);
}

template <ColumnOrder order>
TANDEM_DEVICE void start_products(WarpgroupSums& sums, const unsigned char* a, const unsigned char* b, bool from_zero) {
  const uint32_t lane = threadIdx.x % 32, first = threadIdx.x / 32 % 4 * 16;
  if (from_zero) {
#pragma unroll
    for (int32_t n = 0; n < 16; ++n) sums[n][0] = sums[n][1] = sums[n][2] = sums[n][3] = 0.0f;
  }
#pragma unroll
  for (uint32_t step = 0; step < 4; ++step) {
    uint32_t a_values[4];
    if constexpr (order == ColumnOrder::natural) {
      load_matrices(a_values, a + tile_offset(first + lane % 16, 2 * step + lane / 16));
    } else {
      const uint2 upper = four_columns(a, first + lane / 4, step, lane);
      const uint2 lower = four_columns(a, first + lane / 4 + 8, step, lane);
      a_values[0] = upper.x, a_values[1] = lower.x, a_values[2] = upper.y, a_values[3] = lower.y;
    }
#pragma unroll
    for (uint32_t n = 0; n < 16; n += 2) {
      uint32_t pairs[4];
      if constexpr (order == ColumnOrder::natural) {
        load_matrices(pairs, b + tile_offset(n * 8 + lane % 8 + lane / 16 * 8, 2 * step + lane / 8 % 2));
      } else {
        const uint2 first_eight = four_columns(b, n * 8 + lane / 4, step, lane);
        const uint2 second_eight = four_columns(b, n * 8 + 8 + lane / 4, step, lane);
        pairs[0] = first_eight.x, pairs[1] = first_eight.y, pairs[2] = second_eight.x, pairs[3] = second_eight.y;
      }
      mma_bf16(sums[n], a_values, {pairs[0], pairs[1]});
      mma_bf16(sums[n + 1], a_values, {pairs[2], pairs[3]});
    }
  }
}

#endif

}  // namespace tandem::device
