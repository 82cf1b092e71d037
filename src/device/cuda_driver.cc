// Names of the driver's functions, with the suffixes of the interface that cuda_driver.h declares.
#include "device/cuda_driver.h"

#include <fmt/format.h>

#include <fstream>
#include <string>

#include "base/error.h"
#include "device/shared_library.h"

namespace tandem::device::cuda {
namespace {

constexpr int oldest_version = 12000;
constexpr const char* remedy = "NVIDIA's driver 525 or newer (CUDA 12.0), or --device cpu";

void bind_memory(const SharedLibrary& library, Driver& d) {
  library.bind(d.memory_info, "cuMemGetInfo_v2");
  library.bind(d.memory_allocate, "cuMemAlloc_v2");
  library.bind(d.memory_free, "cuMemFree_v2");
  library.bind(d.host_allocate, "cuMemHostAlloc");
  library.bind(d.host_free, "cuMemFreeHost");
  library.bind(d.copy_to_device, "cuMemcpyHtoDAsync_v2");
  library.bind(d.copy_to_host, "cuMemcpyDtoHAsync_v2");
  library.bind(d.copy_on_device, "cuMemcpyDtoDAsync_v2");
  library.bind(d.fill_bytes, "cuMemsetD8Async");
}

void bind_queue(const SharedLibrary& library, Driver& d) {
  library.bind(d.stream_create, "cuStreamCreate");
  library.bind(d.stream_destroy, "cuStreamDestroy_v2");
  library.bind(d.stream_synchronize, "cuStreamSynchronize");
  library.bind(d.stream_wait_event, "cuStreamWaitEvent");
  library.bind(d.event_create, "cuEventCreate");
  library.bind(d.event_destroy, "cuEventDestroy_v2");
  library.bind(d.event_record, "cuEventRecord");
  library.bind(d.event_synchronize, "cuEventSynchronize");
  library.bind(d.event_elapsed, "cuEventElapsedTime");
  library.bind(d.capture_begin, "cuStreamBeginCapture_v2");
  library.bind(d.capture_end, "cuStreamEndCapture");
  library.bind(d.graph_instantiate, "cuGraphInstantiateWithFlags");
  library.bind(d.graph_destroy, "cuGraphDestroy");
  library.bind(d.graph_exec_destroy, "cuGraphExecDestroy");
  library.bind(d.graph_launch, "cuGraphLaunch");
}

void bind_kernels(const SharedLibrary& library, Driver& d) {
  library.bind(d.module_load, "cuModuleLoadData");
  library.bind(d.module_unload, "cuModuleUnload");
  library.bind(d.module_function, "cuModuleGetFunction");
  library.bind(d.function_attribute, "cuFuncGetAttribute");
  library.bind(d.function_set_attribute, "cuFuncSetAttribute");
  library.bind(d.launch, "cuLaunchKernel");
  library.bind_optional(d.parameter_info, "cuFuncGetParamInfo");
}

}  // namespace

Driver load_driver(const std::string& file) {
  // The second: containers and microVMs whose host mounts the driver there; the third: Windows' Linux subsystem.
  const std::vector<std::string> files = {"libcuda.so.1", "/usr/local/nvidia/lib64/libcuda.so.1",
                                          "/usr/lib/wsl/lib/libcuda.so.1"};
  const SharedLibrary library(file.empty() ? files : std::vector<std::string>{file}, "NVIDIA driver", remedy);
  Driver d;
  d.file = library.file();
  library.bind(d.init, "cuInit");
  library.bind(d.driver_version, "cuDriverGetVersion");
  library.bind(d.error_name, "cuGetErrorName");
  library.bind(d.error_string, "cuGetErrorString");
  library.bind(d.device_count, "cuDeviceGetCount");
  library.bind(d.device_get, "cuDeviceGet");
  library.bind(d.device_name, "cuDeviceGetName");
  library.bind(d.device_attribute, "cuDeviceGetAttribute");
  library.bind(d.device_memory, "cuDeviceTotalMem_v2");
  library.bind(d.context_retain, "cuDevicePrimaryCtxRetain");
  library.bind(d.context_release, "cuDevicePrimaryCtxRelease_v2");
  library.bind(d.context_set, "cuCtxSetCurrent");
  bind_memory(library, d);
  bind_queue(library, d);
  bind_kernels(library, d);
  return d;
}

int initialise(const Driver& driver) {
  int version = 0;
  check(driver, driver.driver_version(&version), "cuDriverGetVersion");
  if (version < oldest_version)
    throw Error(ErrorCode::resource, fmt::format("NVIDIA driver ({})", driver.file),
                fmt::format("it is for CUDA {}.{}", version / 1000, version % 1000 / 10), remedy);
  const Result result = driver.init(0);
  if (result != success)
    throw Error(ErrorCode::resource, fmt::format("NVIDIA driver ({})", driver.file),
                fmt::format("cuInit failed: {}", words_of(driver, result)),
                "a GPU that this user may open (nvidia-smi lists it), or --device cpu");
  return version;
}

std::string words_of(const Driver& driver, Result result) {
  const char *name = nullptr, *text = nullptr;
  if (driver.error_name(result, &name) != success || name == nullptr) return fmt::format("error {}", result);
  if (driver.error_string(result, &text) != success || text == nullptr) return name;
  return fmt::format("{}: {}", name, text);
}

void check(const Driver& driver, Result result, const std::string& call) {
  if (result == success) return;
  throw Error(ErrorCode::resource, "CUDA driver", fmt::format("{} failed: {}", call, words_of(driver, result)));
}

std::string driver_version_name(int version) {
  // NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.03  Release Build …
  std::ifstream file("/proc/driver/nvidia/version");
  std::string word;
  while (file >> word) {
    const bool is_version =
        word.find('.') != std::string::npos && word.find_first_not_of("0123456789.") == std::string::npos;
    if (is_version) return word;
  }
  return fmt::format("CUDA {}.{}", version / 1000, version % 1000 / 10);
}

}  // namespace tandem::device::cuda
