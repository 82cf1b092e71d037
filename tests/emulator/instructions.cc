// What the warp-wide matrix instructions compute (fragments: device/kernel_cuda.h).
#include "kernel_emulated.h"

namespace tandem::device {
namespace {

float half_of(uint32_t pair, uint32_t which) { return bits_to_float(which == 0 ? pair << 16 : pair & 0xffff0000u); }

struct Operands {
  uint32_t a[4], b[2];
};

uint16_t value_at(const unsigned char* row, uint32_t column) {
  uint16_t value;
  std::memcpy(&value, row + 2 * column, 2);
  return value;
}

const unsigned char* row_of(const emulator::WarpView& warp, uint32_t matrix, uint32_t row) {
  return warp.of<const unsigned char*>(matrix * 8 + row);
}

}  // namespace

void mma_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  const Operands mine{{a[0], a[1], a[2], a[3]}, {b[0], b[1]}};
  const emulator::WarpView warp = emulator::exchange(&mine, sizeof mine);
  for (uint32_t i = 0; i < 4; ++i) {
    const uint32_t lower = i / 2;  // row l/4 or l/4 + 8
    const uint32_t row = warp.lane / 4, column = warp.lane % 4 * 2 + i % 2;
    float sum = d[i];
    for (uint32_t k = 0; k < 16; ++k) {
      const uint32_t lane_in_four = k % 8 / 2, high = k / 8;
      const Operands of_row = warp.of<Operands>(row * 4 + lane_in_four);
      const Operands of_column = warp.of<Operands>(column * 4 + lane_in_four);
      sum += half_of(of_row.a[high * 2 + lower], k % 2) * half_of(of_column.b[high], k % 2);
    }
    d[i] = sum;
  }
}

void load_matrices(uint32_t (&r)[4], const void* shared_row) {
  const emulator::WarpView warp = emulator::exchange(&shared_row, sizeof shared_row);
  for (uint32_t i = 0; i < 4; ++i) {
    const unsigned char* row = row_of(warp, i, warp.lane / 4);
    const uint32_t column = warp.lane % 4 * 2;
    r[i] = value_at(row, column) | static_cast<uint32_t>(value_at(row, column + 1)) << 16;
  }
  emulator::sync_warp();
}

void load_matrices_transposed(uint32_t (&r)[4], const void* shared_row) {
  const emulator::WarpView warp = emulator::exchange(&shared_row, sizeof shared_row);
  for (uint32_t i = 0; i < 4; ++i) {
    const uint32_t row = warp.lane % 4 * 2, column = warp.lane / 4;
    r[i] = value_at(row_of(warp, i, row), column) | static_cast<uint32_t>(value_at(row_of(warp, i, row + 1), column))
                                                        << 16;
  }
  emulator::sync_warp();
}

}  // namespace tandem::device
