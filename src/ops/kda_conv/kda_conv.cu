// Short convolution with SiLU, q/k normalisation, decay gate and beta (spec/model.md 3.2-3.4), a warp a head. Products
// in fp32; convolved values are rounded to bf16, and q and k normalised from the rounded ones.
//
// Floor of a row and head of 128: 768 bytes of raw rows and 256 of f read, 1,536 of q, k, g and 256 of v written; at
// 4.4 TB/s 0.64 ns, 0.7 µs a token for 32 heads and 34 layers.
#include "device/kernel.h"
#include "ops/kda_conv/kda_conv_steps.h"

namespace {

using namespace tandem;
using namespace tandem::device;
using namespace tandem::ops;

TANDEM_KERNEL(kda_conv_rows, KdaConvArgs, 128) {
  const int32_t lane = static_cast<int32_t>(threadIdx.x % 32);
  const int32_t number = static_cast<int32_t>(blockIdx.y * (blockDim.x / 32) + threadIdx.x / 32);
  const int32_t rows = args.step.counts[step_rows], first = static_cast<int32_t>(blockIdx.x) * args.rows_of_warp;
  if (first >= rows || number >= args.heads) return;
  KdaHead head;
  load_head(args, number, lane, head);
  const int32_t end = first + args.rows_of_warp < rows ? first + args.rows_of_warp : rows;
  for (int32_t row = first; row < end; ++row) {
    const SegmentView segment = args.step.segments[args.step.segment_of_row[row]];
    KdaHeadRow out;
    kda_head_row(args, segment, row, number, head, out);
    const int64_t at = static_cast<int64_t>(row) * args.heads * kda_dim + head.channel;
    store_values(args.q + at, out.q);
    store_values(args.k + at, out.k);
    store_values(args.v + at, out.v);
    store_values(args.g + at, out.g);
    if (lane == 0) args.beta[row * args.heads + number] = out.beta;
    if (kda_ring_at_once(segment)) kda_store_ring(args, segment, row, head.channel);
  }
}

// The last rows of long segments into their slots' rings; a block a row.
TANDEM_KERNEL(kda_conv_ring, KdaConvArgs, 128) {
  const int32_t row = static_cast<int32_t>(blockIdx.x);
  if (row >= args.step.counts[step_rows]) return;
  const SegmentView segment = args.step.segments[args.step.segment_of_row[row]];
  const int32_t index = row - segment.first_row;
  if (kda_ring_at_once(segment) || index < segment.rows - kda_ring_rows) return;
  const int32_t channels = 3 * args.heads * kda_dim;
  const auto* from = reinterpret_cast<const uint4*>(args.raw + row * args.raw_stride);
  auto* to = reinterpret_cast<uint4*>(args.ring.data + segment.slot * args.ring.stride +
                                      static_cast<int64_t>((segment.position + index) % kda_ring_rows) * channels);
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < channels / 8; i += static_cast<int32_t>(blockDim.x))
    to[i] = from[i];
}

}  // namespace
