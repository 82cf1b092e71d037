// Block attention on the CPU, a task for each key head of each block. Keys are taken in tiles from the first one that
// any row sees, so a block's sums do not depend on other blocks or on what lies outside its window.
#include <algorithm>
#include <array>

#include "ops/block_attend/block_attend.h"
#include "ops/simd/kernels.h"

namespace tandem::ops {
namespace {

constexpr int64_t block_tile_keys = 64;

// Pieces of a lane's scratch.
struct BlockLane {
  float *q, *scores, *rows;  // [query rows, head_dim], [query rows, keys], [block_tile_keys, head_dim]
};

class HeadOfBlock {
 public:
  HeadOfBlock(const BlockAttend& args, int64_t block, int64_t kv_head, const BlockLane& lane)
      : a_(args),
        block_(block),
        kv_head_(kv_head),
        lane_(lane),
        group_(args.heads / args.kv_heads),
        position_(args.positions[block]),
        first_(first_of_row(0)),
        context_(position_ - first_),
        keys_(context_ + args.block_rows),
        stride_(args.window - 1 + args.block_rows) {}

  void run() {
    for (int64_t r = 0; r < a_.block_rows; ++r)
      std::copy_n(query(r, a_.q), group_ * a_.head_dim, lane_.q + r * group_ * a_.head_dim);
    for_tiles(0, [&](const float* const* rows, int64_t begin, int64_t count) { score(rows, begin, count); });
    for (int64_t r = 0; r < a_.block_rows; ++r) softmax(r);
    const int64_t value = a_.kv_heads * a_.head_dim;
    for_tiles(value, [&](const float* const* rows, int64_t begin, int64_t count) { combine(rows, begin, count); });
  }

 private:
  int64_t first_of_row(int64_t r) const {
    return std::min(position_, std::max(a_.context[block_].first, position_ + r - (a_.window - 1)));
  }
  // Of the keys in the order of this block: the first that row r sees.
  int64_t skipped(int64_t r) const { return first_of_row(r) - first_; }
  template <typename T>
  T* query(int64_t r, T* rows) const {
    return rows + ((block_ * a_.block_rows + r) * a_.heads + kv_head_ * group_) * a_.head_dim;
  }
  float* scores(int64_t r, int64_t g) const { return lane_.scores + (r * group_ + g) * stride_; }

  // Calls body(rows, begin, count) for tiles of keys (column 0) or of values (column kv_heads·head_dim): context
  // first, then the block.
  template <typename Body>
  void for_tiles(int64_t column, const Body& body) const {
    std::array<const float*, block_tile_keys> rows;
    const ContextRows& context = a_.context[block_];
    const int64_t width = 2 * a_.kv_heads * a_.head_dim, bytes = element_bytes(context.element);
    for (int64_t begin = 0; begin < context_; begin += block_tile_keys) {
      const int64_t count = std::min(block_tile_keys, context_ - begin);
      for (int64_t i = 0; i < count; ++i) {
        const int64_t at = (first_ + begin + i) % context.ring_rows * width + column + kv_head_ * a_.head_dim;
        const std::byte* stored = context.data + at * bytes;
        if (context.element == CacheElement::bf16) {
          float* decoded = lane_.rows + i * a_.head_dim;
          kernels().decode_bf16(stored, a_.head_dim, decoded);
          rows[static_cast<size_t>(i)] = decoded;
        } else {
          rows[static_cast<size_t>(i)] = reinterpret_cast<const float*>(stored);
        }
      }
      body(rows.data(), begin, count);
    }
    const float* own = column == 0 ? a_.k : a_.v;
    for (int64_t i = 0; i < a_.block_rows; ++i) {
      const int64_t row = (block_ * a_.block_rows + i) * a_.kv_heads + kv_head_;
      rows[static_cast<size_t>(i)] = own + row * a_.head_dim;
    }
    body(rows.data(), context_, a_.block_rows);
  }

  void score(const float* const* rows, int64_t begin, int64_t count) const {
    DotRows d;
    d.w_rows = rows;
    d.count = count;
    d.k = a_.head_dim;
    d.x = lane_.q;
    d.x_stride = a_.head_dim;
    d.rows = a_.block_rows * group_;
    d.y = lane_.scores + begin;
    d.y_stride = stride_;
    kernels().dot_rows(d);
  }

  void softmax(int64_t r) const {
    const Kernels& k = kernels();
    const int64_t skip = skipped(r), count = keys_ - skip;
    for (int64_t g = 0; g < group_; ++g) {
      float* row = scores(r, g) + skip;
      k.scale(row, a_.scale, count, row);
      k.exp_minus(row, *std::max_element(row, row + count), count, row);
      k.scale(row, 1.0f / k.sum(row, count), count, row);
    }
  }

  void combine(const float* const* rows, int64_t begin, int64_t count) const {
    for (int64_t r = 0; r < a_.block_rows; ++r) {
      const int64_t skip = std::max<int64_t>(0, skipped(r) - begin);
      if (skip >= count) continue;
      CombineRows c;
      c.pointers = rows + skip;
      c.count = count - skip;
      c.dims = a_.head_dim;
      c.x = scores(r, 0) + begin + skip;
      c.x_stride = stride_;
      c.rows = group_;
      c.out = query(r, a_.out);
      c.out_stride = a_.head_dim;
      if (begin + skip > skipped(r)) {  // not the first tile that this row sees
        c.init = c.out;
        c.init_stride = a_.head_dim;
      }
      kernels().combine_rows(c);
    }
  }

  const BlockAttend& a_;
  int64_t block_, kv_head_;
  BlockLane lane_;
  int64_t group_, position_, first_, context_, keys_, stride_;
};

}  // namespace

int64_t block_attend_scratch(int64_t block_rows, int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t window) {
  const int64_t query_rows = block_rows * (heads / kv_heads);
  return query_rows * (head_dim + window - 1 + block_rows) + block_tile_keys * head_dim;
}

void block_attend(device::Threads& threads, const BlockAttend& args) {
  const int64_t query_rows = args.block_rows * (args.heads / args.kv_heads), tasks = args.blocks * args.kv_heads;
  const int64_t size = block_attend_scratch(args.block_rows, args.heads, args.kv_heads, args.head_dim, args.window);
  const int64_t lanes = std::min<int64_t>(threads.count(), tasks);
  threads.run(lanes, [&](int64_t lane) {
    float* q = args.scratch + lane * size;
    float* rows = q + query_rows * args.head_dim;
    const BlockLane pieces{q, rows + block_tile_keys * args.head_dim, rows};
    for (int64_t task = lane; task < tasks; task += lanes)
      HeadOfBlock(args, task / args.kv_heads, task % args.kv_heads, pieces).run();
  });
}

}  // namespace tandem::ops
