// Moves of hidden rows between a step and the slots (forward/step_book.h says where a row lies), and the MTP layer's
// residual. Floor: each row read and written once; a block a row.
#include "device/kernel.h"
#include "ops/rows/rows_args.h"

namespace {

using namespace tandem;
using namespace tandem::device;

TANDEM_DEVICE void copy_row(const bf16* from, bf16* to, int32_t width) {
  const auto* source = reinterpret_cast<const uint4*>(from);
  auto* target = reinterpret_cast<uint4*>(to);
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < width / 8; i += static_cast<int32_t>(blockDim.x)) target[i] = source[i];
}

TANDEM_KERNEL(gather_rows, ops::MoveRowsArgs, 128) {
  const int32_t i = static_cast<int32_t>(blockIdx.x);
  if (i >= *args.count) return;
  const ops::RowSource source = args.sources[i];
  const bf16* from = args.rows + static_cast<int64_t>(source.index) * args.width;
  if (source.place == ops::row_of_ring) {
    from = args.ring.data + source.slot * args.ring.stride + static_cast<int64_t>(source.index % ops::hidden_ring_rows) * args.width;
  } else if (source.place == ops::row_of_slot) {
    from = args.last + static_cast<int64_t>(source.slot) * args.width;
  }
  copy_row(from, args.out + i * args.out_stride, args.width);
}

TANDEM_KERNEL(store_head_rows, ops::KeepHeadRowsArgs, 128) {
  const int32_t row = static_cast<int32_t>(blockIdx.x);
  if (row >= args.step.counts[ops::step_rows]) return;
  const ops::SegmentView segment = args.step.segments[args.step.segment_of_row[row]];
  if (row < segment.first_row + segment.rows - ops::hidden_ring_rows) return;
  const int32_t position = args.step.positions[row];
  copy_row(args.rows + static_cast<int64_t>(row) * args.width,
           args.ring.data + segment.slot * args.ring.stride + static_cast<int64_t>(position % ops::hidden_ring_rows) * args.width,
           args.width);
}

TANDEM_KERNEL(store_last_rows, ops::StoreLastRowsArgs, 128) {
  const int32_t number = static_cast<int32_t>(blockIdx.x);
  if (number >= args.step.counts[ops::step_segments]) return;
  const ops::SegmentView segment = args.step.segments[number];
  copy_row(args.rows + static_cast<int64_t>(segment.first_row + segment.rows - 1) * args.width,
           args.last + static_cast<int64_t>(segment.slot) * args.width, args.width);
}

TANDEM_KERNEL(add_rows, ops::AddRowsArgs, 128) {
  const int64_t row = blockIdx.x;
  if (row >= *args.rows) return;
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < args.width; i += static_cast<int32_t>(blockDim.x)) {
    const int64_t at = row * args.width + i;
    args.y[at] = to_bf16(to_float(args.y[at]) + to_float(args.x[at]));
  }
}

TANDEM_KERNEL(zero_first, ops::ZeroFirstArgs, 128) {
  const int32_t row = static_cast<int32_t>(blockIdx.x);
  if (row >= args.step.counts[ops::step_rows] || args.step.positions[row] != 0) return;
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < args.width; i += static_cast<int32_t>(blockDim.x))
    args.rows[row * args.stride + i] = bf16{0};
}

}  // namespace
