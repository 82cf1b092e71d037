// rope.cu against norm.h and rope.h on the same bf16 values, rounded after the norm and after the rotation.
#include "base/error.h"
#include "device/kernel_dimensions.h"
#include "device/test_gpu.h"
#include "ops/norm/norm.h"
#include "ops/rope/rope.h"
#include "ops/rope/rope_cuda.h"
#include "ops/test_bf16.h"
#include "ops/test_random.h"

namespace tandem::ops::rope_gpu_test {
namespace {

using device::bf16;
using device::from_gpu;
using device::on_gpu;
using test::Random;

constexpr float eps = 1e-5f;
constexpr int64_t dim = 128;  // of a head, in both sets of dimensions

struct Inputs {
  std::vector<float> frequencies, norm;
  explicit Inputs(Random& random) : frequencies(static_cast<size_t>(dim / 2)), norm(random.uniforms(dim, 0.5f, 1.5f)) {
    rope_frequencies(10000.0, dim, frequencies.data());
  }
  // One head at a position.
  std::vector<float> turned(const float* x, int64_t position) const {
    std::vector<float> y(static_cast<size_t>(dim)), turn = y;
    rms_norm(x, norm.data(), eps, dim, y.data());
    y = as_bf16_values(y);
    rope_turns({&position, 1}, frequencies.data(), dim, turn.data());
    rope(turn.data(), dim, y.data());
    return y;
  }
};

// The norm's statistics are summed in another order than on the CPU, which may turn a rounding of bf16 before the
// rotation, and so move a turned value by a unit of the larger half: at most 2^-8 of values below 8.
void expect_head(const uint16_t* got, const std::vector<float>& expected, int64_t row) {
  EXPECT_LE(bf16_distance(got, expected, 0.03f), 1) << "row " << row;
}

// Blocks of 3 rows: queries in place, keys to another buffer, values only copied.
TEST(RopeGpu, RowsOfBlocks) {
  for (const device::KernelDimensions& dimensions : {device::KernelDimensions{}, {32, 72, 32, 4, 128}}) {
    const CudaRope rope_on_gpu(device::gpu_under_test(), device::model_defines(dimensions));
    Random random(2);
    const Inputs inputs(random);
    constexpr int64_t rows = 6, max_rows = 9, query_heads = 10, key_heads = 2;
    const int64_t query_width = query_heads * dim, key_width = key_heads * dim;
    const std::vector<float> q = as_bf16_values(random.normals(max_rows * query_width, 2.0f)),
                             kv = as_bf16_values(random.normals(max_rows * 2 * key_width, 2.0f));
    const std::vector<int32_t> positions = {1000, 1'040'000};
    const auto gpu_q = on_gpu(to_bf16(q)), gpu_kv = on_gpu(to_bf16(kv));
    const auto out = on_gpu(std::vector<uint16_t>(static_cast<size_t>(2 * max_rows * key_width), 0x7fff));
    const auto count = on_gpu(std::vector<int32_t>{rows}), gpu_positions = on_gpu(positions);
    const auto norm = on_gpu(inputs.norm), frequencies = on_gpu(inputs.frequencies);
    RopeArgs args{};
    args.rows = count.as<int32_t>();
    args.positions = gpu_positions.as<int32_t>();
    args.rows_of_position = 3;
    args.eps = eps;
    args.frequencies = frequencies.as<float>();
    const RopePart parts[] = {
        {gpu_q.as<bf16>(), gpu_q.as<bf16>(), norm.as<float>(), query_width, query_width, query_heads},
        {gpu_kv.as<bf16>(), out.as<bf16>(), norm.as<float>(), 2 * key_width, 2 * key_width, key_heads},
        {gpu_kv.as<bf16>() + key_width, out.as<bf16>() + key_width, nullptr, 2 * key_width, 2 * key_width, key_heads}};
    rope_on_gpu.run(args, parts, max_rows);
    const auto got_q = from_gpu<uint16_t>(gpu_q.data(), max_rows * query_width);
    const auto got_kv = from_gpu<uint16_t>(out.data(), 2 * max_rows * key_width);
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t position = positions[static_cast<size_t>(r / 3)] + r % 3;
      for (int64_t head = 0; head < query_heads; ++head) {
        const int64_t at = r * query_width + head * dim;
        expect_head(&got_q[static_cast<size_t>(at)], inputs.turned(&q[static_cast<size_t>(at)], position), r);
      }
      for (int64_t head = 0; head < key_heads; ++head) {
        const int64_t at = r * 2 * key_width + head * dim;
        expect_head(&got_kv[static_cast<size_t>(at)], inputs.turned(&kv[static_cast<size_t>(at)], position), r);
        for (int64_t d = at + key_width; d < at + key_width + dim; ++d)
          ASSERT_EQ(got_kv[static_cast<size_t>(d)], bf16_bits(kv[static_cast<size_t>(d)])) << "a value is copied";
      }
    }
    const std::vector<uint16_t> before = to_bf16(q);
    for (auto i = static_cast<size_t>(rows * query_width); i < before.size(); ++i) ASSERT_EQ(got_q[i], before[i]);
    for (auto i = static_cast<size_t>(rows * 2 * key_width); i < got_kv.size(); ++i) ASSERT_EQ(got_kv[i], 0x7fff);
  }
}

// Context rows go to their slot's ring, by position.
TEST(RopeGpu, RingsOfSlots) {
  constexpr int64_t rows = 4, ring_rows = 5, width = 2 * dim, slot_stride = ring_rows * width + 64;
  const CudaRope rope_on_gpu(device::gpu_under_test(), device::model_defines({}));
  Random random(3);
  const Inputs inputs(random);
  const std::vector<float> keys = as_bf16_values(random.normals(rows * dim)),
                           values = as_bf16_values(random.normals(rows * dim));
  const std::vector<int32_t> positions = {4, 5, 6, 103}, slots = {2, 2, 2, 0};
  const auto gpu_keys = on_gpu(to_bf16(keys)), gpu_values = on_gpu(to_bf16(values));
  const auto ring = on_gpu(std::vector<uint16_t>(static_cast<size_t>(3 * slot_stride), 0x7fff));
  const auto count = on_gpu(std::vector<int32_t>{rows}), gpu_positions = on_gpu(positions), gpu_slots = on_gpu(slots);
  const auto norm = on_gpu(inputs.norm), frequencies = on_gpu(inputs.frequencies);
  RopeArgs args{};
  args.rows = count.as<int32_t>();
  args.positions = gpu_positions.as<int32_t>();
  args.rows_of_position = 1;
  args.slots = gpu_slots.as<int32_t>();
  args.slot_stride = slot_stride;
  args.ring_rows = ring_rows;
  args.eps = eps;
  args.frequencies = frequencies.as<float>();
  const RopePart parts[] = {{gpu_keys.as<bf16>(), ring.as<bf16>(), norm.as<float>(), dim, width, 1},
                            {gpu_values.as<bf16>(), ring.as<bf16>() + dim, nullptr, dim, width, 1}};
  rope_on_gpu.run(args, parts, rows);
  const auto got = from_gpu<uint16_t>(ring.data(), 3 * slot_stride);
  std::vector<bool> written(got.size());
  for (size_t r = 0; r < rows; ++r) {
    const auto at = static_cast<size_t>(slots[r] * slot_stride + positions[r] % ring_rows * width);
    expect_head(&got[at], inputs.turned(&keys[r * dim], positions[r]), static_cast<int64_t>(r));
    for (size_t d = 0; d < dim; ++d) EXPECT_EQ(got[at + dim + d], bf16_bits(values[r * dim + d]));
    std::fill_n(written.begin() + static_cast<std::ptrdiff_t>(at), width, true);
  }
  for (size_t i = 0; i < got.size(); ++i) {
    if (!written[i]) {
      ASSERT_EQ(got[i], 0x7fff) << "value " << i;
    }
  }
}

TEST(RopeGpu, RefusesTooManyParts) {
  const CudaRope rope_on_gpu(device::gpu_under_test(), device::model_defines({}));
  EXPECT_THROW(rope_on_gpu.run({}, std::vector<RopePart>(RopeArgs::max_parts + 1), 1), Error);
}

}  // namespace
}  // namespace tandem::ops::rope_gpu_test
