// Remembering and repeating launches.
#include "traced_gpu.h"

#include <utility>

namespace tandem::bench {

std::vector<TracedLaunch> TracedGpu::take() {
  tracing_ = false;
  return std::exchange(launches_, {});
}

device::Kernel TracedGpu::load(const device::KernelSpec& spec) {
  const device::Kernel kernel = gpu_.load(spec);
  const auto index = static_cast<size_t>(kernel.index);
  if (specs_.size() <= index) specs_.resize(index + 1);
  specs_[index] = spec;
  return kernel;
}

void TracedGpu::launch_with(const device::Launch& launch, const void* args, size_t bytes) {
  if (!tracing_) return gpu_.launch_with(launch, args, bytes);
  const auto* first = static_cast<const std::byte*>(args);
  launches_.push_back({launch, specs_[static_cast<size_t>(launch.kernel.index)], {first, first + bytes}});
}

}  // namespace tandem::bench
