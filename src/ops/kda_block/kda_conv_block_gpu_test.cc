// The convolution and the recurrence in two launches give the bits of the two operations, and leave the same rings,
// logs and states.
#include <algorithm>
#include <string>

#include "base/error.h"
#include "device/kernel_dimensions.h"
#include "device/test_gpu.h"
#include "ops/kda_block/kda_block.h"
#include "ops/kda_block/kda_block_cuda.h"
#include "ops/kda_conv/kda_conv_cuda.h"
#include "ops/test_bf16.h"
#include "ops/test_random.h"
#include "ops/test_step.h"

namespace tandem::ops::kda_conv_block_gpu_test {
namespace {

using device::bf16;
using device::from_gpu;
using device::GpuMemory;
using device::on_gpu;
using test::TestSegment;

constexpr int64_t slots = 2, max_rows = 80, max_segments = 3;

struct Sizes {
  int64_t heads, dim;
};

class KdaConvBlockGpu : public ::testing::TestWithParam<Sizes> {
 protected:
  const int64_t heads_ = GetParam().heads, dim_ = GetParam().dim, width_ = heads_ * dim_;
  device::Gpu& gpu_ = device::gpu_under_test();
  const std::vector<std::string> defines_ =
      device::model_defines(dim_ == 128 ? device::KernelDimensions{} : device::KernelDimensions{32, 72, 32, 4, 128});
  const CudaKdaConv conv_{gpu_, defines_, dim_};
  const CudaKdaBlock block_{gpu_, defines_, dim_};
  const GpuMemory taps_ = on_gpu(test::Random(1).normals(4 * 3 * width_)),
                  bias_ = on_gpu(test::Random(2).normals(width_)),
                  rate_ = on_gpu(test::Random(3).uniforms(heads_, 0.1f, 3.0f));

  static GpuMemory halves(int64_t count) { return on_gpu(std::vector<uint16_t>(static_cast<size_t>(count), 0x7fff)); }
  static GpuMemory random_halves(uint64_t seed, int64_t count, float size) {
    return on_gpu(to_bf16(test::Random(seed).normals(count, size)));
  }
  static GpuMemory floats(int64_t count) { return on_gpu(test::unwritten(count)); }

  // What a layer remembers of its slots.
  struct State {
    GpuMemory ring, s0, log;
  };
  State state() const {
    return {halves(slots * kda_ring_rows * 3 * width_), floats(slots * width_ * dim_),
            floats(3 * slots * kda_log_rows * width_)};
  }
  // o of a step over random rows.
  std::vector<uint16_t> run(const State& state, const std::vector<TestSegment>& segments, uint64_t seed,
                            bool fused) const {
    const test::TestStep step(segments);
    const GpuMemory raw = random_halves(seed, max_rows * 3 * width_, 1.0f),
                    f = random_halves(seed + 1, max_rows * width_, 3.0f),
                    b = random_halves(seed + 2, max_rows * heads_, 3.0f), q = floats(max_rows * width_),
                    k = floats(max_rows * width_), g = floats(max_rows * width_), v = halves(max_rows * width_),
                    beta = floats(max_rows * heads_), o = halves(max_rows * width_),
                    scratch = floats(CudaKdaBlock::scratch_bytes(heads_, dim_, max_rows, max_segments) / 4);
    KdaConvArgs conv{};
    conv.step = step.view();
    conv.raw = raw.as<bf16>(), conv.raw_stride = 3 * width_;
    conv.f = f.as<bf16>(), conv.f_stride = width_;
    conv.b = b.as<bf16>(), conv.b_stride = heads_;
    conv.ring = {state.ring.as<bf16>(), kda_ring_rows * 3 * width_};
    conv.taps = taps_.as<float>();
    conv.dt_bias = bias_.as<float>();
    conv.rate = rate_.as<float>();
    conv.gate_lower_bound = -5.0f;
    conv.heads = static_cast<int32_t>(heads_);
    conv.kernel = 4;
    conv.k = k.as<float>(), conv.g = g.as<float>(), conv.v = v.as<bf16>();
    KdaBlockArgs block{};
    block.step = step.view();
    block.heads = static_cast<int32_t>(heads_);
    block.k = conv.k, block.g = conv.g, block.v = conv.v;
    block.s0 = {state.s0.as<float>(), width_ * dim_};
    const int64_t log = kda_log_rows * width_;
    block.log_k = {state.log.as<float>(), log};
    block.log_g = {state.log.as<float>() + slots * log, log};
    block.log_delta = {state.log.as<float>() + 2 * slots * log, log};
    block.scratch = scratch.as<float>();
    block.o = o.as<bf16>();
    if (fused) {
      block_.run_with_conv(conv, block, max_rows, max_segments);
    } else {
      conv.q = q.as<float>(), conv.beta = beta.as<float>();
      block.q = conv.q, block.beta = conv.beta;
      conv_.run(conv, max_rows);
      block_.run(block, max_rows, max_segments);
    }
    return from_gpu<uint16_t>(o.data(), max_rows * width_);
  }
};

TEST_P(KdaConvBlockGpu, IsTheTwoOperations) {
  const State apart = state(), together = state();
  TestSegment a{0, 0, 0, 0, 0}, b{1, 0, 0, 0, 0};
  const int32_t rows[][2] = {{3, 40}, {20, 1}, {1, 16}, {33, 29}, {16, 30}, {7, 1}};
  uint64_t seed = 10;
  for (const auto& [rows_a, rows_b] : rows) {
    a.rows = a.certain_rows = rows_a;
    b.rows = rows_b;
    b.certain_rows = rows_b == 16 ? 1 : rows_b;  // once a window of which all is accepted
    const std::vector<uint16_t> expected = run(apart, {a, b}, seed, false), got = run(together, {a, b}, seed, true);
    const auto used = static_cast<size_t>((rows_a + rows_b) * width_);
    EXPECT_TRUE(
        std::none_of(got.begin(), got.begin() + static_cast<int64_t>(used), [](uint16_t x) { return x == 0x7fff; }));
    EXPECT_EQ(got, expected) << rows_a;
    for (TestSegment* s : {&a, &b}) {
      s->kda_block = static_cast<int32_t>(kda_block_after(s->kda_block, s->position, s->rows, s->certain_rows));
      s->position += s->rows;
    }
    seed += 3;
  }
  EXPECT_EQ(from_gpu<uint16_t>(together.ring.data(), together.ring.size() / 2),
            from_gpu<uint16_t>(apart.ring.data(), apart.ring.size() / 2));
  for (const auto& [x, y] : {std::pair{&together.s0, &apart.s0}, {&together.log, &apart.log}})
    EXPECT_TRUE(test::same_bits(from_gpu<float>(x->data(), x->size() / 4), from_gpu<float>(y->data(), y->size() / 4)));
}

TEST_P(KdaConvBlockGpu, AKernelTooLongIsAnError) {
  KdaConvArgs conv{};
  conv.kernel = kda_max_taps + 1;
  EXPECT_THROW(block_.run_with_conv(conv, {}, 1, 1), Error);
}

std::vector<Sizes> sizes() {
  std::vector<Sizes> all = {{2, 32}, {2, 128}};
  if (!device::gpu_is_emulated()) all.push_back({64, 128});
  return all;
}

INSTANTIATE_TEST_SUITE_P(Dimensions, KdaConvBlockGpu, ::testing::ValuesIn(sizes()), [](const auto& at) {
  return "heads" + std::to_string(at.param.heads) + "dim" + std::to_string(at.param.dim);
});

}  // namespace
}  // namespace tandem::ops::kda_conv_block_gpu_test
