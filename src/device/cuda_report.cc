// Asks each library and each GPU by itself.
#include "device/cuda_report.h"

#include <fmt/format.h>

#include "base/error.h"
#include "device/cuda_compiler.h"
#include "device/shared_library.h"

namespace tandem::device {
namespace {

GpuReport gpu_report(const cuda::Driver& driver, int ordinal) {
  GpuReport report;
  report.ordinal = ordinal;
  cuda::Device device = 0;
  cuda::Context context = nullptr;
  int major = 0, minor = 0;
  size_t memory = 0, available = 0, total = 0;
  char name[256] = {};
  try {
    check(driver, driver.device_get(&device, ordinal), "cuDeviceGet");
    check(driver, driver.device_name(name, sizeof name - 1, device), "cuDeviceGetName");
    report.name = name;
    check(driver, driver.device_attribute(&major, cuda::attribute_major, device), "cuDeviceGetAttribute");
    check(driver, driver.device_attribute(&minor, cuda::attribute_minor, device), "cuDeviceGetAttribute");
    check(driver, driver.device_attribute(&report.multiprocessors, cuda::attribute_multiprocessors, device),
          "cuDeviceGetAttribute");
    check(driver, driver.device_memory(&memory, device), "cuDeviceTotalMem");
    report.target = 10 * major + minor;
    report.memory = static_cast<int64_t>(memory);
    if (report.target < 90) {
      report.problem = fmt::format("compute capability {}.{}; expected 9.0 (Hopper) or above", major, minor);
      return report;
    }
    check(driver, driver.context_retain(&context, device), "cuDevicePrimaryCtxRetain");
    check(driver, driver.context_set(context), "cuCtxSetCurrent");
    check(driver, driver.memory_info(&available, &total), "cuMemGetInfo");
    report.free_memory = static_cast<int64_t>(available);
  } catch (const Error& e) {
    report.problem = e.what();
  }
  if (context != nullptr) driver.context_release(device);
  return report;
}

LibraryReport nccl_report() {
  LibraryReport report;
  try {
    const SharedLibrary library(nvidia_library_files("libnccl.so", {2}), "NCCL",
                                "libnccl.so.2 for two GPUs: the package libnccl2, or \"pip install nvidia-nccl-cu13\"");
    int (*get_version)(int* version) = nullptr;
    library.bind(get_version, "ncclGetVersion");
    report.file = library.file();
    int version = 0;
    if (get_version(&version) == 0)  // 22707: 2.27.7
      report.version = fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
  } catch (const Error& e) {
    report.problem = e.what();
  }
  return report;
}

}  // namespace

std::vector<GpuReport> gpus_of(const cuda::Driver& driver) {
  int count = 0;
  if (driver.device_count(&count) != cuda::success) return {};
  std::vector<GpuReport> gpus;
  for (int i = 0; i < count; ++i) gpus.push_back(gpu_report(driver, i));
  return gpus;
}

CudaReport cuda_report(const std::string& nvrtc) {
  CudaReport report;
  int driver_major = 99;
  try {
    const cuda::Driver driver = cuda::load_driver();
    report.driver.file = driver.file;
    const int version = cuda::initialise(driver);
    report.driver.version = cuda::driver_version_name(version);
    driver_major = version / 1000;
    report.gpus = gpus_of(driver);
  } catch (const Error& e) {
    report.driver.problem = e.what();
  }
  try {
    const auto compiler = open_nvrtc(nvrtc, driver_major);
    report.nvrtc.file = compiler->file();
    report.nvrtc.version = compiler->version();
  } catch (const Error& e) {
    report.nvrtc.problem = e.what();
  }
  report.nccl = nccl_report();
  return report;
}

}  // namespace tandem::device
