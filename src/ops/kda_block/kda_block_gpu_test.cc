// kda_block.cu against kda_block_cpu.cc, and that a row's bits are the same however its stream was cut into steps.
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "device/kernel_dimensions.h"
#include "device/test_gpu.h"
#include "ops/kda_block/kda_block.h"
#include "ops/kda_block/kda_block_cuda.h"
#include "ops/test_bf16.h"
#include "ops/test_random.h"
#include "ops/test_step.h"

namespace tandem::ops::kda_block_gpu_test {
namespace {

using device::bf16;
using device::from_gpu;
using device::on_gpu;
using test::TestSegment;

// Rows of a stream as kda_conv makes them.
struct Inputs {
  int64_t heads, dim, rows;
  std::vector<float> q, k, v, g, beta;
};

Inputs make_inputs(uint64_t seed, int64_t heads, int64_t dim, int64_t rows) {
  test::Random random(seed);
  const int64_t count = rows * heads * dim;
  Inputs in{heads, dim, rows, random.normals(count), random.normals(count), as_bf16_values(random.normals(count)),
            {},    {}};
  for (std::vector<float>* unit : {&in.q, &in.k}) {
    for (int64_t i = 0; i < count; i += dim) {
      float squares = 1e-6f;
      for (int64_t d = i; d < i + dim; ++d)
        squares += (*unit)[static_cast<size_t>(d)] * (*unit)[static_cast<size_t>(d)];
      const float factor = 1.0f / std::sqrt(unit == &in.q ? squares * static_cast<float>(dim) : squares);
      for (int64_t d = i; d < i + dim; ++d) (*unit)[static_cast<size_t>(d)] *= factor;
    }
  }
  for (int64_t i = 0; i < count; ++i)  // from long memory to none
    in.g.push_back(static_cast<float>(-5.0 * test::sigmoid(random.normal(3.0f) - 3.0)));
  for (int64_t i = 0; i < rows * heads; ++i) in.beta.push_back(static_cast<float>(test::sigmoid(random.normal(2.0f))));
  return in;
}

// The slots of one layer, and steps over them.
class Layer {
 public:
  Layer(int64_t heads, int64_t dim, int64_t slots)
      : heads_(heads),
        dim_(dim),
        s0_stride_(heads * dim * dim + 8),
        log_stride_(kda_log_rows * heads * dim + 4),
        block_(gpu(),
               device::model_defines(dim == 128 ? device::KernelDimensions{}
                                                : device::KernelDimensions{32, 72, 32, 4, 128}),
               dim),
        s0_(on_gpu(test::unwritten(slots * s0_stride_))),
        log_(on_gpu(test::unwritten(3 * slots * log_stride_))) {}

  struct Part {
    const Inputs* in;
    TestSegment segment;  // rows of `in` from its position on
    int64_t from = 0;     // rows of `in` to use instead of those at the position; −1 … of rejected drafts
  };
  // o of the rows of all segments, bf16; moves the segments' blocks on. Buckets are larger than the step.
  std::vector<uint16_t> step(const std::vector<Part>& parts, int64_t spare = 3) {
    std::vector<TestSegment> segments;
    std::vector<float> q, k, v, g, beta;
    for (const Part& part : parts) {
      segments.push_back(part.segment);
      const auto add = [&](std::vector<float>& to, const std::vector<float>& from, int64_t width) {
        const auto first = from.begin() + part.from * width;
        to.insert(to.end(), first, first + part.segment.rows * width);
      };
      for (const auto& [to, from] :
           {std::pair{&q, &part.in->q}, {&k, &part.in->k}, {&v, &part.in->v}, {&g, &part.in->g}})
        add(*to, *from, heads_ * dim_);
      add(beta, part.in->beta, heads_);
    }
    const test::TestStep step(segments);
    const int64_t max_rows = step.rows() + spare, max_segments = std::ssize(segments) + spare, width = heads_ * dim_;
    for (std::vector<float>* x : {&q, &k, &v, &g}) x->resize(static_cast<size_t>(max_rows * width), test::not_a_number);
    beta.resize(static_cast<size_t>(max_rows * heads_), test::not_a_number);
    const auto gpu_q = on_gpu(q), gpu_k = on_gpu(k), gpu_v = on_gpu(to_bf16(v)), gpu_g = on_gpu(g),
               gpu_beta = on_gpu(beta),
               o = on_gpu(std::vector<uint16_t>(static_cast<size_t>(max_rows * width), 0x7fff)),
               scratch = on_gpu(test::unwritten(CudaKdaBlock::scratch_bytes(heads_, dim_, max_rows, max_segments) / 4));
    block_.run({step.view(),
                static_cast<int32_t>(heads_),
                gpu_q.as<float>(),
                gpu_k.as<float>(),
                gpu_g.as<float>(),
                gpu_v.as<bf16>(),
                gpu_beta.as<float>(),
                {s0_.as<float>(), s0_stride_},
                log(0),
                log(1),
                log(2),
                scratch.as<float>(),
                o.as<bf16>()},
               max_rows, max_segments);
    std::vector<uint16_t> out = from_gpu<uint16_t>(o.data(), max_rows * width);
    EXPECT_TRUE(std::all_of(out.begin() + step.rows() * width, out.end(), [](uint16_t x) { return x == 0x7fff; }));
    out.resize(static_cast<size_t>(step.rows() * width));
    return out;
  }

