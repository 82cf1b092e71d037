// `tandem eval parity --device cuda` over a golden case.
#include "device/test_gpu.h"
#include "eval/parity.h"

namespace tandem::eval::parity_gpu_test {
namespace {

TEST(ParityOnGpu, LogitsLieNearTheReferences) {
  ParityOptions options;
  options.golden = std::string(TANDEM_SOURCE_DIR) + "/tests/golden";
  options.bundled_models = std::string(TANDEM_SOURCE_DIR) + "/models";
  options.only = "nano/case_T40";
  options.compute = forward::Compute::bf16;
  options.gpu = &device::gpu_under_test();
  const ParityReport report = run_parity(options);
  EXPECT_TRUE(report.ok()) << parity_text(report);
  ASSERT_EQ(report.cases.size(), 1u);
  EXPECT_EQ(report.cases[0].measures.size(), 2u);
}

}  // namespace
}  // namespace tandem::eval::parity_gpu_test
