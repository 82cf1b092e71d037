// mhc.cu against the CPU's hyper-connections on the same bf16 streams, rounded at the same points.
#include <cmath>

#include "base/error.h"
#include "device/kernel_dimensions.h"
#include "device/test_gpu.h"
#include "ops/mhc/mhc.h"
#include "ops/mhc/mhc_cuda.h"
#include "ops/norm/norm.h"
#include "ops/test_bf16.h"
#include "ops/test_random.h"

namespace tandem::ops::mhc_gpu_test {
namespace {

using device::from_gpu;
using device::on_gpu;

constexpr int64_t n = cuda_streams, outputs = mhc_outputs;
// Larger than a model's, and fewer steps, so that a missing one shows in the results.
constexpr float eps = 0.05f, hc_eps = 0.02f;
constexpr int64_t iterations = 3;
constexpr uint16_t poison = 0x7fff;

size_t index(int64_t i) { return static_cast<size_t>(i); }

// A site's parameters and a step's rows, on both sides.
struct Site {
  int64_t hidden, max_rows;
  std::vector<float> fn, base, scale, norm, streams, y, post, comb;
  CudaMhc mhc;
  device::GpuMemory gpu_fn, gpu_base, gpu_scale, gpu_norm, gpu_streams, gpu_y, gpu_post, gpu_comb, gpu_x, scratch;

