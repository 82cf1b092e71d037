// block_attend.cu against block_attend.h on the same bf16 values; what may not be read is NaN.
#include "base/error.h"
#include "device/kernel_dimensions.h"
#include "device/test_gpu.h"
#include "ops/block_attend/block_attend.h"
#include "ops/block_attend/block_attend_cuda.h"
#include "ops/test_bf16.h"
#include "ops/test_random.h"

namespace tandem::ops::block_attend_gpu_test {
namespace {

using device::bf16;
using device::from_gpu;
using device::on_gpu;

constexpr int64_t dim = 128;  // of both sets of dimensions

struct Block {
  int32_t position, first, slot;  // first: no context below may be read
};

struct Example {
  int32_t block_rows = 8, heads = 8, kv_heads = 2, window = 150, ring_rows = 149 + 16;
  std::vector<Block> blocks;
  int64_t slots = 4;
  std::vector<float> q, k, v, ring;  // bf16 values; ring [slots, ring rows, keys then values]

  int64_t width() const { return kv_heads * dim; }
  int64_t rows() const { return std::ssize(blocks) * block_rows; }
  int64_t slot_stride() const { return ring_rows * 2 * width(); }

  void fill() {
    test::Random random(5);
    q = as_bf16_values(random.normals(rows() * heads * dim));
    k = as_bf16_values(random.normals(rows() * width()));
    v = as_bf16_values(random.normals(rows() * width()));
    ring = test::unwritten(slots * slot_stride());
    for (const Block& block : blocks) {
      for (int64_t p = std::max(block.first, block.position - (window - 1)); p < block.position; ++p) {
        const std::vector<float> row = as_bf16_values(random.normals(2 * width()));
        std::copy(row.begin(), row.end(), ring.begin() + block.slot * slot_stride() + p % ring_rows * 2 * width());
      }
    }
  }

  std::vector<float> on_cpu() const {
    device::Threads one(1);
    std::vector<ContextRows> context;
    std::vector<int64_t> positions;
    for (const Block& block : blocks) {
      context.push_back({reinterpret_cast<const std::byte*>(ring.data() + block.slot * slot_stride()), ring_rows,
                         CacheElement::f32, block.first});
      positions.push_back(block.position);
    }
    std::vector<float> out = test::unwritten(std::ssize(q)),
                       scratch = test::unwritten(block_attend_scratch(block_rows, heads, kv_heads, dim, window));
    block_attend(one, {std::ssize(blocks), block_rows, heads, kv_heads, dim, window, 0.09f, q.data(), k.data(),
                       v.data(), context.data(), positions.data(), scratch.data(), out.data()});
    return out;
  }

