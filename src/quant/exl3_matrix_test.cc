// Whole matrices against the golden table of spec/quantization.md 1.13 (b), and their slices.
#include "quant/exl3_matrix.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "quant/exl3_tile.h"
#include "quant/half.h"
#include "quant/test_exl3.h"

namespace tandem::quant::exl3_matrix_test {
namespace {

struct Golden {
  int bits;
  Exl3Codebook codebook;
  uint64_t trellis;
  double sum_wq, squares_wq, wq_0_0, wq_200_77, w_0_0, w_200_77, w_255_127, y_0, y_1, y_127, sum_y, squares_y;
};

// clang-format off
const Golden golden_matrices[] = {
    {2, Exl3Codebook::mcg, 0x8cf621a166a5d311, -26.043457, 51104.1923, 0.14038086, 1.2333984, 0.044545323, -0.52155938, -0.28201902, -3.5785095, 3.3318895, 4.7975235, 25.720346, 1412.0041},
    {3, Exl3Codebook::mcg, 0x5f3b6a8d31afdd10, -142.691528, 49990.1943, 0.48046875, -0.17382812, 0.059090629, -0.017197244, -0.061263084, -2.7373043, 4.5916638, 0.857077, 38.937228, 1044.3214},
    {4, Exl3Codebook::three_inst, 0x52e1b5ac66983ec5, 356.99707, 50409.5395, -1.0058594, -0.15332031, 0.018929154, -0.14404647, 0.55308291, 0.644597, 4.5742323, -7.1078498, -13.130954, 1572.5077},
    {4, Exl3Codebook::mcg, 0x52e1b5ac66983ec5, -64.2709961, 51009.0073, 0.83837891, -0.24633789, -0.01089254, -0.79430304, -0.544164, -0.77201975, 3.7606522, 3.4916858, 29.989559, 1108.254},
    {4, Exl3Codebook::mul1, 0x52e1b5ac66983ec5, -9.06905365, 32685.5428, -0.29272461, -0.049194336, 0.0248536, -0.14053251, -0.11208592, 0.808592, 0.22110625, -1.5288417, -5.2625158, 796.92134},
    {6, Exl3Codebook::mcg, 0x445a2c484e0265c6, -62.0040283, 50106.2558, 0.055419922, -0.15673828, -0.072065145, -0.32770803, 0.10972141, -1.3208434, 1.8082298, 0.94268748, 21.912853, 1323.4672},
};
// clang-format on

void expect_close(double value, double golden) { EXPECT_NEAR(value, golden, std::abs(golden) * 1e-6); }

std::vector<double> golden_x() {
  std::vector<double> x(256);
  for (int k = 0; k < 256; ++k) x[k] = (37 * k % 101 - 50) / 50.0;
  return x;
}

TEST(Exl3Matrix, GoldenMatrices) {
  for (const Golden& golden : golden_matrices) {
    const StoredExl3 stored(256, 128, golden.bits);
    const Exl3Matrix m = stored.matrix(golden.codebook);
    SCOPED_TRACE(std::to_string(golden.bits) + " " + std::string(name_of(golden.codebook)));
    EXPECT_EQ(fnv1a64(m.trellis), golden.trellis);
    const std::vector<float> wq = exl3_decode(m);
    double sum = 0, squares = 0;
    for (const double value : wq) sum += value, squares += value * value;
    expect_close(sum, golden.sum_wq);
    expect_close(squares, golden.squares_wq);
    expect_close(wq[0], golden.wq_0_0);
    expect_close(wq[200 * 128 + 77], golden.wq_200_77);
    const std::vector<double> w = exl3_dense(m), y = exl3_multiply(m, golden_x());
    expect_close(w[0], golden.w_0_0);
    expect_close(w[200 * 128 + 77], golden.w_200_77);
    expect_close(w[255 * 128 + 127], golden.w_255_127);
    expect_close(y[0], golden.y_0);
    expect_close(y[1], golden.y_1);
    expect_close(y[127], golden.y_127);
    double sum_y = 0, squares_y = 0;
    for (const double value : y) sum_y += value, squares_y += value * value;
    expect_close(sum_y, golden.sum_y);
    expect_close(squares_y, golden.squares_y);
  }
}

// x · W with the dense matrix.
std::vector<double> times_dense(const std::vector<double>& w, const std::vector<double>& x, size_t out) {
  std::vector<double> y(out);
  for (size_t k = 0; k < x.size(); ++k)
    for (size_t n = 0; n < out; ++n) y[n] += x[k] * w[k * out + n];
  return y;
}

TEST(Exl3Matrix, DenseAndRunTimePathsAgree) {
  for (int bits = 1; bits <= 8; ++bits) {
    const StoredExl3 stored(256, 128, bits);
    const Exl3Matrix m = stored.matrix(Exl3Codebook::mul1);
    const std::vector<double> w = exl3_dense(m), y = exl3_multiply(m, golden_x());
    const std::vector<double> expected = times_dense(w, golden_x(), 128);
    for (int n = 0; n < 128; ++n) EXPECT_NEAR(y[n], expected[n], 1e-10) << bits << " " << n;
    const std::vector<float> single = exl3_dense_f32(m);
    for (size_t i = 0; i < w.size(); ++i) ASSERT_NEAR(single[i], w[i], 2e-5) << i;
  }
}

TEST(Exl3Matrix, LegacySignsSetBitIsMinusOneFromTheLowestBitOn) {
  StoredExl3 stored(256, 128, 4);
  std::vector<uint16_t> su(16), sv(8);
  su[0] = 0x0001;   // element 0
  su[15] = 0x8000;  // element 255
  sv[3] = 0x0104;   // elements 50 and 56
  Exl3Matrix m = stored.matrix(Exl3Codebook::mcg);
  m.suh = m.svh = {};
  m.su = std::as_bytes(std::span<const uint16_t>(su));
  m.sv = std::as_bytes(std::span<const uint16_t>(sv));
  const std::vector<float> input = exl3_input_scales(m), output = exl3_output_scales(m);
  for (int k = 0; k < 256; ++k) EXPECT_EQ(input[k], k == 0 || k == 255 ? -1.0f : 1.0f) << k;
  for (int n = 0; n < 128; ++n) EXPECT_EQ(output[n], n == 50 || n == 56 ? -1.0f : 1.0f) << n;

  // The same layer with the signs as fp16.
  std::vector<uint16_t> suh(256), svh(128);
  for (int k = 0; k < 256; ++k) suh[k] = float_to_half(input[k]);
  for (int n = 0; n < 128; ++n) svh[n] = float_to_half(output[n]);
  Exl3Matrix same = m;
  same.su = same.sv = {};
  same.suh = std::as_bytes(std::span<const uint16_t>(suh));
  same.svh = std::as_bytes(std::span<const uint16_t>(svh));
  EXPECT_EQ(exl3_dense(m), exl3_dense(same));
  // A slice has the signs of its own part.
  EXPECT_EQ(exl3_input_scales(exl3_inputs(m, 128, 128)), std::vector<float>(input.begin() + 128, input.end()));
}

TEST(Exl3Matrix, OutputOfZeroScaleIsZero) {
  StoredExl3 stored(128, 128, 3);
  stored.svh[5] = 0;
  const std::vector<double> y = exl3_multiply(stored.matrix(Exl3Codebook::mcg), std::vector<double>(128, 0.5));
  EXPECT_EQ(y[5], 0);
  EXPECT_NE(y[6], 0);
}

TEST(Exl3Matrix, BiasIsAdded) {
  StoredExl3 stored(128, 128, 3);
  Exl3Matrix m = stored.matrix(Exl3Codebook::mcg);
  const std::vector<uint16_t> bias(128, float_to_half(2.5f));
  const std::vector<double> x(128, 0.5), without = exl3_multiply(m, x);
  m.bias = std::as_bytes(std::span<const uint16_t>(bias));
  const std::vector<double> with = exl3_multiply(m, x);
  for (int n = 0; n < 128; ++n) EXPECT_EQ(with[n], without[n] + 2.5);
}

TEST(Exl3Matrix, SlicesOfOutputsAreTheWholesOutputs) {
  const StoredExl3 stored(256, 384, 5);
  const Exl3Matrix m = stored.matrix(Exl3Codebook::mcg);
  const std::vector<double> x = golden_x(), whole = exl3_multiply(m, x);
  const std::vector<double> first = exl3_multiply(exl3_outputs(m, 0, 128), x);
  const std::vector<double> rest = exl3_multiply(exl3_outputs(m, 128, 256), x);
  for (int n = 0; n < 384; ++n) EXPECT_EQ(n < 128 ? first[n] : rest[n - 128], whole[n]) << n;
  EXPECT_EQ(exl3_multiply(exl3_outputs(exl3_outputs(m, 128, 256), 128, 128), x),
            std::vector<double>(whole.begin() + 256, whole.end()));
}

TEST(Exl3Matrix, SlicesOfInputsAddUp) {
  const StoredExl3 stored(384, 256, 2);
  const Exl3Matrix m = stored.matrix(Exl3Codebook::three_inst);
  const std::vector<float> values = gaussian_values(384, 3);
  const std::vector<double> x(values.begin(), values.end()), whole = exl3_multiply(m, x);
  const std::span<const double> all(x);
  const std::vector<double> a = exl3_multiply(exl3_inputs(m, 0, 256), all.first(256));
  const std::vector<double> b = exl3_multiply(exl3_inputs(m, 256, 128), all.last(128));
  for (int n = 0; n < 256; ++n) EXPECT_NEAR(a[n] + b[n], whole[n], 1e-10) << n;
}

TEST(Exl3Matrix, SlicesAreCutAtBlocks) {
  const StoredExl3 stored(256, 256, 4);
  const Exl3Matrix m = stored.matrix(Exl3Codebook::mcg);
  EXPECT_THROW(exl3_inputs(m, 64, 128), Error);
  EXPECT_THROW(exl3_outputs(m, 0, 64), Error);
  EXPECT_THROW(exl3_outputs(m, 128, 256), Error);
  EXPECT_THROW(exl3_inputs(m, -128, 128), Error);
}

TEST(Exl3Matrix, RandomStatesAreSuspicious) {
  const StoredExl3 random(512, 512, 4);
  EXPECT_NE(exl3_suspicion(random.matrix(Exl3Codebook::mcg)), "");
  EXPECT_EQ(exl3_suspicion(random.matrix(Exl3Codebook::mul1)), "");  // the rule is for mcg
  StoredExl3 repeated(512, 512, 4);                                  // one state everywhere: another RMS
  std::fill(repeated.trellis.begin(), repeated.trellis.end(), static_cast<uint16_t>(0x1111));
  EXPECT_EQ(exl3_suspicion(repeated.matrix(Exl3Codebook::mcg)), "");
  EXPECT_EQ(exl3_suspicion(StoredExl3(128, 128, 4).matrix(Exl3Codebook::mcg)), "");  // too few weights to tell
}

}  // namespace
}  // namespace tandem::quant::exl3_matrix_test
