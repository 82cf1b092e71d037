// MTP's shared selection (forward/dsa_layer.cc): a block a segment. Floor: some 8 KiB copied a segment, less than the
// launch.
#include "device/kernel.h"
#include "ops/index/index_select_args.h"

namespace {

using namespace tandem;
using namespace tandem::device;

TANDEM_KERNEL(selection_leave, ops::SelectionShareArgs, 256) {
  if (static_cast<int32_t>(blockIdx.x) >= args.step.counts[ops::step_segments]) return;
  const ops::SegmentView& segment = args.step.segments[blockIdx.x];
  if (segment.rows == 0) return;
  const int32_t row = segment.first_row + segment.rows - 1, count = args.counts[row];
  const int32_t* from = args.selected + static_cast<int64_t>(row) * args.max_selected;
  int32_t* to = args.shared_selected + static_cast<int64_t>(segment.slot) * args.max_selected;
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < count; i += static_cast<int32_t>(blockDim.x)) to[i] = from[i];
  if (threadIdx.x == 0) args.shared_counts[segment.slot] = count;
}

TANDEM_KERNEL(selection_reuse, ops::SelectionShareArgs, 256) {
  if (static_cast<int32_t>(blockIdx.x) >= args.step.counts[ops::step_segments]) return;
  const ops::SegmentView& segment = args.step.segments[blockIdx.x];
  const int32_t row = segment.first_row, count = args.shared_counts[segment.slot];
  int32_t* kept = args.shared_selected + static_cast<int64_t>(segment.slot) * args.max_selected;
  int32_t* to = args.selected + static_cast<int64_t>(row) * args.max_selected;
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < count; i += static_cast<int32_t>(blockDim.x)) to[i] = kept[i];
  __syncthreads();  // everybody has read the count
  if (threadIdx.x != 0) return;
  kept[count] = to[count] = segment.position;
  args.shared_counts[segment.slot] = args.counts[row] = count + 1;
  if (args.gaps != nullptr) args.gaps[row] = bits_to_float(0x7f800000u);
}

}  // namespace
