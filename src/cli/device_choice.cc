// The rules of --device auto and what --device cuda refuses.
#include "cli/device_choice.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "base/error.h"
#include "cli/loaded_model.h"
#include "device/cuda_gpu.h"
#include "engine/plan.h"

namespace tandem::cli {
namespace {

// Graphs, kernels' local memory and what the driver takes for itself while it runs.
constexpr int64_t reserve = int64_t{512} << 20;

// Why a GPU cannot do what was asked for, as an error with the setting's name; none: it can.
std::unique_ptr<Error> obstacle(const DeviceWish& wish) {
  if (wish.compute == "f32")
    return std::make_unique<Error>(ErrorCode::usage, "--compute", "f32 with --device cuda", "bf16 or auto");
  if (wish.kv_cache_dtype == "f32")
    return std::make_unique<Error>(ErrorCode::usage, "--kv-cache-dtype", "f32 with --device cuda",
                                   "auto, bf16, fp8, fp8_row, nvfp4 or bf16_fp8_index");
  if (wish.ranks > 1)
    return std::make_unique<Error>(ErrorCode::usage, "--tensor-parallel-size",
                                   fmt::format("{} with --device cuda", wish.ranks), "1, or --device cpu");
  if (!wish.coded_weight.empty())
    return std::make_unique<Error>(ErrorCode::bad_file, wish.coded_weight, "a weight in FP8, NVFP4 or EXL3",
                                   "BF16 or F32 with --device cuda (coded weights run with --device cpu)");
  return nullptr;
}

}  // namespace

std::string coded_weight_of(const model::Checkpoint& checkpoint) {
  using model::DType;
  for (const model::Tensor* tensor : checkpoint.tensors()) {
    const DType type = tensor->dtype;
    const bool is_plain = type == DType::f64 || type == DType::f32 || type == DType::f16 || type == DType::bf16;
    if (!is_plain && tensor->name.find(".visual.") == std::string::npos) return tensor->name;
  }
  return {};
}

DeviceChoice choose_device(const DeviceWish& wish, const OpenGpu& open) {
  if (wish.device != "auto" && wish.device != "cpu" && wish.device != "cuda")
    throw Error(ErrorCode::usage, "--device", wish.device, "auto, cpu or cuda");
  cache_type(wish.kv_cache_dtype, compute_type(wish.compute));  // wrong names are errors on every device
  DeviceChoice choice;
  if (wish.device == "cpu") return choice;
  const auto against = obstacle(wish);
  if (wish.device == "cuda") {
    if (against) throw Error(*against);
    choice.gpu = open();
    choice.has_gpu = true;
    return choice;
  }
  try {
    choice.gpu = open();
    choice.has_gpu = true;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::resource) throw;
    // Where it was looked for is what tandem doctor says.
    choice.reason =
        fmt::format("no GPU can be used: {}: {}", error.where(), error.found().substr(0, error.found().find(" (")));
    return choice;
  }
  if (against) {
    choice.reason = fmt::format("no GPU runs {}: {}", against->where(), against->found());
    if (const size_t at = choice.reason.find(" with --device cuda"); at != std::string::npos) choice.reason.erase(at);
    choice.gpu.reset();
  }
  return choice;
}

DeviceChoice choose_device(const DeviceWish& wish) {
  return choose_device(wish, [] { return device::open_cuda_gpu(0); });
}

forward::Compute compute_on(bool on_gpu, const std::string& name) {
  const forward::Compute compute = compute_type(name);
  return on_gpu ? forward::Compute::bf16 : compute;
}

forward::CacheType cache_type_on(bool on_gpu, const std::string& name, forward::Compute compute) {
  return cache_type(name, on_gpu ? forward::Compute::bf16 : compute);
}

void check_utilization(double utilization) {
  if (!(utilization > 0 && utilization <= 1))
    throw Error(ErrorCode::usage, "--gpu-memory-utilization", fmt::format("{}", utilization), "more than 0, at most 1");
}

int64_t gpu_memory_beside(device::Gpu& gpu, double utilization, int64_t weights) {
  check_utilization(utilization);
  const int64_t memory = gpu.properties().memory, in_use = memory - gpu.free_memory();
  const auto planned = static_cast<int64_t>(std::floor(static_cast<double>(memory) * utilization));
  const int64_t left = planned - in_use - reserve - weights;
  if (left > 0) return left;
  throw Error(
      ErrorCode::does_not_fit, "GPU memory",
      fmt::format("weights of {}, with {} of {} in use already and {} kept for graphs", engine::size_at_least(weights),
                  engine::size_at_least(in_use), engine::size_at_most(memory), engine::size_at_least(reserve)),
      fmt::format("at most --gpu-memory-utilization {} of it in all: end other programs on this GPU, raise "
                  "that share, or take smaller weights",
                  utilization));
}

std::string name_of(const device::GpuProperties& gpu) {
  return fmt::format("{}, compute capability {}.{}, driver {}", gpu.name, gpu.target / 10, gpu.target % 10, gpu.driver);
}

}  // namespace tandem::cli
