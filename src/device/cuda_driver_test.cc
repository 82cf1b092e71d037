// The driver's table: what it refuses, and in which words.
#include "device/cuda_driver.h"

#include "base/error.h"
#include "device/cuda_report.h"
#include "device/shared_library.h"
#include "device/test_fake_driver.h"

namespace tandem::device::cuda_driver_test {
namespace {

template <typename Call>
Error error_of(const Call& call) {
  try {
    call();
  } catch (const Error& e) {
    return e;
  }
  ADD_FAILURE() << "nothing was thrown";
  return {ErrorCode::internal, "", ""};
}

bool says(const Error& error, const std::string& words) {
  return std::string(error.what()).find(words) != std::string::npos;
}

TEST(CudaDriver, NoDriverSaysWhatWasLookedForAndWhatToDo) {
  const Error error = error_of([] { cuda::load_driver("libcuda-of-nobody.so.1"); });
  EXPECT_EQ(error.code(), ErrorCode::resource);
  EXPECT_TRUE(says(error, "libcuda-of-nobody.so.1")) << error.what();
  EXPECT_TRUE(says(error, "--device cpu")) << error.what();
}

TEST(CudaDriver, ALibraryWithoutAFunctionIsNamedWithIt) {
  const Error error = error_of([] { cuda::load_driver("libm.so.6"); });  // a library that every system has
  EXPECT_EQ(error.code(), ErrorCode::resource);
  EXPECT_TRUE(says(error, "libm.so.6 has no function cuInit")) << error.what();
}

TEST(CudaDriver, OlderThanItsOldestVersion) {
  const cuda::Driver driver = test::fake_driver();
  EXPECT_EQ(cuda::initialise(driver), 13000);
  test::fake().version = 12000;
  EXPECT_EQ(cuda::initialise(driver), 12000);
  test::fake().version = 11080;
  const Error error = error_of([&] { cuda::initialise(driver); });
  EXPECT_EQ(error.code(), ErrorCode::resource);
  EXPECT_TRUE(says(error, "CUDA 11.8") && says(error, "525 or newer")) << error.what();
}

TEST(CudaDriver, NoDeviceGivesTheDriversWords) {
  const cuda::Driver driver = test::fake_driver();
  test::fake().fail["init"] = 100;
  EXPECT_TRUE(says(error_of([&] { cuda::initialise(driver); }), "CUDA_ERROR_FAKE: as the test wanted"));
}

TEST(SharedLibrary, TakesTheFirstThatOpens) {
  const SharedLibrary library({"libnobody.so.9", "libm.so.6", "libc.so.6"}, "mathematics", "one");
  EXPECT_EQ(library.file(), "libm.so.6");
  double (*cosine)(double) = nullptr;
  library.bind(cosine, "cos");
  EXPECT_EQ(cosine(0), 1);
  library.bind_optional(cosine, "no_such_function");
  EXPECT_EQ(cosine, nullptr);
}

TEST(SharedLibrary, VersionsInTheOrderOfPreference) {
  const auto files = nvidia_library_files("libnobody.so", {13, 12});
  ASSERT_EQ(files.size(), 2u) << "no such file lies anywhere, which leaves the dynamic linker's places";
  EXPECT_EQ(files[0], "libnobody.so.13");
  EXPECT_EQ(files[1], "libnobody.so.12");
}

TEST(CudaReport, GpusThatCanAndCannotBeUsed) {
  const cuda::Driver driver = test::fake_driver();
  test::fake().devices = 2;
  auto gpus = gpus_of(driver);
  ASSERT_EQ(gpus.size(), 2u);
  EXPECT_EQ(gpus[1].name, "Fake 9000");
  EXPECT_EQ(gpus[1].target, 90);
  EXPECT_EQ(gpus[1].free_memory, int64_t{1} << 30);
  EXPECT_EQ(gpus[1].problem, "");
  EXPECT_EQ(test::fake().contexts, 0) << "contexts that asking left behind";
  test::fake().capability_major = 8;
  gpus = gpus_of(driver);
  EXPECT_NE(gpus[0].problem.find("compute capability 8.0"), std::string::npos);
  test::fake().capability_major = 9;
  test::fake().fail["context_retain"] = 2;
  gpus = gpus_of(driver);
  EXPECT_NE(gpus[0].problem.find("cuDevicePrimaryCtxRetain"), std::string::npos);
  EXPECT_EQ(gpus[0].free_memory, -1);
}

}  // namespace
}  // namespace tandem::device::cuda_driver_test
