// kda_conv.cu against the formulas in double precision with its one rounding, and that a row's bits are the same
// however its stream was cut into steps.
#include <algorithm>
#include <cmath>
#include <string>

#include "base/error.h"
#include "device/kernel_dimensions.h"
#include "device/test_gpu.h"
#include "ops/kda_conv/kda_conv.h"
#include "ops/kda_conv/kda_conv_cuda.h"
#include "ops/test_bf16.h"
#include "ops/test_random.h"
#include "ops/test_step.h"

namespace tandem::ops::kda_conv_gpu_test {
namespace {

using device::bf16;
using device::from_gpu;
using device::on_gpu;
using test::TestSegment;

// One stream; raw, f and b are bf16 values.
struct Inputs {
  int64_t heads, dim, rows;
  std::vector<float> raw, f, b;
};
Inputs make_inputs(uint64_t seed, int64_t heads, int64_t dim, int64_t rows) {
  test::Random random(seed);
  return {heads,
          dim,
          rows,
          as_bf16_values(random.normals(rows * 3 * heads * dim)),
          as_bf16_values(random.normals(rows * heads * dim, 3.0f)),
          as_bf16_values(random.normals(rows * heads, 3.0f))};
}

struct Rows {
  std::vector<float> q, k, v, g, beta;
};
void append(Rows& to, const Rows& from, int64_t row, int64_t rows, int64_t width, int64_t heads) {
  const auto add = [&](std::vector<float>& x, const std::vector<float>& y, int64_t columns) {
    x.insert(x.end(), y.begin() + row * columns, y.begin() + (row + rows) * columns);
  };
  add(to.q, from.q, width), add(to.k, from.k, width), add(to.v, from.v, width), add(to.g, from.g, width);
  add(to.beta, from.beta, heads);
}
testing::AssertionResult same_rows(const Rows& a, const Rows& b) {
  for (const auto& [x, y] : {std::pair{&a.q, &b.q}, {&a.k, &b.k}, {&a.v, &b.v}, {&a.g, &b.g}, {&a.beta, &b.beta}})
    if (const auto same = test::same_bits(*x, *y); !same) return same;
  return testing::AssertionSuccess();
}

// One layer's weights and rings.
class Layer {
 public:
  Layer(int64_t heads, int64_t dim, int32_t kernel, int64_t slots)
      : heads_(heads),
        width_(heads * dim),
        ring_stride_(kda_ring_rows * 3 * width_ + 64),
        kernel_(kernel),
        conv_(device::gpu_under_test(),
              device::model_defines(dim == 128 ? device::KernelDimensions{}
                                               : device::KernelDimensions{32, 72, 32, 4, 128}),
              dim),
        taps(test::Random(11).normals(kernel * 3 * width_)),
        dt_bias(test::Random(12).normals(width_)),
        rate(test::Random(13).uniforms(heads, 0.1f, 3.0f)),
        gpu_taps_(on_gpu(taps)),
        gpu_bias_(on_gpu(dt_bias)),
        gpu_rate_(on_gpu(rate)),
        ring_(on_gpu(std::vector<uint16_t>(static_cast<size_t>(slots * ring_stride_), 0x7fff))) {}

