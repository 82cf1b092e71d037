// route.cu against route.h on the same logits.
#include <cmath>

#include "base/error.h"
#include "device/kernel_dimensions.h"
#include "device/test_gpu.h"
#include "ops/route/route.h"
#include "ops/route/route_cuda.h"
#include "ops/test_random.h"

namespace tandem::ops::route_gpu_test {
namespace {

using device::from_gpu;
using device::on_gpu;
using test::Random;

struct Case {
  int32_t experts, per_token;
  bool normalise;
  std::vector<float> logits, bias;
  int32_t rows() const { return static_cast<int32_t>(logits.size()) / experts; }
};

// One row more than there are: it must stay as it is.
void compare(const CudaRoute& route_on_gpu, const Case& c, float scale) {
  const int32_t rows = c.rows(), k = c.per_token;
  std::vector<float> sigmoids = c.logits, weights(static_cast<size_t>(rows * k)), gaps(static_cast<size_t>(rows));
  std::vector<int32_t> chosen(static_cast<size_t>(rows * k));
  route({c.experts, k, c.normalise, scale, c.bias.data(), rows, sigmoids.data(), chosen.data(), weights.data(),
         gaps.data()});

  const auto logits = on_gpu(c.logits), bias = on_gpu(c.bias);
  const auto count = on_gpu(std::vector<int32_t>{rows});
  const auto got_chosen = on_gpu(std::vector<int32_t>(static_cast<size_t>((rows + 1) * k), -7));
  const auto got_weights = on_gpu(test::unwritten((rows + 1) * k)), got_gaps = on_gpu(test::unwritten(rows + 1));
  route_on_gpu.run({count.as<int32_t>(), logits.as<float>(), bias.as<float>(), got_chosen.as<int32_t>(),
                    got_weights.as<float>(), got_gaps.as<float>(), c.experts, k, c.normalise ? 1 : 0, scale},
                   rows + 1);
  const auto ids = from_gpu<int32_t>(got_chosen.data(), (rows + 1) * k);
  const auto shares = from_gpu<float>(got_weights.data(), (rows + 1) * k);
  const auto cuts = from_gpu<float>(got_gaps.data(), rows + 1);
  for (int32_t r = 0; r < rows; ++r) {
    const auto row = static_cast<size_t>(r);
    if (std::isinf(gaps[row])) {
      EXPECT_EQ(cuts[row], gaps[row]);
    } else {
      EXPECT_NEAR(cuts[row], gaps[row], 1e-6f);
      if (gaps[row] < 1e-6f && gaps[row] != 0.0f) continue;  // the exponential functions differ in their last bits
    }
    for (size_t i = row * static_cast<size_t>(k); i < (row + 1) * static_cast<size_t>(k); ++i) {
      EXPECT_EQ(ids[i], chosen[i]) << c.experts << " row " << r;
      EXPECT_NEAR(shares[i], weights[i], 2e-6f * scale) << c.experts << " row " << r;
    }
  }
  for (size_t i = static_cast<size_t>(rows) * static_cast<size_t>(k); i < ids.size(); ++i) {
    EXPECT_EQ(ids[i], -7);
    EXPECT_TRUE(std::isnan(shares[i]));
  }
  EXPECT_TRUE(std::isnan(cuts.back()));
}

TEST(RouteGpu, AgainstTheCpu) {
  const CudaRoute route_on_gpu(device::gpu_under_test(), device::model_defines({}));
  Random random(1);
  for (const auto& [experts, per_token] :
       {std::pair<int32_t, int32_t>{1, 1}, {6, 3}, {8, 8}, {33, 2}, {288, 8}, {1024, 17}}) {
    for (const bool normalise : {true, false})
      compare(route_on_gpu,
              {experts, per_token, normalise, random.normals(9 * experts, 2.0f), random.normals(experts, 0.5f)}, 2.5f);
  }
}

TEST(RouteGpu, TiesGoToTheLowerExpert) {
  const CudaRoute route_on_gpu(device::gpu_under_test(), device::model_defines({}));
  compare(route_on_gpu, {70, 5, true, std::vector<float>(140, 0.25f), std::vector<float>(70, 0.1f)}, 1.0f);
  std::vector<float> bias(70, 0.0f);
  for (size_t e = 0; e < bias.size(); ++e) bias[e] = static_cast<float>(e % 3);  // ties of three levels over all lanes
  compare(route_on_gpu, {70, 30, true, std::vector<float>(140, -1.0f), bias}, 2.5f);
}

TEST(RouteGpu, RefusesWhatTheKernelHasNoRoomFor) {
  const CudaRoute route_on_gpu(device::gpu_under_test(), device::model_defines({}));
  RouteArgs args{};
  args.experts = 1025;
  args.per_token = 8;
  EXPECT_THROW(route_on_gpu.run(args, 1), Error);
  args.experts = 64;
  args.per_token = 33;
  EXPECT_THROW(route_on_gpu.run(args, 1), Error);
}

}  // namespace
}  // namespace tandem::ops::route_gpu_test
