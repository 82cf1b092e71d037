// What the EXL3 encoder wrote when these hashes were taken. Compiled twice, with the tree's optimisation and with -O1:
// a change here is a change of the encoder's arithmetic, and files encoded before can no longer be made again.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "quant/exl3_encode.h"
#include "quant/test_golden.h"

namespace tandem::quant {
namespace {

// Sums of uniform numbers: exact, where a logarithm would depend on the library.
std::vector<float> weights(size_t count, uint32_t seed) {
  Lcg random(seed);
  std::vector<float> values(count);
  for (float& w : values) {
    double sum = -2;
    for (int draw = 0; draw < 4; ++draw) sum += (random.next() >> 8) * 0x1p-24;
    w = static_cast<float>(sum * 0.03125);
  }
  return values;
}

Exl3Moments moments(int64_t n, uint32_t seed) {
  Exl3Moments m;
  m.features = n;
  m.sums.resize(static_cast<size_t>(n * n));
  m.rows = 300;
  m.weight = 150;
  Lcg random(seed);
  std::vector<double> x(static_cast<size_t>(n));
  for (int64_t row = 0; row < m.rows; ++row) {
    for (size_t i = 0; i < x.size(); ++i) x[i] = (i > 0 ? 0.5 * x[i - 1] : 0) + (random.next() >> 8) * 0x1p-24 - 0.5;
    for (size_t i = 0; i < x.size(); ++i)
      for (size_t j = 0; j <= i; ++j) m.sums[i * x.size() + j] += 0.5 * x[i] * x[j];
  }
  return m;
}

struct Case {
  int64_t out, in;
  int bits;
  Exl3Codebook codebook;
  Exl3ScaleSearch search;
  uint64_t trellis, suh, svh;
};
const Case cases[] = {
    {256, 128, 4, Exl3Codebook::mcg, Exl3ScaleSearch::small, 0xd5326b7c7acf17b2, 0xb3b9ff4a80db6683,
     0x1fb7babb92624b49},
    {120, 250, 3, Exl3Codebook::mul1, Exl3ScaleSearch::none, 0xab1f60152c1c0964, 0xd5acedb1e718ff6c,
     0x278999258c66a29c},
    {128, 128, 2, Exl3Codebook::three_inst, Exl3ScaleSearch::small, 0x1244627c73e25d41, 0xf1f20b62215a2c71,
     0x20320c80d7c9a57f},
    {128, 128, 6, Exl3Codebook::mul1, Exl3ScaleSearch::full, 0x671fc5859dcb35df, 0x2a2c5d61dbf66e2d,
     0x25d65893eb901dc6},
};

TEST(EncoderBytes, AreThoseOfTheHashes) {
  device::Threads threads(2);
  for (const Case& c : cases) {
    Exl3EncodeSettings settings;
    settings.bits = c.bits;
    settings.codebook = c.codebook;
    settings.scale_search = c.search;
    settings.sign_seed = 77;
    const std::vector<float> w = weights(static_cast<size_t>(c.out * c.in), 1000 + static_cast<uint32_t>(c.bits));
    const Exl3Hessian hessian("h", moments(c.in, 2000), 66, threads);
    const Exl3Encoded e = exl3_encode("w", w.data(), c.out, c.in, hessian, settings, threads);
    const std::string what = std::to_string(c.bits) + " bits";
    EXPECT_EQ(fnv1a64(e.trellis), c.trellis) << what;
    EXPECT_EQ(fnv1a64_of(e.suh), c.suh) << what;
    EXPECT_EQ(fnv1a64_of(e.svh), c.svh) << what;
  }
}

}  // namespace
}  // namespace tandem::quant