  struct Part {
    const Inputs* in;
    TestSegment segment;  // rows of `in` from its position on
  };
  // Outputs of all rows; buffers are larger than the step, and raw, f and b are parts of wider rows.
  Rows step(const std::vector<Part>& parts, int64_t spare = 2) {
    std::vector<TestSegment> segments;
    for (const Part& part : parts) segments.push_back(part.segment);
    const test::TestStep step(segments);
    const int64_t max_rows = step.rows() + spare, raw_stride = 3 * width_ + 8, f_stride = width_ + 4,
                  b_stride = heads_ + 1;
    std::vector<float> raw(static_cast<size_t>(max_rows * raw_stride), test::not_a_number),
        f(static_cast<size_t>(max_rows * f_stride), test::not_a_number),
        b(static_cast<size_t>(max_rows * b_stride), test::not_a_number);
    int64_t row = 0;
    for (const Part& part : parts) {
      for (int64_t t = part.segment.position; t < part.segment.position + part.segment.rows; ++t, ++row) {
        std::copy_n(&part.in->raw[static_cast<size_t>(t * 3 * width_)], 3 * width_, raw.begin() + row * raw_stride);
        std::copy_n(&part.in->f[static_cast<size_t>(t * width_)], width_, f.begin() + row * f_stride);
        std::copy_n(&part.in->b[static_cast<size_t>(t * heads_)], heads_, b.begin() + row * b_stride);
      }
    }
    const std::vector<float> unwritten = test::unwritten(max_rows * width_);
    const auto gpu_raw = on_gpu(to_bf16(raw)), gpu_f = on_gpu(to_bf16(f)), gpu_b = on_gpu(to_bf16(b)),
               q = on_gpu(unwritten), k = on_gpu(unwritten), g = on_gpu(unwritten),
               v = on_gpu(std::vector<uint16_t>(unwritten.size(), 0x7fff)),
               beta = on_gpu(test::unwritten(max_rows * heads_));
    KdaConvArgs args{};
    args.step = step.view();
    args.raw = gpu_raw.as<bf16>(), args.raw_stride = raw_stride;
    args.f = gpu_f.as<bf16>(), args.f_stride = f_stride;
    args.b = gpu_b.as<bf16>(), args.b_stride = b_stride;
    args.ring = {ring_.as<bf16>(), ring_stride_};
    args.taps = gpu_taps_.as<float>();
    args.dt_bias = gpu_bias_.as<float>();
    args.rate = gpu_rate_.as<float>();
    args.gate_lower_bound = -5.0f;
    args.heads = static_cast<int32_t>(heads_);
    args.kernel = kernel_;
    args.q = q.as<float>(), args.k = k.as<float>(), args.g = g.as<float>();
    args.v = v.as<bf16>();
    args.beta = beta.as<float>();
    conv_.run(args, max_rows);
    Rows out{from_gpu<float>(q.data(), max_rows * width_), from_gpu<float>(k.data(), max_rows * width_),
             from_bf16(from_gpu<uint16_t>(v.data(), max_rows * width_)), from_gpu<float>(g.data(), max_rows * width_),
             from_gpu<float>(beta.data(), max_rows * heads_)};
    for (std::vector<float>* x : {&out.q, &out.k, &out.v, &out.g}) {
      EXPECT_TRUE(std::all_of(x->begin() + step.rows() * width_, x->end(), [](float y) { return std::isnan(y); }));
      x->resize(static_cast<size_t>(step.rows() * width_));
    }
    EXPECT_TRUE(std::isnan(out.beta.back()));
    out.beta.resize(static_cast<size_t>(step.rows() * heads_));
    return out;
  }
  std::vector<uint16_t> ring_row(int64_t slot, int64_t position) const {
    return from_gpu<uint16_t>(ring_.as<uint16_t>() + slot * ring_stride_ + position % kda_ring_rows * 3 * width_,
                              3 * width_);
  }

 private:
  int64_t heads_, width_, ring_stride_;
  int32_t kernel_;
  CudaKdaConv conv_;

 public:
  const std::vector<float> taps, dt_bias, rate;

