// Slots and kept states in device memory against cache/slots.h and cache/kept_states.h, and states that are advanced
// when they are kept against those that a step advances.
#include <fmt/core.h>

#include <algorithm>

#include "cache/gpu_kept_states.h"
#include "cache/gpu_slots.h"
#include "cache/kept_states.h"
#include "device/kernel_dimensions.h"
#include "device/test_gpu.h"
#include "ops/kda_block/kda_block_cuda.h"
#include "ops/test_bf16.h"
#include "ops/test_random.h"
#include "ops/test_step.h"

namespace tandem::cache::gpu_slots_gpu_test {
namespace {

using device::bf16;
using device::from_gpu;
using device::on_gpu;
using ops::test::Random;

constexpr int64_t kda_layers = 2, index_layers = 3, slots = 3, records = 2;

model::Shape shape_of(int64_t heads, int64_t dim) {
  model::Shape shape = model::read_shape(fmt::format("{}/models/nano", TANDEM_SOURCE_DIR));
  shape.kda_num_heads = heads;
  shape.kda_head_dim = dim;
  shape.index_head_dim = 24;
  shape.index_kpool = 4;
  shape.short_conv_kernel_size = 4;
  shape.hidden_size = 40;
  return shape;
}
std::vector<std::string> defines_of(int64_t dim) {
  return device::model_defines(dim == 128 ? device::KernelDimensions{} : device::KernelDimensions{32, 72, 32, 4, 128});
}

// What a slot holds, piece by piece as GpuSlotLayout has them; rings of rows are bf16 values.
struct Content {
  std::vector<float> s0, log, conv, index, head;
};

class GpuSlotsTest : public ::testing::TestWithParam<int64_t> {
 protected:
  device::Gpu& gpu_ = device::gpu_under_test();
  const int64_t dim_ = GetParam(), heads_ = 2, width_ = heads_ * dim_;
  const model::Shape shape_ = shape_of(heads_, dim_);
  const int64_t sizes_[5] = {kda_layers * width_ * dim_, kda_layers * 3 * ring_rows* width_,
                             kda_layers* ring_rows * 3 * width_, index_layers * 2 * ring_rows* shape_.index_head_dim,
                             ring_rows* shape_.hidden_size};

