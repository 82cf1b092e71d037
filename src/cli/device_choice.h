// --device: which device runs the model, and the GPU itself.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "device/gpu.h"
#include "forward/text_model.h"
#include "model/checkpoint.h"

namespace tandem::cli {

// What decides beside what this machine has: settings by their names on the command line.
struct DeviceWish {
  std::string device = "auto";   // --device: auto, cpu or cuda
  std::string compute = "auto";  // --compute
  std::string kv_cache_dtype = "auto";
  int32_t ranks = 1;              // --tensor-parallel-size
  std::string coded_weight = {};  // name of a tensor in FP8, NVFP4 or EXL3; empty: the checkpoint has none
};

struct DeviceChoice {
  std::unique_ptr<device::Gpu> gpu;  // null: the CPU
  std::string reason;                // of auto's choice of the CPU, for people; else empty
  bool has_gpu = false;              // there is a usable one, chosen or not

  bool on_gpu() const { return gpu != nullptr; }
};

// A tensor that only the CPU can multiply with; empty: there is none.
std::string coded_weight_of(const model::Checkpoint& checkpoint);

using OpenGpu = std::function<std::unique_ptr<device::Gpu>()>;

// auto takes the GPU if it can be used and if it can do what was asked for. `open`: GPU 0, or what a test gives in its
// place; throws what open_cuda_gpu() throws. Throws Error(usage) naming the setting that --device cuda does not go
// with, and for --device cuda what `open` throws.
DeviceChoice choose_device(const DeviceWish& wish, const OpenGpu& open);
DeviceChoice choose_device(const DeviceWish& wish);

// --compute and --kv-cache-dtype as they may be on that device; auto: f32 on a CPU, bf16 on a GPU. Throws Error(usage).
forward::Compute compute_on(bool on_gpu, const std::string& name);
forward::CacheType cache_type_on(bool on_gpu, const std::string& name, forward::Compute compute);

// Throws Error(usage) for a share of a GPU's memory outside of (0, 1].
void check_utilization(double utilization);

// Device memory that may be planned beside weights of so many bytes: `utilization` of the GPU's memory, less what is in
// use already and a reserve for graphs and the driver. Throws Error(usage) for a utilization outside of (0, 1],
// Error(does_not_fit) when nothing is left, saying who takes it.
int64_t gpu_memory_beside(device::Gpu& gpu, double utilization, int64_t weights);

// "NVIDIA H200, compute capability 9.0, driver 580.159".
std::string name_of(const device::GpuProperties& gpu);

}  // namespace tandem::cli
