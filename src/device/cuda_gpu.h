// A GPU through NVIDIA's driver.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "device/cuda_driver.h"
#include "device/gpu.h"
#include "device/kernel_cache.h"

namespace tandem::device {

struct CudaOptions {
  std::filesystem::path cache_dir;  // of compiled kernels; empty: default_kernel_cache()
  std::string nvrtc;                // the compiler's library; empty: it is looked for
};

// GPU `ordinal` in the driver's order (CUDA_VISIBLE_DEVICES applies). Throws Error(resource) that says what is missing:
// the driver, a driver new enough, that GPU, or one of compute capability 9.0 or above. That there is no NVRTC is an
// error only when a kernel is needed that the cache does not have.
std::unique_ptr<Gpu> open_cuda_gpu(int ordinal, const CudaOptions& options = {});

// The same with a given driver and cache; `driver` is initialised.
std::unique_ptr<Gpu> make_cuda_gpu(const cuda::Driver& driver, std::unique_ptr<KernelCache> cache, int ordinal);

}  // namespace tandem::device
