// A GPU made of this machine's CPU: runs the kernels of src/**/*.cu, compiled by the host's compiler, block after
// block, every thread on a fiber of its own. It exists to find wrong kernels on machines without a GPU: device memory
// and shared memory are filled with NaNs, and the order in which threads run between two barriers is shuffled, so that
// a missing barrier shows. Fibers by Boost.Context. It says nothing about speed.
#pragma once

#include <memory>

#include "device/gpu.h"

namespace tandem::emulator {

// seed: of the order of threads.
std::unique_ptr<device::Gpu> make_gpu(uint64_t seed = 1);

}  // namespace tandem::emulator
