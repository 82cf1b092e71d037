// index_store.cu against the CPU: rings bit by bit, pooled keys after rounding.
#include <string>

#include "device/kernel_dimensions.h"
#include "ops/index/index_store.h"
#include "ops/index/index_store_cuda.h"
#include "ops/latent/test_gpu_pages.h"
#include "ops/test_bf16.h"
#include "ops/test_random.h"

namespace tandem::ops::index_store_gpu_test {
namespace {

using device::from_gpu;
using device::on_gpu;
using quant::RecordKind;

constexpr int32_t kpool = 4, ring_rows = 32, slots = 3;

struct Stream {
  int32_t slot;
  std::vector<int32_t> cuts;  // where steps begin; the last is the end
};

// Two streams step by step, on the GPU and by index_store().
void expect_store(RecordKind kind, int64_t dim, const std::vector<Stream>& streams) {
  SCOPED_TRACE(std::string(quant::name_of(kind)) + " of " + std::to_string(dim));
  device::KernelDimensions dimensions;
  if (dim != 128) dimensions = {32, 72, 32, 4, 128};
  const CudaIndexStore store(device::gpu_under_test(), device::model_defines(dimensions));
  device::Threads threads(1);
  test::Random random(3);
  test::TestPlane plane(kind, dim, 16, 20);
  plane.upload();
  const std::vector<float> ape = random.normals(kpool * dim, 0.3f);
  const auto gpu_ape = on_gpu(ape);
  const int64_t stride = 2 * ring_rows * dim;  // both rings of a slot
  std::vector<float> rings(static_cast<size_t>(slots * stride), bf16_value(0x7fff));
  const auto gpu_rings = on_gpu(std::vector<uint16_t>(rings.size(), 0x7fff));
  std::vector<std::vector<int32_t>> pages;
  for (size_t i = 0; i < streams.size(); ++i)
    pages.push_back(test::scattered_pages(9, static_cast<int32_t>(i), static_cast<int32_t>(streams.size())));
  for (size_t number = 0; number + 1 < streams[0].cuts.size(); ++number) {
    std::vector<test::PagedTestSegment> segments;
    for (size_t i = 0; i < streams.size(); ++i)
      segments.push_back(
          {streams[i].slot, streams[i].cuts[number], streams[i].cuts[number + 1] - streams[i].cuts[number], pages[i]});
    const test::GpuStep step(segments);
    const std::vector<float> key = as_bf16_values(random.normals(step.rows * dim)),
                             gate = as_bf16_values(random.normals(step.rows * dim, 2.0f));
    const auto gpu_key = on_gpu(to_bf16(key)), gpu_gate = on_gpu(to_bf16(gate));
    IndexStoreArgs args{};
    args.step = step.view;
    args.key = gpu_key.as<device::bf16>();
    args.gate = gpu_gate.as<device::bf16>();
    args.key_stride = args.gate_stride = dim;
    args.ape = gpu_ape.as<float>();
    args.key_ring = {gpu_rings.as<device::bf16>(), stride};
    args.gate_ring = {gpu_rings.as<device::bf16>() + ring_rows * dim, stride};
    args.ring_rows = ring_rows;
    args.pooled = plane.view;
    store.run(args, step.rows + 3);
    int64_t first_row = 0;
    for (size_t i = 0; i < segments.size(); ++i) {
      IndexStore a;
      a.dim = dim;
      a.kpool = kpool;
      a.position = segments[i].position;
      a.rows = segments[i].rows;
      a.key = key.data() + first_row * dim;
      a.gate = gate.data() + first_row * dim;
      a.ape = ape.data();
      a.ring_key = rings.data() + segments[i].slot * stride;
      a.ring_gate = a.ring_key + ring_rows * dim;
      a.ring_rows = ring_rows;
      a.pooled = plane.host(segments[i].pages);
      index_store(threads, a);
      first_row += segments[i].rows;
    }
  }
  const std::vector<uint16_t> got = from_gpu<uint16_t>(gpu_rings.data(), slots * stride);
  for (size_t i = 0; i < rings.size(); ++i)
    ASSERT_TRUE(test::same_bits(bf16_value(got[i]), rings[i])) << "ring value " << i;
  // exp differs by a few units of fp32, which may tip a rounding: few values, and by one unit.
  test::TestPlane on_device = std::move(plane);
  const std::vector<uint8_t> data = on_device.device_data(), scales = on_device.device_scales();
  EXPECT_EQ(scales, on_device.scales);
  const size_t size = kind == RecordKind::bf16 ? 2 : 1;
  int64_t written = 0, different = 0;
  for (size_t i = 0; i < data.size(); i += size) {
    int got_value = data[i], expected = on_device.data[i];
    if (size == 2) {
      got_value |= data[i + 1] << 8;
      expected |= on_device.data[i + 1] << 8;
    }
    written += expected != (size == 2 ? 0xffff : 0xff) ? 1 : 0;
    different += got_value != expected ? 1 : 0;
    ASSERT_LE(std::abs(got_value - expected), 1) << "value " << i;
  }
  int64_t pools = 0;
  for (const Stream& stream : streams) pools += stream.cuts.back() / kpool;
  EXPECT_EQ(written, pools * dim);
  EXPECT_LE(different, written / 100);
}

TEST(IndexStoreGpu, PoolsAndRingsAsOnTheCpu) {
  // Pools inside a step, over two and over four steps; steps longer than the ring that begin inside a pool; steps
  // without a finished pool.
  const std::vector<Stream> streams = {{2, {0, 7, 8, 9, 10, 11, 12, 55, 56, 130}},
                                       {0, {0, 35, 70, 71, 75, 76, 81, 82, 83, 84}}};
  for (const auto kind : {RecordKind::bf16, RecordKind::index_fp8}) {
    expect_store(kind, 32, streams);
    expect_store(kind, 128, streams);
  }
}

TEST(IndexStoreGpu, RefusesOtherPlanes) {
  const CudaIndexStore store(device::gpu_under_test(), device::model_defines({}));
  IndexStoreArgs args{};
  args.pooled.kind = static_cast<int32_t>(RecordKind::f32);
  args.pooled.width = 128;
  EXPECT_ANY_THROW(store.run(args, 1));
}

}  // namespace
}  // namespace tandem::ops::index_store_gpu_test