  // Blocks [first, first + count) of a launch for one more.
  std::vector<uint16_t> on_the_gpu(const CudaBlockAttend& attend, int64_t first, int64_t count) const {
    const int64_t max_blocks = count + 1;
    std::vector<SegmentView> segments(static_cast<size_t>(max_blocks), SegmentView{1 << 20, 0, 0, 0, 0, 0, 0, 0});
    std::vector<int32_t> firsts(static_cast<size_t>(max_blocks));
    for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
      const Block& block = blocks[static_cast<size_t>(first) + i];
      segments[i].slot = block.slot;
      segments[i].position = block.position;
      firsts[i] = block.first;
    }
    const auto part = [&](const std::vector<float>& all, int64_t of_row) {
      std::vector<uint16_t> some =
          to_bf16({all.data() + first * block_rows * of_row, static_cast<size_t>(count * block_rows * of_row)});
      some.resize(static_cast<size_t>(max_blocks * block_rows * of_row), 0x7fff);
      return on_gpu(some);
    };
    const auto gpu_q = part(q, heads * dim), gpu_k = part(k, width()), gpu_v = part(v, width());
    const auto gpu_ring = on_gpu(to_bf16(ring));
    const auto gpu_segments = on_gpu(segments);
    const auto gpu_firsts = on_gpu(firsts), blocks_there = on_gpu(std::vector<int32_t>{static_cast<int32_t>(count)});
    const int64_t size = max_blocks * block_rows * heads * dim;
    const auto out = on_gpu(std::vector<uint16_t>(static_cast<size_t>(size), 0x7fff));
    BlockAttendArgs args{};
    args.blocks = blocks_there.as<int32_t>();
    args.segments = gpu_segments.as<SegmentView>();
    args.context_first = gpu_firsts.as<int32_t>();
    args.block_rows = block_rows;
    args.heads = heads;
    args.kv_heads = kv_heads;
    args.window = window;
    args.scale = 0.09f;
    args.q = gpu_q.as<bf16>();
    args.k = gpu_k.as<bf16>();
    args.v = gpu_v.as<bf16>();
    args.q_stride = args.out_stride = heads * dim;
    args.kv_stride = width();
    args.ring = gpu_ring.as<bf16>();
    args.slot_stride = slot_stride();
    args.ring_rows = ring_rows;
    args.out = out.as<bf16>();
    const auto scratch =
        device::gpu_under_test().allocate(CudaBlockAttend::scratch_bytes(args, dim, max_blocks), "scratch");
    device::gpu_under_test().fill(scratch.data(), 0xff, scratch.size());  // NaN
    attend.run(args, max_blocks, scratch.data());
    std::vector<uint16_t> got = from_gpu<uint16_t>(out.data(), size);
    for (auto i = static_cast<size_t>(count * block_rows * heads * dim); i < got.size(); ++i)
      if (got[i] != 0x7fff) ADD_FAILURE() << "a block that is not there, value " << i;
    got.resize(static_cast<size_t>(count * block_rows * heads * dim));
    return got;
  }
};

// No context, a little of it, a full window at places where pieces do not begin, a history that begins late. fp32 sums
// in another order and e^x by another approximation (2^-22): 1 unit in the last place of bf16; values below 2e-5, where
// the sum over values cancels, may differ by more.
TEST(BlockAttendGpu, AgainstTheCpu) {
  for (const device::KernelDimensions& dimensions : {device::KernelDimensions{}, {32, 72, 32, 4, 128}}) {
    const CudaBlockAttend attend(device::gpu_under_test(), device::model_defines(dimensions), dim);
    Example example;
    example.blocks = {{0, 0, 3}, {5, 0, 1}, {1'000'000, 0, 0}, {700, 641, 2}};
    example.fill();
    EXPECT_LE(bf16_distance(example.on_the_gpu(attend, 0, 4).data(), example.on_cpu(), 2e-5f), 1);
  }
}

// 3 query heads a key head and 13 rows: two tiles of query rows, the second not full.
TEST(BlockAttendGpu, MoreQueriesThanATile) {
  const CudaBlockAttend attend(device::gpu_under_test(), device::model_defines({}), dim);
  Example example;
  example.block_rows = 13;
  example.heads = 3;
  example.kv_heads = 1;
  example.window = 65;
  example.ring_rows = 90;
  example.blocks = {{64, 0, 0}, {200, 190, 1}};
  example.fill();
  EXPECT_LE(bf16_distance(example.on_the_gpu(attend, 0, 2).data(), example.on_cpu(), 2e-5f), 1);
}

TEST(BlockAttendGpu, BitsDoNotDependOnTheOtherBlocks) {
  const CudaBlockAttend attend(device::gpu_under_test(), device::model_defines({}), dim);
  Example example;
  example.blocks = {{77, 0, 3}, {500, 0, 1}, {130, 64, 0}};
  example.fill();
  const std::vector<uint16_t> all = example.on_the_gpu(attend, 0, 3);
  const int64_t size = example.block_rows * example.heads * dim;
  for (int64_t block = 0; block < 3; ++block) {
    EXPECT_EQ(example.on_the_gpu(attend, block, 1),
              std::vector<uint16_t>(all.begin() + block * size, all.begin() + (block + 1) * size));
  }
}

TEST(BlockAttendGpu, RefusesTooManyRows) {
  const CudaBlockAttend attend(device::gpu_under_test(), device::model_defines({}), dim);
  BlockAttendArgs args{};
  args.block_rows = 65;
  args.heads = args.kv_heads = 1;
  EXPECT_THROW(attend.run(args, 1, nullptr), Error);
}

}  // namespace
}  // namespace tandem::ops::block_attend_gpu_test
