// What of NVIDIA's is on this machine, for `tandem doctor`. Nothing here throws: what is missing is part of the answer.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "device/cuda_driver.h"

namespace tandem::device {

// A library: where it is and its version, or why it cannot be used.
struct LibraryReport {
  std::string file, version;
  std::string problem;  // with what to do; empty: usable
};

struct GpuReport {
  int ordinal = 0;
  std::string name;
  int target = 0;  // compute capability: 90
  int multiprocessors = 0;
  int64_t memory = 0, free_memory = -1;  // bytes; -1: not known
  std::string problem;                   // why it cannot be used; empty: usable
};

struct CudaReport {
  LibraryReport driver, nvrtc;
  LibraryReport nccl;  // needed by two GPUs only
  std::vector<GpuReport> gpus;
};

// nvrtc: the compiler's library; empty: it is looked for.
CudaReport cuda_report(const std::string& nvrtc);

// The GPUs that an initialised driver shows.
std::vector<GpuReport> gpus_of(const cuda::Driver& driver);

}  // namespace tandem::device