  std::vector<float> s0(int64_t slot) const {
    return from_gpu<float>(s0_.as<float>() + slot * s0_stride_, heads_ * dim_ * dim_);
  }
  // Row of k (0), G (1) or delta (2) of a position.
  std::vector<float> log_row(int64_t which, int64_t slot, int64_t position) const {
    const SlotView<float> view = log(which);
    return from_gpu<float>(view.data + slot * view.stride + position % kda_log_rows * heads_ * dim_, heads_ * dim_);
  }

 private:
  static device::Gpu& gpu() { return device::gpu_under_test(); }
  SlotView<float> log(int64_t which) const { return {log_.as<float>() + which * (log_.size() / 12), log_stride_}; }
  int64_t heads_, dim_, s0_stride_, log_stride_;
  CudaKdaBlock block_;
  device::GpuMemory s0_, log_;
};

void append(std::vector<uint16_t>& to, const std::vector<uint16_t>& from, int64_t count) {
  to.insert(to.end(), from.begin(), from.begin() + count);
}

int32_t after(const TestSegment& s) {
  return static_cast<int32_t>(kda_block_after(s.kda_block, s.position, s.rows, s.certain_rows));
}

// One stream by steps of these many certain rows, alone in slot 0.
std::vector<uint16_t> run_steps(Layer& layer, const Inputs& in, const std::vector<int32_t>& cuts, int64_t spare = 3) {
  std::vector<uint16_t> o;
  TestSegment segment{0, 0, 0, 0, 0};
  for (const int32_t rows : cuts) {
    segment.rows = segment.certain_rows = rows;
    append(o, layer.step({{&in, segment, segment.position}}, spare), rows * in.heads * in.dim);
    segment.kda_block = after(segment);
    segment.position += rows;
  }
  EXPECT_EQ(segment.position, in.rows);
  return o;
}

struct Sizes {
  int64_t heads, dim, rows;
};
class KdaBlockGpu : public ::testing::TestWithParam<Sizes> {};

TEST_P(KdaBlockGpu, IsTheCpuOperation) {
  const auto [heads, dim, rows] = GetParam();
  const Inputs in = make_inputs(1, heads, dim, rows);
  const int64_t width = heads * dim;
  std::vector<float> s0(static_cast<size_t>(width * dim), 0.0f), log[3], working(s0.size()),
      o = test::unwritten(rows * width);
  for (std::vector<float>& x : log) x = test::unwritten(kda_log_rows * width);
  KdaBlock cpu{heads,
               dim,
               0,
               rows,
               rows,
               in.q.data(),
               in.k.data(),
               in.v.data(),
               in.g.data(),
               in.beta.data(),
               {s0.data(), log[0].data(), log[1].data(), log[2].data(), kda_log_rows, 0},
               working.data(),
               o.data()};
  device::Threads threads(1);
  kda_block(threads, cpu);

  Layer layer(heads, dim, 1);
  const std::vector<uint16_t> got = run_steps(layer, in, {static_cast<int32_t>(rows)});
  // Sums of some 10² terms in another order and exponentials that differ in the last place: fp32 results differ by a
  // few 1e-7 of the largest, so bf16 values by at most one place where they are not themselves a small difference.
  EXPECT_LE(bf16_distance(got.data(), o, 2e-6f), 1);
  const auto close = [](const std::vector<float>& a, const std::vector<float>& b) {
    return test::close(a, std::vector<double>(b.begin(), b.end()), 3e-6);
  };
  EXPECT_TRUE(close(layer.s0(0), s0));
  for (int64_t p = std::max<int64_t>(0, rows - kda_log_rows); p < rows; ++p) {
    for (int64_t which = 0; which < 3; ++which) {
      const float* row = log[which].data() + p % kda_log_rows * width;
      EXPECT_TRUE(close(layer.log_row(which, 0, p), std::vector<float>(row, row + width))) << which << " " << p;
    }
  }
}

TEST_P(KdaBlockGpu, CutsDoNotMatter) {
  const auto [heads, dim, rows] = GetParam();
  const Inputs in = make_inputs(2, heads, dim, rows);
  Layer serial(heads, dim, 1);
  const std::vector<uint16_t> expected = run_steps(serial, in, std::vector<int32_t>(static_cast<size_t>(rows), 1));
  const auto n = static_cast<int32_t>(rows);
  for (const std::vector<int32_t>& cuts :
       {std::vector<int32_t>{n}, {16, n - 16}, {15, n - 15}, {1, 2, 14, 16, n - 33}, {n - 3, 3}}) {
    Layer layer(heads, dim, 1);
    EXPECT_EQ(run_steps(layer, in, cuts, cuts.size() == 2 ? 40 : 1), expected) << cuts.front();
    if (cuts.back() != n) continue;  // the state stands where the serial one's does
    EXPECT_TRUE(test::same_bits(layer.s0(0), serial.s0(0)));
    for (int64_t p = std::max<int64_t>(0, rows - kda_log_rows); p < rows; ++p)
      for (int64_t which = 0; which < 3; ++which)
        EXPECT_TRUE(test::same_bits(layer.log_row(which, 0, p), serial.log_row(which, 0, p))) << which << " " << p;
  }
}

// Windows of one certain row and drafts, of which some are rejected, beside another stream's prompt in the same step.
TEST_P(KdaBlockGpu, DraftsAndOtherStreamsDoNotMatter) {
  const auto [heads, dim, rows] = GetParam();
  const Inputs in = make_inputs(3, heads, dim, rows), wrong = make_inputs(4, heads, dim, rows),
               other = make_inputs(5, heads, dim, 80);
  Layer serial(heads, dim, 1);
  const std::vector<uint16_t> expected = run_steps(serial, in, std::vector<int32_t>(static_cast<size_t>(rows), 1));
  Layer layer(heads, dim, 3);
  const int64_t width = heads * dim;
  std::vector<uint16_t> o;
  TestSegment window{2, 0, 1, 0, 0}, prompt{0, 0, 0, 0, 0};
  const int32_t drafts[] = {15, 7, 15, 3, 15, 11, 0, 15}, right[] = {15, 2, 0, 3, 13, 1, 0, 15};
  for (size_t i = 0; window.position < rows; ++i) {
    const auto left = static_cast<int32_t>(rows) - window.position;
    const int32_t accepted = std::min(right[i % 8], left - 1);
    window.rows = 1 + std::min(drafts[i % 8], left - 1);
    prompt.rows = prompt.certain_rows = i % 2 == 0 ? 9 : 3;
    if (prompt.position + prompt.rows > other.rows) prompt = {0, 9, 9, 0, 0};
    // First a window of which nothing is kept; its log rows are there when the right ones come.
    if (accepted < window.rows - 1) {
      window.certain_rows = 0;
      layer.step({{&wrong, window, window.position}});
      window.kda_block = after(window);
      window.certain_rows = 1;
    }
    const Layer::Part own{&in, window, window.position}, others{&other, prompt, prompt.position};
    const std::vector<uint16_t> got = i % 2 == 0 ? layer.step({others, own}) : layer.step({own, others}, 33);
    const auto first = got.begin() + (i % 2 == 0 ? prompt.rows * width : 0);
    append(o, {first, first + window.rows * width}, (1 + accepted) * width);
    window.kda_block = after(window);
    window.position += 1 + accepted;
    prompt.kda_block = after(prompt);
    prompt.position += prompt.rows;
  }
  EXPECT_EQ(o, expected);
}

std::vector<Sizes> sizes() {
  std::vector<Sizes> all = {{2, 32, 53}, {1, 128, 50}};
  if (!device::gpu_is_emulated()) all.push_back({64, 128, 50});
  return all;
}

INSTANTIATE_TEST_SUITE_P(Dimensions, KdaBlockGpu, ::testing::ValuesIn(sizes()), [](const auto& at) {
  return "heads" + std::to_string(at.param.heads) + "dim" + std::to_string(at.param.dim);
});

}  // namespace
}  // namespace tandem::ops::kda_block_gpu_test
