// The program of `./dev gpu-test`: every *_gpu_test.cc on GPU 0. Flags beside GoogleTest's: --cache-dir DIR (compiled
// kernels), --nvrtc FILE. With TANDEM_SMALL_GPU_TESTS set, sizes are the emulator's. Files of the source tree are found
// from $TANDEM_TEST_SOURCE_DIR, else from the folder it was started in.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string_view>

#include "base/error.h"
#include "device/cuda_gpu.h"
#include "device/test_gpu.h"

namespace tandem::device {
namespace {

CudaOptions& options() {
  static CudaOptions given;
  return given;
}

std::unique_ptr<Gpu>& opened(size_t number = 0) {
  static std::unique_ptr<Gpu> gpus[2];
  return gpus[number];
}

int run(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; i += 2) {
    const std::string_view name = argv[i];
    if (i + 1 == argc || (name != "--cache-dir" && name != "--nvrtc")) {
      std::fprintf(stderr, "gpu_test: \"%s\": expected --cache-dir DIR or --nvrtc FILE\n", argv[i]);
      return 2;
    }
    if (name == "--cache-dir") options().cache_dir = std::filesystem::absolute(argv[i + 1]);
    if (name == "--nvrtc") options().nvrtc = argv[i + 1];
  }
  if (const char* source = std::getenv("TANDEM_TEST_SOURCE_DIR"); source != nullptr && chdir(source) != 0) {
    std::perror(source);
    return 3;
  }
  if (testing::GTEST_FLAG(list_tests)) return RUN_ALL_TESTS();
  const GpuProperties& properties = gpu_under_test().properties();
  std::printf("%s, driver %s, %d multiprocessors, %lld bytes free\n", properties.name.c_str(),
              properties.driver.c_str(), properties.multiprocessors,
              static_cast<long long>(gpu_under_test().free_memory()));
  const int status = RUN_ALL_TESTS();
  for (const size_t number : {1, 0}) opened(number).reset();  // before the driver's own end
  return status;
}

}  // namespace

Gpu& gpu_under_test() {
  if (opened() == nullptr) opened() = open_cuda_gpu(0, options());
  return *opened();
}

Gpu& second_gpu_under_test() {
  if (opened(1) == nullptr) opened(1) = open_cuda_gpu(0, options());
  return *opened(1);
}

// Under compute-sanitizer a real GPU is as slow as the emulator, and takes its sizes.
bool gpu_is_emulated() { return std::getenv("TANDEM_SMALL_GPU_TESTS") != nullptr; }

}  // namespace tandem::device

int main(int argc, char** argv) {
  try {
    return tandem::device::run(argc, argv);
  } catch (const tandem::Error& e) {
    std::fprintf(stderr, "gpu_test: %s\n", e.what());
    return tandem::exit_status(e.code());
  } catch (const std::exception& e) {
    std::fprintf(stderr, "gpu_test: %s\n", e.what());
    return 70;
  }
}
