// Index keys: raw rows into the rings, finished pools into pages (index_store.h; spec/model.md 4.5, 4.7). A block a
// row: the row that finishes a pool pools it; a segment's first row also pools what began before the step, whose rows
// the ring still holds, and only then lets the ring have the step's last rows. So nothing is read after it is
// overwritten. Floor: keys and gates read once, a record for four rows written: 0.6 KiB a row at 4.4 TB/s, 0.14 ns.
#include "device/kernel.h"
#include "ops/index/index_store_args.h"
#include "quant/cache_records_device.h"

namespace {

using namespace tandem;
using namespace tandem::device;

constexpr int32_t dim = TANDEM_INDEX_HEAD_DIM;
constexpr int32_t kpool = TANDEM_INDEX_KPOOL;
static_assert(dim <= 256, "a thread has a channel");

// Channel d of the pool's key (pool_keys()).
TANDEM_DEVICE float pooled_channel(const ops::IndexStoreArgs& args, const ops::SegmentView& segment, int32_t pool,
                                   int32_t d) {
  float keys[kpool], weights[kpool], largest = 0.0f, sum = 0.0f, total = 0.0f;
  for (int32_t j = 0; j < kpool; ++j) {
    const int32_t position = pool * kpool + j;
    const bf16 *key, *gate;
    if (position >= segment.position) {
      const int64_t row = segment.first_row + (position - segment.position);
      key = args.key + row * args.key_stride;
      gate = args.gate + row * args.gate_stride;
    } else {
      const int64_t at = static_cast<int64_t>(position & (args.ring_rows - 1)) * dim;
      key = args.key_ring.data + segment.slot * args.key_ring.stride + at;
      gate = args.gate_ring.data + segment.slot * args.gate_ring.stride + at;
    }
    keys[j] = to_float(key[d]);
    weights[j] = to_float(gate[d]) + args.ape[j * dim + d];
    largest = j == 0 || weights[j] > largest ? weights[j] : largest;
  }
  for (int32_t j = 0; j < kpool; ++j) {
    weights[j] = exp_(weights[j] - largest);
    sum += weights[j];
  }
  for (int32_t j = 0; j < kpool; ++j) total = fma_(weights[j] / sum, keys[j], total);
  return total;
}

// By the whole block.
TANDEM_DEVICE void store_pool(const ops::IndexStoreArgs& args, const ops::SegmentView& segment, int32_t pool,
                              float* row) {
  const ops::PlaneView& plane = args.pooled;
  const int32_t entry = pool / plane.rows_of_page;
  if (entry % plane.ranks != plane.rank) return;
  const int64_t place = static_cast<int64_t>(args.step.page_tables[segment.page_table + entry]) * plane.rows_of_page +
                        pool % plane.rows_of_page;
  const auto d = static_cast<int32_t>(threadIdx.x);
  if (d < dim) row[d] = pooled_channel(args, segment, pool, d);
  __syncthreads();
  if (d >= 32) return;
  uint8_t* data = plane.data + place * plane.row_bytes;
  if (plane.kind == quant::record_index_fp8) {
    quant::encode_index(dim, row, data, plane.scales + place * 4, d);
  } else {
    quant::encode_record(plane.kind, dim, 0.0f, row, data, d);
  }
}

TANDEM_KERNEL(index_store, ops::IndexStoreArgs, 256) {
  __shared__ float key_of_pool[dim];
  const auto row = static_cast<int32_t>(blockIdx.x);
  if (row >= args.step.counts[ops::step_rows]) return;
  const ops::SegmentView& segment = args.step.segments[args.step.segment_of_row[row]];
  const int32_t position = args.step.positions[row], begin = segment.position, end = begin + segment.rows;
  if ((position + 1) % kpool == 0 && position - kpool + 1 >= begin)
    store_pool(args, segment, position / kpool, key_of_pool);
  if (row != segment.first_row) return;
  // The pool that was under way when the step began.
  if (begin % kpool != 0 && (begin / kpool + 1) * kpool <= end) store_pool(args, segment, begin / kpool, key_of_pool);
  __syncthreads();
  const int32_t first = segment.rows > args.ring_rows ? end - args.ring_rows : begin;
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < (end - first) * dim; i += static_cast<int32_t>(blockDim.x)) {
    const int32_t p = first + i / dim, d = i % dim;
    const int64_t from = segment.first_row + (p - begin);
    const int64_t at = static_cast<int64_t>(p & (args.ring_rows - 1)) * dim + d;
    args.key_ring.data[segment.slot * args.key_ring.stride + at] = args.key[from * args.key_stride + d];
    args.gate_ring.data[segment.slot * args.gate_ring.stride + at] = args.gate[from * args.gate_stride + d];
  }
}

}  // namespace
