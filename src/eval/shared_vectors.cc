// Logarithms of RMS values in fp64, one matrix a thread; sums over matrices in their order.
#include "eval/shared_vectors.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "quant/exl3_finalise.h"
#include "quant/hadamard.h"

namespace tandem::eval {
namespace {

constexpr double codebook_scale = 1.24371088;  // the encoder's constant for every codebook (2.4)
constexpr double least = 1e-30;                // of an RMS, as in 2.4

int64_t padded_to_transform(int64_t size) {
  return (size + quant::hadamard_block - 1) / quant::hadamard_block * quant::hadamard_block;
}

// RMS of every output of `values` [out, in].
std::vector<double> output_rms(const std::vector<float>& values, int64_t out, int64_t in) {
  std::vector<double> rms(static_cast<size_t>(out));
  for (int64_t o = 0; o < out; ++o) {
    double sum = 0;
    for (int64_t i = 0; i < in; ++i) {
      const double v = values[static_cast<size_t>(o * in + i)];
      sum += v * v;
    }
    rms[static_cast<size_t>(o)] = std::sqrt(sum / static_cast<double>(in));
  }
  return rms;
}

double mean_scale(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

// Relative to their mean, none 0: a dead output counts as one of a tenth (2.4).
std::vector<double> relative(std::vector<double> rms) {
  const double mean = mean_scale(rms);
  for (double& value : rms) value = mean > least && value / mean >= least ? value / mean : 0.1;
  return rms;
}

// RMS of every input over the padded outputs, once the output scales are taken off. The signs and the transform over
// outputs, which are taken off, too, are orthogonal and do not change it.
std::vector<double> input_rms(const SharingMatrix& matrix) {
  const std::vector<float> values = matrix.values();
  const std::vector<double> scales = relative(output_rms(values, matrix.out, matrix.in));
  std::vector<double> rms(static_cast<size_t>(matrix.in));
  for (int64_t o = 0; o < matrix.out; ++o)
    for (int64_t i = 0; i < matrix.in; ++i) {
      const double v = values[static_cast<size_t>(o * matrix.in + i)] / scales[static_cast<size_t>(o)];
      rms[static_cast<size_t>(i)] += v * v;
    }
  for (double& value : rms)
    value = std::max(std::sqrt(value / static_cast<double>(padded_to_transform(matrix.out))), least);
  return rms;
}

// exp of the mass-weighted mean of logarithms.
template <typename RmsOf>
std::vector<double> geometric_mean(const std::vector<SharingMatrix>& matrices, device::Threads& threads,
                                   const RmsOf& rms_of) {
  std::vector<std::vector<double>> logs(matrices.size());
  threads.run(std::ssize(matrices), [&](int64_t i) {
    std::vector<double> rms = rms_of(matrices[static_cast<size_t>(i)]);
    for (double& value : rms) value = std::log(value);
    logs[static_cast<size_t>(i)] = std::move(rms);
  });
  double total = 0;
  for (const SharingMatrix& matrix : matrices) total += matrix.mass;
  std::vector<double> mean(logs.front().size());
  for (size_t m = 0; m < matrices.size(); ++m) {
    const double share = total > 0 ? matrices[m].mass / total : 1.0 / static_cast<double>(matrices.size());
    for (size_t i = 0; i < mean.size(); ++i) mean[i] += share * logs[m][i];
  }
  for (double& value : mean) value = std::exp(value);
  return mean;
}

std::vector<float> with_signs(std::vector<double> values, double factor, uint64_t seed, quant::Exl3Side side) {
  values.resize(static_cast<size_t>(padded_to_transform(std::ssize(values))), mean_scale(values));
  std::vector<float> result = quant::exl3_signs(seed, side, std::ssize(values));
  for (size_t i = 0; i < values.size(); ++i) result[i] *= static_cast<float>(values[i] * factor);
  return result;
}

}  // namespace

std::vector<float> shared_input_vector(const std::vector<SharingMatrix>& matrices, uint64_t sign_seed,
                                       device::Threads& threads) {
  return with_signs(geometric_mean(matrices, threads, input_rms), -1 / codebook_scale, sign_seed,
                    quant::Exl3Side::input);
}

std::vector<float> shared_output_vector(const std::vector<SharingMatrix>& matrices, uint64_t sign_seed,
                                        device::Threads& threads) {
  std::vector<double> mean = geometric_mean(matrices, threads, [](const SharingMatrix& matrix) {
    return relative(output_rms(matrix.values(), matrix.out, matrix.in));
  });
  const double scale = 1 / mean_scale(mean);
  return with_signs(std::move(mean), scale, sign_seed, quant::Exl3Side::output);
}

}  // namespace tandem::eval
