// kv_b_proj on both sides of the latent attention against the CPU's.
#include <cmath>

#include "device/kernel_dimensions.h"
#include "device/test_gpu.h"
#include "ops/attend/mla_absorb.h"
#include "ops/attend/mla_absorb_cuda.h"
#include "ops/linear/linear_cuda.h"
#include "ops/test_bf16.h"
#include "ops/test_random.h"

namespace tandem::ops::mla_absorb_gpu_test {
namespace {

using device::from_gpu;
using device::on_gpu;

struct Case {
  CudaMlaAbsorb shape;
  int64_t rows;
};
std::vector<Case> cases() {
  if (!device::gpu_is_emulated()) return {{{64, 256, 256, 512}, 1}, {{32, 256, 256, 512}, 100}};
  return {{{2, 32, 32, 72}, 3}, {{3, 40, 24, 72}, 21}, {{2, 64, 32, 512}, 1}};
}

TEST(MlaAbsorbGpu, BothSidesAgainstTheCpu) {
  const CudaLinear real(device::gpu_under_test(), device::model_defines({})),
      tiny(device::gpu_under_test(),
           device::model_defines({.kda_dim = 32, .kv_lora_rank = 72, .index_head_dim = 32, .index_kpool = 4}));
  for (const auto& [a, rows] : cases()) {
    const int64_t rank = a.kv_lora_rank, kv_rows = int64_t{a.heads} * (a.key_dim + a.value_dim);
    const std::vector<float> kv_b = as_bf16_values(test::Random(1).normals(kv_rows * rank, 0.05f));
    const std::vector<float> q = as_bf16_values(test::Random(2).normals(rows * a.heads * a.key_dim)),
                             l = as_bf16_values(test::Random(3).normals(rows * a.heads * rank));
    Matrix m;
    m.format = WeightFormat::f32;
    m.data = reinterpret_cast<const std::byte*>(kv_b.data());
    m.out_features = kv_rows;
    m.in_features = m.leaf_columns = rank;
    const MlaAbsorb on_cpu{&m, a.heads, a.key_dim, a.value_dim, rows};
    device::Threads threads(1);
    std::vector<float> absorbed(static_cast<size_t>(rows * a.heads * rank)),
        values(static_cast<size_t>(rows * a.heads * a.value_dim));
    mla_absorb_query(threads, on_cpu, q.data(), absorbed.data());
    mla_expand_value(threads, on_cpu, l.data(), values.data());

    const std::vector<uint16_t> bits = to_bf16(kv_b);
    const auto gpu_kv_b = on_gpu(bits), gpu_q = on_gpu(to_bf16(q)), gpu_l = on_gpu(to_bf16(l));
    const auto keys = on_gpu(a.transposed_keys(reinterpret_cast<const device::bf16*>(bits.data())));
    const auto gpu_absorbed = on_gpu(std::vector<uint16_t>(absorbed.size(), 0x7fff)),
               gpu_values = on_gpu(std::vector<uint16_t>(values.size(), 0x7fff)),
               count = on_gpu(std::vector<int32_t>{static_cast<int32_t>(rows)});
    const CudaLinearCall calls[] = {
        a.absorb_query(keys.as<device::bf16>(), gpu_q.as<device::bf16>(), gpu_absorbed.as<device::bf16>()),
        a.expand_value(gpu_kv_b.as<device::bf16>(), gpu_l.as<device::bf16>(), gpu_values.as<device::bf16>())};
    (rank == 72 ? tiny : real).run(calls, count.as<int32_t>(), rows);
    // 1 and a few fp32 roundings of a sum's largest terms: both sides add the same products in another order.
    const auto got_absorbed = from_gpu<uint16_t>(gpu_absorbed.data(), std::ssize(absorbed));
    const auto got_values = from_gpu<uint16_t>(gpu_values.data(), std::ssize(values));
    EXPECT_LE(bf16_distance(got_absorbed.data(), absorbed, 2e-6f), 1) << rows;
    EXPECT_LE(bf16_distance(got_values.data(), values, 2e-6f), 1) << rows;
  }
}

}  // namespace
}  // namespace tandem::ops::mla_absorb_gpu_test
