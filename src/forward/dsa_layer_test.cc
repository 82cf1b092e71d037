// What the golden vectors do not show (tests/golden/README.md, blind spots): the eps of the latent norm, checked
// against the formula where it decides.
#include <cmath>
#include <cstring>

#include "device/host_memory.h"
#include "device/threads.h"
#include "forward/pass.h"
#include "model/checkpoint.h"
#include "ops/index/index_store.h"

namespace tandem::forward::dsa_layer_test {
namespace {

double bf16_at(const model::Matrix& m, int64_t row, int64_t column) {
  uint16_t half;
  std::memcpy(&half, m.data + (row * m.in_features + column) * 2, 2);
  const uint32_t bits = static_cast<uint32_t>(half) << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

std::vector<double> multiply(const model::Matrix& m, int64_t first_row, int64_t rows, const std::vector<double>& x) {
  std::vector<double> y(static_cast<size_t>(rows));
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < m.in_features; ++c)
      y[static_cast<size_t>(r)] += bf16_at(m, first_row + r, c) * x[static_cast<size_t>(c)];
  }
  return y;
}

// One token attends to itself alone, so y = o_proj·concat_h(Wv_h·RMSNorm(kv_a x)): with a small x, mean(c²) lies far
// below eps, and the result tells 1e-5 from 1e-6.
TEST(DsaAttention, TheLatentNormUsesRmsNormEps) {
  const std::string folder = std::string(TANDEM_SOURCE_DIR) + "/tests/golden/tinyA";
  const model::Shape shape = model::read_shape(folder);
  const model::Checkpoint checkpoint = model::Checkpoint::open(folder);
  const model::TextWeights weights = model::load_text_weights(checkpoint, shape);
  const int64_t number = 3;
  const PreparedLayer layer = prepare_layer(weights.layers[3], shape, 0);
  ASSERT_TRUE(layer.weights->dsa);
  const model::DsaWeights& w = *layer.weights->dsa;

  device::Threads threads(1);
  const Capacity capacity{1, 2, 4, 1};
  Arena arena;
  Scratch scratch{};
  scratch.lay_out(arena, shape, capacity, 1);
  const device::HostMemory memory(arena.used(), "activations", "a smaller --max-num-batched-tokens");
  arena.start_at(memory.data());
  scratch.lay_out(arena, shape, capacity, 1);
  ops::ExpertScratch experts = expert_scratch(shape, 4);
  cache::TokenPool pool(shape, 1, 2, ops::page_rows);
  cache::Slots slots(shape, 1, 1, 1);
  const std::vector<int32_t> token{1};
  const Step step = single_stream_step(token, 0, 1);
  const Pass pass{threads, shape, step, scratch, experts, pool, slots, nullptr, Mutation::none, {}, threads};

  const auto hidden = static_cast<size_t>(shape.hidden_size);
  std::vector<float> x(hidden), y(hidden);
  for (size_t i = 0; i < hidden; ++i) x[i] = 1e-3f * static_cast<float>(std::sin(static_cast<double>(i) + 1));
  dsa_attention(pass, layer, number, x.data(), y.data());

  std::vector<double> c = multiply(w.kv_a_proj, 0, shape.kv_lora_rank, std::vector<double>(x.begin(), x.end()));
  double mean = 0;
  for (const double value : c) mean += value * value / static_cast<double>(c.size());
  ASSERT_LT(mean, 1e-6) << "the test's input must be small beside eps";
  for (size_t i = 0; i < c.size(); ++i) c[i] *= w.kv_a_layernorm[i] / std::sqrt(mean + 1e-5);
  std::vector<double> concat;
  for (int64_t head = 0; head < shape.num_attention_heads; ++head) {
    const int64_t first = head * (shape.qk_nope_head_dim + shape.v_head_dim) + shape.qk_nope_head_dim;
    const std::vector<double> o = multiply(w.kv_b_proj, first, shape.v_head_dim, c);
    concat.insert(concat.end(), o.begin(), o.end());
  }
  const std::vector<double> expected = multiply(w.o_proj, 0, shape.hidden_size, concat);
  double largest = 0;
  for (const double value : expected) largest = std::max(largest, std::abs(value));
  for (size_t i = 0; i < hidden; ++i) EXPECT_NEAR(y[i], expected[i], 1e-5 * largest) << i;
}

TEST(IndexKeyNorm, IsALayerNormWithBiasAndItsOwnEps) {
  const std::vector<float> x{1e-3f, -2e-3f, 4e-4f, 2e-3f}, weight{1.0f, 0.5f, 2.0f, -1.0f},
      bias{0.25f, 0.0f, -1.0f, 3.0f};
  std::vector<float> y(4);
  ops::index_key_norm(x.data(), weight.data(), bias.data(), 4, y.data());
  double mean = 0, variance = 0;
  for (const float value : x) mean += value / 4.0;
  for (const float value : x) variance += (value - mean) * (value - mean) / 4.0;
  for (size_t i = 0; i < 4; ++i)
    EXPECT_NEAR(y[i], (x[i] - mean) / std::sqrt(variance + 1e-6) * weight[i] + bias[i], 1e-6);
}

}  // namespace
}  // namespace tandem::forward::dsa_layer_test