 private:
  device::GpuMemory gpu_taps_, gpu_bias_, gpu_rate_, ring_;
};

Rows run_steps(Layer& layer, const Inputs& in, const std::vector<int32_t>& cuts, int64_t spare = 2) {
  Rows out;
  int32_t position = 0;
  for (const int32_t rows : cuts) {
    append(out, layer.step({{&in, {0, rows, rows, position, 0}}}, spare), 0, rows, in.heads * in.dim, in.heads);
    position += rows;
  }
  EXPECT_EQ(position, in.rows);
  return out;
}

// Values that are equal but where a rounding to bf16 on the way went the other way: those are few, and off by at most
// one place of the bf16 value.
void expect_rounded(const std::vector<float>& got, const std::vector<double>& expected, const char* what) {
  ASSERT_EQ(got.size(), expected.size());
  size_t far = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double difference = std::abs(got[i] - expected[i]), size = std::abs(expected[i]) + 1e-6;
    ASSERT_LE(difference, 0x1.1p-7 * size) << what << " " << i;
    far += difference > 2e-4 * size ? 1 : 0;
  }
  EXPECT_LE(far, got.size() / 200) << what;
}

struct Sizes {
  int64_t heads, dim;
  int32_t kernel;
};
class KdaConvGpuSizes : public ::testing::TestWithParam<Sizes> {};

TEST_P(KdaConvGpuSizes, AgainstDouble) {
  const int64_t heads = GetParam().heads, dim = GetParam().dim;
  const int32_t kernel = GetParam().kernel;
  const Inputs in = make_inputs(1, heads, dim, 21);
  const int64_t width = heads * dim;
  Layer layer(heads, dim, kernel, 1);
  const Rows got = run_steps(layer, in, {21});
  const auto convolved = [&](int64_t t, int64_t channel) -> double {
    double sum = 0;
    for (int64_t tap = std::max<int64_t>(0, kernel - 1 - t); tap < kernel; ++tap)
      sum += static_cast<double>(layer.taps[static_cast<size_t>(tap * 3 * width + channel)]) *
             in.raw[static_cast<size_t>((t - kernel + 1 + tap) * 3 * width + channel)];
    return bf16_value(bf16_bits(static_cast<float>(test::silu(sum))));
  };
  std::vector<double> expected[3], g, beta;
  for (int64_t t = 0; t < in.rows; ++t) {
    for (int64_t channel = 0; channel < 3 * width; channel += dim) {
      double squares = kda_norm_eps;
      for (int64_t d = 0; d < dim; ++d) squares += std::pow(convolved(t, channel + d), 2);
      const int64_t part = channel / width;
      const double factor = part == 2 ? 1.0 : 1.0 / std::sqrt(part == 0 ? squares * test::real(dim) : squares);
      for (int64_t d = 0; d < dim; ++d) expected[part].push_back(convolved(t, channel + d) * factor);
    }
    for (int64_t c = 0; c < width; ++c) {
      const double f = in.f[static_cast<size_t>(t * width + c)];
      g.push_back(
          -5.0 * test::sigmoid(layer.rate[static_cast<size_t>(c / dim)] * (f + layer.dt_bias[static_cast<size_t>(c)])));
    }
    for (int64_t h = 0; h < heads; ++h) beta.push_back(test::sigmoid(in.b[static_cast<size_t>(t * heads + h)]));
  }
  expect_rounded(got.q, expected[0], "q");
  expect_rounded(got.k, expected[1], "k");
  expect_rounded(got.v, expected[2], "v");
  EXPECT_TRUE(test::close(got.g, g, 1e-6));
  EXPECT_TRUE(test::close(got.beta, beta, 1e-6));
}

TEST_P(KdaConvGpuSizes, CutsDoNotMatter) {
  const auto [heads, dim, kernel] = GetParam();
  const Inputs in = make_inputs(2, heads, dim, 90), wrong = make_inputs(3, heads, dim, 90),
               other = make_inputs(4, heads, dim, 90);
  const int64_t width = heads * dim;
  Layer serial(heads, dim, kernel, 1);
  const Rows expected = run_steps(serial, in, std::vector<int32_t>(90, 1));
  for (const std::vector<int32_t>& cuts :
       {std::vector<int32_t>{90}, {1, 2, 29, 30, 28}, {7, 31, 32, 3, 17}, {57, 33}}) {
    Layer layer(heads, dim, kernel, 1);
    EXPECT_TRUE(same_rows(run_steps(layer, in, cuts, cuts.size() > 4 ? 2 : 100), expected)) << cuts.front();
    for (int64_t p = 90 - kda_ring_rows; p < 90 && cuts.back() >= kda_ring_rows; ++p)
      EXPECT_EQ(layer.ring_row(0, p), serial.ring_row(0, p)) << p;
    for (int64_t p = 90 - (kda_max_taps - 1); p < 90; ++p) EXPECT_EQ(layer.ring_row(0, p), serial.ring_row(0, p)) << p;
  }

  // Rejected drafts, beside another stream's rows, in other slots.
  Layer layer(heads, dim, kernel, 3);
  Rows got;
  int32_t position = 0;
  const int32_t accepted[] = {1, 16, 2, 5, 11};
  for (size_t i = 0; position < in.rows; ++i) {
    const int32_t window = std::min<int32_t>(16, static_cast<int32_t>(in.rows) - position);
    const int32_t kept = std::min(accepted[i % 5], window), beside = i % 2 == 0 ? 40 : 3;
    layer.step({{&wrong, {2, window, 1, position, 0}}});
    const Layer::Part own{&in, {2, window, 1, position, 0}}, others{&other, {0, beside, beside, 11, 0}};
    append(got, i % 2 == 0 ? layer.step({others, own}) : layer.step({own, others}, 70), i % 2 == 0 ? beside : 0, kept,
           width, heads);
    position += kept;
  }
  EXPECT_TRUE(same_rows(got, expected));
}

std::vector<Sizes> sizes() {
  std::vector<Sizes> all = {{5, 32, 4}, {2, 128, 4}, {3, 32, 2}};
  if (!device::gpu_is_emulated()) all.push_back({64, 128, 4});
  return all;
}

INSTANTIATE_TEST_SUITE_P(Dimensions, KdaConvGpuSizes, ::testing::ValuesIn(sizes()), [](const auto& at) {
  return "heads" + std::to_string(at.param.heads) + "dim" + std::to_string(at.param.dim) + "taps" +
         std::to_string(at.param.kernel);
});

TEST(KdaConvGpu, AKernelTooLongIsAnError) {
  const CudaKdaConv conv(device::gpu_under_test(), device::model_defines({}), 128);
  KdaConvArgs args{};
  args.heads = 1;
  args.kernel = kda_max_taps + 1;
  EXPECT_THROW(conv.run(args, 1), Error);
}

}  // namespace
}  // namespace tandem::ops::kda_conv_gpu_test
