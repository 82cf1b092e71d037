// Reference decoding of a whole EXL3 matrix, and its slices. Clear before fast: kernels of ops/ are tested against
// this.
#include "quant/exl3_matrix.h"

#include <cmath>
#include <cstring>

#include "base/error.h"
#include "quant/exl3_tile.h"
#include "quant/hadamard.h"
#include "quant/half.h"

namespace tandem::quant {
namespace {

std::vector<float> scales(std::span<const std::byte> halves, std::span<const std::byte> signs, int64_t count) {
  std::vector<float> values(count);
  for (int64_t i = 0; i < count; ++i) {
    if (halves.empty()) {
      values[i] = static_cast<int>(signs[i / 8]) >> (i % 8) & 1 ? -1.0f : 1.0f;
    } else {
      uint16_t bits;
      std::memcpy(&bits, halves.data() + 2 * i, 2);
      values[i] = half_to_float(bits);
    }
  }
  return values;
}

void check_slice(const char* what, int64_t size, int64_t first, int64_t count) {
  if (first < 0 || count <= 0 || first % hadamard_block != 0 || count % hadamard_block != 0 || first + count > size)
    throw Error(ErrorCode::internal, what, "[" + std::to_string(first) + ", " + std::to_string(first + count) + ")",
                "a part of [0, " + std::to_string(size) + ") cut at multiples of 128");
}

std::span<const std::byte> part(std::span<const std::byte> values, int64_t first, int64_t count) {
  return values.empty() ? values : values.subspan(first, count);
}

template <class Real>
std::vector<Real> dense(const Exl3Matrix& m) {
  const int64_t in = m.in_features, out = m.out_features;
  const std::vector<float> decoded = exl3_decode(m), suh = exl3_input_scales(m), svh = exl3_output_scales(m);
  std::vector<Real> w(decoded.begin(), decoded.end());
  std::vector<Real> column(in);
  for (int64_t n = 0; n < out; ++n) {
    for (int64_t k = 0; k < in; ++k) column[k] = w[k * out + n];
    hadamard128(column.data(), in / hadamard_block);
    for (int64_t k = 0; k < in; ++k) w[k * out + n] = column[k];
  }
  for (int64_t k = 0; k < in; ++k) {
    hadamard128(w.data() + k * out, out / hadamard_block);
    for (int64_t n = 0; n < out; ++n) w[k * out + n] *= static_cast<Real>(suh[k]) * static_cast<Real>(svh[n]);
  }
  return w;
}

}  // namespace

Exl3Matrix exl3_inputs(const Exl3Matrix& m, int64_t first, int64_t count) {
  check_slice("inputs of an EXL3 matrix", m.in_features, first, count);
  Exl3Matrix slice = m;
  slice.tile_stride = m.stride();
  slice.trellis = m.trellis.subspan(m.tile(first / exl3_tile, 0) - m.trellis.data());
  slice.in_features = count;
  slice.suh = part(m.suh, 2 * first, 2 * count);
  slice.su = part(m.su, first / 8, count / 8);
  slice.bias = {};
  return slice;
}

Exl3Matrix exl3_outputs(const Exl3Matrix& m, int64_t first, int64_t count) {
  check_slice("outputs of an EXL3 matrix", m.out_features, first, count);
  Exl3Matrix slice = m;
  slice.tile_stride = m.stride();
  slice.trellis = m.trellis.subspan(m.tile(0, first / exl3_tile) - m.trellis.data());
  slice.out_features = count;
  slice.svh = part(m.svh, 2 * first, 2 * count);
  slice.sv = part(m.sv, first / 8, count / 8);
  slice.bias = part(m.bias, 2 * first, 2 * count);
  return slice;
}

std::vector<float> exl3_input_scales(const Exl3Matrix& m) { return scales(m.suh, m.su, m.in_features); }

std::vector<float> exl3_output_scales(const Exl3Matrix& m) { return scales(m.svh, m.sv, m.out_features); }

std::vector<float> exl3_decode(const Exl3Matrix& m) {
  std::vector<float> w(m.in_features * m.out_features);
  const float* values = exl3_values(m.codebook);
  for (int64_t tk = 0; tk < m.in_features / exl3_tile; ++tk)
    for (int64_t tn = 0; tn < m.out_features / exl3_tile; ++tn)
      exl3_decode_rows(m.tile(tk, tn), m.bits, values, w.data() + exl3_tile * (tk * m.out_features + tn),
                       m.out_features);
  return w;
}

std::vector<double> exl3_dense(const Exl3Matrix& m) { return dense<double>(m); }

std::vector<float> exl3_dense_f32(const Exl3Matrix& m) { return dense<float>(m); }

std::vector<double> exl3_multiply(const Exl3Matrix& m, std::span<const double> x) {
  const std::vector<float> w = exl3_decode(m), suh = exl3_input_scales(m), svh = exl3_output_scales(m);
  std::vector<double> a(m.in_features), y(m.out_features);
  for (int64_t k = 0; k < m.in_features; ++k) a[k] = x[k] * suh[k];
  hadamard128(a.data(), m.in_features / hadamard_block);
  for (int64_t k = 0; k < m.in_features; ++k)
    for (int64_t n = 0; n < m.out_features; ++n) y[n] += a[k] * w[k * m.out_features + n];
  hadamard128(y.data(), m.out_features / hadamard_block);
  const std::vector<float> bias = m.bias.empty() ? std::vector<float>(y.size()) : scales(m.bias, {}, m.out_features);
  for (int64_t n = 0; n < m.out_features; ++n) y[n] = y[n] * svh[n] + bias[n];
  return y;
}

std::string exl3_suspicion(const Exl3Matrix& m) {
  constexpr double codebook_rms = 1.24411185;
  const int64_t tiles = m.in_features / exl3_tile * (m.out_features / exl3_tile);
  if (m.codebook != Exl3Codebook::mcg || m.bits < 3 || tiles < 256) return {};
  // Evenly spread tiles, at most 512: the RMS of 131,072 weights is known within 0.2 %.
  const int64_t step = (tiles + 511) / 512;
  double squares = 0;
  int64_t count = 0;
  for (int64_t i = 0; i < tiles; i += step, ++count) {
    float tile[exl3_tile_weights];
    exl3_decode_rows(m.tile(i / (m.out_features / exl3_tile), i % (m.out_features / exl3_tile)), m.bits,
                     exl3_values(m.codebook), tile, exl3_tile);
    for (const float value : tile) squares += static_cast<double>(value) * value;
  }
  const double rms = std::sqrt(squares / static_cast<double>(count * exl3_tile_weights));
  if (std::abs(rms / codebook_rms - 1) >= 0.005) return {};
  return "decoded RMS " + std::to_string(rms) + " is that of random states: the trellis may be packed in another order";
}

}  // namespace tandem::quant