  Site(int64_t hidden_size, int64_t rows)
      : hidden(hidden_size),
        max_rows(rows),
        fn(as_bf16_values(
            test::Random(1).normals(outputs * n * hidden, 1.5f / std::sqrt(static_cast<float>(n * hidden))))),
        base(test::Random(2).normals(outputs)),
        scale{0.7f, 1.3f, 0.9f},
        norm(test::Random(3).normals(hidden)),
        streams(as_bf16_values(test::Random(4).normals(rows * n * hidden))),
        y(as_bf16_values(test::Random(5).normals(rows * hidden))),
        post(test::Random(6).uniforms(rows * n, 0.0f, 2.0f)),
        comb(test::Random(7).uniforms(rows * n * n, 0.0f, 0.5f)),
        mhc(device::gpu_under_test(), device::model_defines({}), n, hidden, iterations, hc_eps, eps),
        gpu_fn(on_gpu(to_bf16(fn))),
        gpu_base(on_gpu(base)),
        gpu_scale(on_gpu(scale)),
        gpu_norm(on_gpu(norm)) {
    reset();
  }
  void reset() {
    gpu_streams = on_gpu(to_bf16(streams));
    gpu_y = on_gpu(to_bf16(y));
    gpu_post = on_gpu(post);
    gpu_comb = on_gpu(comb);
    gpu_x = on_gpu(std::vector<uint16_t>(index(max_rows * hidden), poison));
    scratch = device::gpu_under_test().allocate(CudaMhc::scratch_bytes(hidden, max_rows), "scratch");
  }
  // Rows from `first` on.
  CudaMhcRows at(const device::GpuMemory& count, int64_t first = 0) const {
    return {count.as<int32_t>(), gpu_streams.as<device::bf16>() + first * n * hidden, gpu_post.as<float>() + first * n,
            gpu_comb.as<float>() + first * n * n, scratch.as<float>()};
  }
  CudaMhcSite site() const {
    return {gpu_fn.as<device::bf16>(), gpu_base.as<float>(), gpu_scale.as<float>(), gpu_norm.as<float>()};
  }
  const device::bf16* y_of(int64_t row) const { return gpu_y.as<device::bf16>() + row * hidden; }
  device::bf16* x_of(int64_t row) const { return gpu_x.as<device::bf16>() + row * hidden; }
};

device::GpuMemory count_of(int64_t rows) { return on_gpu(std::vector<int32_t>{static_cast<int32_t>(rows)}); }

struct Expected {
  std::vector<float> streams, post, comb, x;
};

// The CPU's leave (if asked for) and enter, with the streams and the collapsed x rounded to bf16.
Expected expected(const Site& s, bool leaves) {
  device::Threads threads(1);
  Expected e{s.streams, s.post, s.comb, std::vector<float>(index(s.max_rows * s.hidden))};
  if (leaves) {
    mhc_leave(threads, {n, s.hidden, e.streams.data(), s.y.data(), e.post.data(), e.comb.data(), s.max_rows});
    e.streams = as_bf16_values(e.streams);
  }
  Matrix fn;
  fn.format = WeightFormat::f32;
  fn.data = reinterpret_cast<const std::byte*>(s.fn.data());
  fn.out_features = outputs;
  fn.in_features = fn.leaf_columns = n * s.hidden;
  std::vector<float> mapping(index(s.max_rows * outputs));
  MhcEnter a;
  a.fn = &fn;
  a.base = s.base.data();
  a.scale = s.scale.data();
  a.norm = s.norm.data();
  a.hidden = s.hidden;
  a.sinkhorn_iters = iterations;
  a.hc_eps = hc_eps;
  a.rms_norm_eps = eps;
  a.streams = e.streams.data();
  a.rows = s.max_rows;
  a.mapping = mapping.data();
  a.post = e.post.data();
  a.comb = e.comb.data();
  a.x = e.x.data();
  mhc_enter(threads, a);
  // x again, with its sum rounded before the norm: the mapping's m is left in `mapping`, scaled and shifted.
  for (int64_t row = 0; row < s.max_rows; ++row) {
    float* x = e.x.data() + row * s.hidden;
    for (int64_t d = 0; d < s.hidden; ++d) {
      float sum = 0.0f;
      for (int64_t i = 0; i < n; ++i) {
        const double pre =
            test::sigmoid(static_cast<double>(mapping[index(row * outputs + i)])) + static_cast<double>(hc_eps);
        sum = std::fma(static_cast<float>(pre), e.streams[index((row * n + i) * s.hidden + d)], sum);
      }
      x[d] = bf16_value(bf16_bits(sum));
    }
    rms_norm(x, s.norm.data(), eps, s.hidden, x);
  }
  return e;
}

void expect_entered(const Site& s, const Expected& e, int64_t rows) {
  const auto streams = from_gpu<uint16_t>(s.gpu_streams.data(), s.max_rows * n * s.hidden);
  const auto post = from_gpu<float>(s.gpu_post.data(), s.max_rows * n);
  const auto comb = from_gpu<float>(s.gpu_comb.data(), s.max_rows * n * n);
  const auto x = from_gpu<uint16_t>(s.gpu_x.data(), s.max_rows * s.hidden);
  const auto first = [](const std::vector<float>& values, int64_t count) {
    return std::span(values).first(index(count));
  };
  // One fma a term on both sides: the same bits.
  EXPECT_EQ(bf16_distance(streams.data(), first(e.streams, rows * n * s.hidden)), 0) << s.hidden;
  // fp32 sums of n · hidden products in another order, and approximate exponentials and reciprocals.
  for (int64_t i = 0; i < rows * n; ++i) EXPECT_NEAR(post[index(i)], e.post[index(i)], 5e-6);
  for (int64_t i = 0; i < rows * n * n; ++i) EXPECT_NEAR(comb[index(i)], e.comb[index(i)], 5e-6);
  // A collapsed value at a border between two bf16 values falls to either side, and the norm's rounding may add one.
  EXPECT_LE(bf16_distance(x.data(), first(e.x, rows * s.hidden), 1e-5f), 2) << s.hidden;
  for (int64_t i = rows * s.hidden; i < s.max_rows * s.hidden; ++i)
    ASSERT_EQ(x[index(i)], poison) << "a row that is not there";
  for (int64_t i = rows * n; i < s.max_rows * n; ++i) ASSERT_EQ(post[index(i)], s.post[index(i)]);
  for (int64_t i = rows * n * s.hidden; i < s.max_rows * n * s.hidden; ++i)
    ASSERT_EQ(streams[index(i)], bf16_bits(s.streams[index(i)])) << "a row that is not there";
}

std::vector<std::pair<int64_t, int64_t>> sizes() {  // hidden, rows
  if (device::gpu_is_emulated()) return {{64, 1}, {256, 9}, {296, 19}, {4104, 2}};
  return {{64, 1}, {4096, 1}, {4096, 7}, {4096, 600}, {6144, 3}};
}

TEST(MhcGpu, EnterAgainstTheCpu) {
  for (const auto& [hidden, rows] : sizes()) {
    const Site s(hidden, rows + 2);
    const Expected e = expected(s, false);
    s.mhc.enter(s.at(count_of(rows)), s.site(), s.x_of(0), hidden, s.max_rows);
    expect_entered(s, e, rows);
  }
}

TEST(MhcGpu, LeaveAndEnterAgainstTheCpu) {
  for (const auto& [hidden, rows] : sizes()) {
    const Site s(hidden, rows + 1);
    const Expected e = expected(s, true);
    const auto count = count_of(rows);
    s.mhc.leave_and_enter(s.at(count), s.y_of(0), hidden, s.site(), s.x_of(0), hidden, s.max_rows);
    expect_entered(s, e, rows);
  }
}

// Both in one launch, one after the other, and a row alone.
TEST(MhcGpu, OneArithmetic) {
  const int64_t hidden = device::gpu_is_emulated() ? 264 : 4096, rows = device::gpu_is_emulated() ? 21 : 700;
  Site s(hidden, rows);
  const auto all = count_of(rows), one = count_of(1);
  const auto results = [&] {
    return std::tuple(from_gpu<uint16_t>(s.gpu_streams.data(), rows * n * hidden),
                      from_gpu<uint16_t>(s.gpu_x.data(), rows * hidden), from_gpu<float>(s.gpu_post.data(), rows * n),
                      from_gpu<float>(s.gpu_comb.data(), rows * n * n));
  };
  s.mhc.leave_and_enter(s.at(all), s.y_of(0), hidden, s.site(), s.x_of(0), hidden, rows);
  const auto together = results();
  s.reset();
  s.mhc.leave(s.at(all), s.y_of(0), hidden, rows);
  s.mhc.enter(s.at(all), s.site(), s.x_of(0), hidden, rows);
  EXPECT_EQ(results(), together);
  s.reset();
  for (int64_t row = 0; row < rows; ++row) {
    if (row % 5 == 0) {  // a larger launch than there are rows
      s.mhc.leave_and_enter(s.at(one, row), s.y_of(row), hidden, s.site(), s.x_of(row), hidden, rows - row);
    } else {
      s.mhc.leave_and_enter(s.at(one, row), s.y_of(row), hidden, s.site(), s.x_of(row), hidden, 1);
    }
  }
  EXPECT_EQ(results(), together);
}

TEST(MhcGpu, CollapseIsTheMeanAndItsNorm) {
  for (const int64_t hidden : {64, 4096}) {
    const Site s(hidden, 5);
    const std::vector<int32_t> list = {4, 0, 2};
    const auto rows = on_gpu(list), count = count_of(3);
    for (const bool listed : {false, true}) {
      for (const bool normed : {false, true}) {
        const auto out = on_gpu(std::vector<uint16_t>(index(4 * hidden), poison));
        s.mhc.collapse(s.gpu_streams.as<device::bf16>(), normed ? s.gpu_norm.as<float>() : nullptr,
                       listed ? rows.as<int32_t>() : nullptr, count.as<int32_t>(), out.as<device::bf16>(), hidden, 4);
        const auto got = from_gpu<uint16_t>(out.data(), 4 * hidden);
        for (int64_t i = 0; i < 3; ++i) {
          const float* of_row = s.streams.data() + (listed ? list[index(i)] : i) * n * hidden;
          std::vector<float> mean(index(hidden));
          for (int64_t d = 0; d < hidden; ++d)
            mean[index(d)] = (of_row[d] + of_row[hidden + d] + of_row[2 * hidden + d] + of_row[3 * hidden + d]) / 4.0f;
          if (normed) rms_norm(mean.data(), s.norm.data(), eps, hidden, mean.data());
          // The mean's bits; the norm's fp32 statistics in another order.
          EXPECT_LE(bf16_distance(&got[index(i * hidden)], mean), normed ? 1 : 0);
        }
        for (int64_t i = 3 * hidden; i < 4 * hidden; ++i) ASSERT_EQ(got[index(i)], poison);
      }
    }
  }
}

TEST(MhcGpu, OtherModelsAreRefused) {
  const auto make = [](int64_t hc_mult, int64_t hidden) {
    return CudaMhc(device::gpu_under_test(), device::model_defines({}), hc_mult, hidden, iterations, hc_eps, eps);
  };
  EXPECT_THROW(make(2, 64), Error);
  EXPECT_THROW(make(4, 60), Error);
  EXPECT_EQ(make(4, 64).cost(2).bytes, 2 * (3 * 256 + 2 * 64) * 2 + 24 * 256 * 2);
}

}  // namespace
}  // namespace tandem::ops::mhc_gpu_test
