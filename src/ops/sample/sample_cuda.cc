// The sampler's launch.
#include "ops/sample/sample_cuda.h"

namespace tandem::ops {

CudaSample::CudaSample(device::Gpu& gpu, const std::vector<std::string>& defines)
    : gpu_(gpu), kernel_(gpu.load({"ops/sample/sample.cu", "sample_rows", defines})) {}

void CudaSample::run(const SampleArgs& args, int64_t max_rows) const {
  if (max_rows == 0) return;
  device::Launch launch{kernel_};
  launch.threads = 512;
  launch.grid[0] = static_cast<uint32_t>(max_rows);
  gpu_.launch(launch, args);
}

device::KernelCost CudaSample::cost(int64_t rows, int64_t vocab_size, int64_t passes) {
  return {4 * rows * vocab_size * passes, 0};
}

}  // namespace tandem::ops