  Content random_content(uint64_t seed) const {
    Random random(seed);
    Content c{random.normals(sizes_[0]), random.normals(sizes_[1], 0.3f),
              ops::as_bf16_values(random.normals(sizes_[2])), ops::as_bf16_values(random.normals(sizes_[3])),
              ops::as_bf16_values(random.normals(sizes_[4]))};
    for (int64_t i = 0; i < sizes_[1]; ++i) {  // G falls inside blocks
      float& g = c.log[static_cast<size_t>(i)];
      const int64_t row = i / width_ % ring_rows;
      if (i / (ring_rows * width_) % 3 == 1) g = -0.2f * static_cast<float>(row % 16 + 1) * random.uniform(0.9f, 1.0f);
    }
    return c;
  }
  void put(Slots& to, int64_t slot, const Content& c) const {
    for (int64_t layer = 0; layer < kda_layers; ++layer) {
      const ops::KdaState state = to.kda(slot, layer);
      const int64_t rows = ring_rows * width_;
      std::copy_n(c.s0.begin() + layer * width_ * dim_, width_ * dim_, state.s0);
      std::copy_n(c.log.begin() + layer * 3 * rows, rows, state.log_k);
      std::copy_n(c.log.begin() + (layer * 3 + 1) * rows, rows, state.log_g);
      std::copy_n(c.log.begin() + (layer * 3 + 2) * rows, rows, state.log_delta);
      std::copy_n(c.conv.begin() + layer * 3 * rows, 3 * rows, to.conv_ring(slot, layer));
    }
    const int64_t ring = ring_rows * shape_.index_head_dim;
    for (int64_t layer = 0; layer < index_layers; ++layer) {
      std::copy_n(c.index.begin() + layer * 2 * ring, ring, to.index_key_ring(slot, layer));
      std::copy_n(c.index.begin() + (layer * 2 + 1) * ring, ring, to.index_gate_ring(slot, layer));
    }
    for (int64_t p = 0; p < ring_rows; ++p)
      std::copy_n(c.head.begin() + p * shape_.hidden_size, shape_.hidden_size, to.head_row(slot, p));
  }
  Content get(Slots& from, int64_t slot) const {
    Content c;
    const auto add = [](std::vector<float>& to, const float* values, int64_t count) {
      to.insert(to.end(), values, values + count);
    };
    for (int64_t layer = 0; layer < kda_layers; ++layer) {
      const ops::KdaState state = from.kda(slot, layer);
      const int64_t rows = ring_rows * width_;
      add(c.s0, state.s0, width_ * dim_);
      add(c.log, state.log_k, rows), add(c.log, state.log_g, rows), add(c.log, state.log_delta, rows);
      add(c.conv, from.conv_ring(slot, layer), 3 * rows);
    }
    const int64_t ring = ring_rows * shape_.index_head_dim;
    for (int64_t layer = 0; layer < index_layers; ++layer)
      add(c.index, from.index_key_ring(slot, layer), ring), add(c.index, from.index_gate_ring(slot, layer), ring);
    for (int64_t p = 0; p < ring_rows; ++p) add(c.head, from.head_row(slot, p), shape_.hidden_size);
    return c;
  }
  // Through the views that operations get.
  void put(const GpuSlots& to, int64_t slot, const Content& c) const {
    const auto floats = [&](const ops::SlotView<float>& view, const float* values, int64_t count) {
      gpu_.upload(view.data + slot * view.stride, values, 4 * count);
    };
    const auto halves = [&](const ops::SlotView<bf16>& view, const float* values, int64_t count) {
      const std::vector<uint16_t> bits = ops::to_bf16({values, static_cast<size_t>(count)});
      gpu_.upload(view.data + slot * view.stride, bits.data(), 2 * count);
      gpu_.synchronize();
    };
    const int64_t rows = ring_rows * width_, ring = ring_rows * shape_.index_head_dim;
    for (int64_t layer = 0; layer < kda_layers; ++layer) {
      floats(to.s0(layer), c.s0.data() + layer * width_ * dim_, width_ * dim_);
      floats(to.log_k(layer), c.log.data() + layer * 3 * rows, rows);
      floats(to.log_g(layer), c.log.data() + (layer * 3 + 1) * rows, rows);
      floats(to.log_delta(layer), c.log.data() + (layer * 3 + 2) * rows, rows);
      halves(to.conv_ring(layer), c.conv.data() + layer * 3 * rows, 3 * rows);
    }
    for (int64_t layer = 0; layer < index_layers; ++layer) {
      halves(to.index_key_ring(layer), c.index.data() + layer * 2 * ring, ring);
      halves(to.index_gate_ring(layer), c.index.data() + (layer * 2 + 1) * ring, ring);
    }
    halves(to.head_ring(), c.head.data(), sizes_[4]);
    gpu_.synchronize();
  }
  // By the layout.
  Content get(const GpuSlots& from, int64_t slot) const {
    const GpuSlotLayout& l = from.layout();
    const std::byte* data = from.data(slot);
    const auto halves = [&](int64_t at, int64_t count) { return ops::from_bf16(from_gpu<uint16_t>(data + at, count)); };
    return {from_gpu<float>(data + l.s0, sizes_[0]), from_gpu<float>(data + l.log, sizes_[1]),
            halves(l.conv, sizes_[2]), halves(l.index, sizes_[3]), halves(l.head, sizes_[4])};
  }
  static void expect_equal(const Content& a, const Content& b, bool advanced) {
    if (advanced) {  // another order of the same sums, and exponentials that differ in the last place
      EXPECT_TRUE(ops::test::close(a.s0, std::vector<double>(b.s0.begin(), b.s0.end()), 1e-6));
    } else {
      EXPECT_EQ(a.s0, b.s0);
    }
    EXPECT_EQ(a.log, b.log);
    EXPECT_EQ(a.conv, b.conv);
    EXPECT_EQ(a.index, b.index);
    EXPECT_EQ(a.head, b.head);
  }
};

TEST_P(GpuSlotsTest, ViewsAreTheLayout) {
  GpuSlots on_device(gpu_, shape_, kda_layers, index_layers, slots);
  for (int64_t slot = 0; slot < slots; ++slot) put(on_device, slot, random_content(static_cast<uint64_t>(slot)));
  for (int64_t slot = 0; slot < slots; ++slot)
    expect_equal(get(on_device, slot), random_content(static_cast<uint64_t>(slot)), false);
  EXPECT_EQ(on_device.layout().size, GpuSlots::bytes_of_slot(shape_, kda_layers, index_layers));
  on_device.set_kda_block(1, 7);
  EXPECT_EQ(on_device.kda_block(1), 7);
  on_device.reset(1);
  EXPECT_EQ(on_device.kda_block(1), 0);
}

TEST_P(GpuSlotsTest, KeepsWhatTheCpuKeeps) {
  device::Threads threads(1);
  for (const int64_t mtp_layers : {0, 1}) {
    Slots on_host(shape_, kda_layers, index_layers, slots);
    GpuSlots on_device(gpu_, shape_, kda_layers, index_layers, slots);
    KeptStates host_kept(shape_, kda_layers, index_layers, mtp_layers, records);
    GpuKeptStates device_kept(gpu_, defines_of(dim_), shape_, kda_layers, index_layers, mtp_layers, records);
    EXPECT_EQ(device_kept.records(), records);
    for (const auto& [length, age] :
         {std::pair<int64_t, int64_t>{1, 0}, {3, 0}, {16, 0}, {16, 1}, {21, 1}, {47, 0}, {50, 1}}) {
      for (int64_t slot = 0; slot < slots; ++slot) {
        const Content content = random_content(static_cast<uint64_t>(length * 10 + slot));
        put(on_host, slot, content), put(on_device, slot, content);
        on_host.set_kda_block(slot, length / 16 - age), on_device.set_kda_block(slot, length / 16 - age);
      }
      const int64_t record = length % records;
      host_kept.save(threads, on_host, 2, length, record);
      device_kept.save(on_device, 2, length, record);
      EXPECT_EQ(device_kept.length(record), length);
      host_kept.restore(threads, record, on_host, 0);
      device_kept.restore(record, on_device, 0);
      EXPECT_EQ(on_device.kda_block(0), on_host.kda_block(0));
      for (int64_t slot = 0; slot < slots; ++slot) {
        SCOPED_TRACE(fmt::format("length {}, {} blocks behind, slot {}", length, age, slot));
        expect_equal(get(on_device, slot), get(on_host, slot), slot == 0 && age > 0);
      }
    }
    // Every record has its own bytes.
    device_kept.restore(0, on_device, 1);
    host_kept.restore(threads, 0, on_host, 1);
    expect_equal(get(on_device, 1), get(on_host, 1), true);
  }
}

// A stream whose window crossed a block's end: what is kept is the state that a later step would have advanced to.
TEST_P(GpuSlotsTest, AdvancesAsAStepDoes) {
  GpuSlots on_device(gpu_, shape_, kda_layers, index_layers, slots);
  GpuKeptStates kept(gpu_, defines_of(dim_), shape_, kda_layers, index_layers, 1, records);
  const ops::CudaKdaBlock block(gpu_, defines_of(dim_), dim_);
  Random random(7);
  constexpr int64_t rows = 22;
  const std::vector<float> q = random.normals(rows * width_, 0.1f), k = random.normals(rows * width_, 0.1f),
                           g = random.uniforms(rows * width_, -2.0f, 0.0f), beta = random.uniforms(rows * heads_, 0, 1);
  const std::vector<uint16_t> v = ops::to_bf16(random.normals(rows * width_));
  const auto gpu_q = on_gpu(q), gpu_k = on_gpu(k), gpu_v = on_gpu(v), gpu_beta = on_gpu(beta),
             o = on_gpu(std::vector<uint16_t>(v.size())),
             scratch = on_gpu(ops::test::unwritten(ops::CudaKdaBlock::scratch_bytes(heads_, dim_, rows, 1) / 4));
  const auto run = [&](int32_t slot, int32_t position, int32_t count, int32_t certain) {
    const ops::test::TestStep step({{slot, count, certain, position, static_cast<int32_t>(on_device.kda_block(slot))}});
    for (int64_t layer = 0; layer < kda_layers; ++layer) {
      const auto gpu_g = on_gpu(g);
      const int64_t at = position * width_;
      block.run({step.view(), static_cast<int32_t>(heads_), gpu_q.as<float>() + at, gpu_k.as<float>() + at,
                 gpu_g.as<float>() + at, gpu_v.as<bf16>() + at, gpu_beta.as<float>() + position * heads_,
                 on_device.s0(layer), on_device.log_k(layer), on_device.log_g(layer), on_device.log_delta(layer),
                 scratch.as<float>(), o.as<bf16>()},
                rows, 1);
    }
    on_device.set_kda_block(slot, ops::kda_block_after(on_device.kda_block(slot), position, count, certain));
  };
  run(0, 0, 10, 10), run(0, 10, 12, 1);
  ASSERT_EQ(on_device.kda_block(0), 0);
  run(1, 0, 18, 18);
  ASSERT_EQ(on_device.kda_block(1), 1);
  kept.save(on_device, 0, 18, 0);
  kept.restore(0, on_device, 2);
  EXPECT_EQ(on_device.kda_block(2), 1);
  EXPECT_TRUE(ops::test::same_bits(get(on_device, 2).s0, get(on_device, 1).s0));
  for (const auto& log : {on_device.log_k(1), on_device.log_g(1), on_device.log_delta(1)})
    EXPECT_TRUE(ops::test::same_bits(from_gpu<float>(log.data + 2 * log.stride + 16 * width_, 2 * width_),
                                     from_gpu<float>(log.data + log.stride + 16 * width_, 2 * width_)));
}

INSTANTIATE_TEST_SUITE_P(Dimensions, GpuSlotsTest, ::testing::Values(32, 128));

}  // namespace
}  // namespace tandem::cache::gpu_slots_gpu_test
