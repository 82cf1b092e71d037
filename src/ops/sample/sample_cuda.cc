// The sampler's launches.
#include "ops/sample/sample_cuda.h"

#include <algorithm>

namespace tandem::ops {
namespace {

constexpr int64_t blocks = 256;  // of the kernels that cut rows into parts, about
constexpr int64_t most_parts = 128;

int64_t parts_of_row(int64_t max_rows) { return std::clamp<int64_t>(blocks / max_rows, 1, most_parts); }

}  // namespace

CudaSample::CudaSample(device::Gpu& gpu, const std::vector<std::string>& defines)
    : gpu_(gpu),
      best_(gpu.load({"ops/sample/sample.cu", "sample_best", defines})),
      weigh_(gpu.load({"ops/sample/sample.cu", "sample_weigh", defines})),
      rows_(gpu.load({"ops/sample/sample.cu", "sample_rows", defines})) {}

int64_t CudaSample::scratch_bytes(int64_t max_rows) {
  return (max_rows * SampleArgs::bins + std::max(max_rows, blocks)) * static_cast<int64_t>(sizeof(uint64_t));
}

void CudaSample::run(SampleArgs args, std::byte* scratch, int64_t max_rows) const {
  if (max_rows == 0) return;
  args.parts = static_cast<int32_t>(parts_of_row(max_rows));
  args.weights = reinterpret_cast<uint64_t*>(scratch);
  args.best = args.weights + max_rows * SampleArgs::bins;
  device::Launch launch{best_};
  launch.threads = 512;
  launch.grid[0] = static_cast<uint32_t>(args.parts);
  launch.grid[1] = static_cast<uint32_t>(max_rows);
  gpu_.launch(launch, args);
  launch.kernel = weigh_;
  gpu_.launch(launch, args);
  launch.kernel = rows_;
  launch.grid[0] = static_cast<uint32_t>(max_rows);
  launch.grid[1] = 1;
  gpu_.launch(launch, args);
}

device::KernelCost CudaSample::cost(int64_t rows, int64_t vocab_size, int64_t passes) {
  return {4 * rows * vocab_size * passes, 0};
}

}  // namespace tandem::ops
