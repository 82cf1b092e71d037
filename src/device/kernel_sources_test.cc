// The embedded text against the tree's.
#include "device/kernel_sources.h"

#include <algorithm>
#include <fstream>
#include <iterator>

#include "base/error.h"

namespace tandem::device::kernel_sources_test {
namespace {

// The build embeds what lies in the source tree now.
TEST(KernelSources, AreTheFilesOfTheTree) {
  ASSERT_FALSE(kernel_files().empty());
  for (const KernelFile& file : kernel_files()) {
    std::ifstream in(std::string(TANDEM_SOURCE_DIR "/src/") + std::string(file.path), std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    EXPECT_EQ(file.text, text) << file.path;
  }
}

TEST(KernelSources, EverythingThatASourceIncludesIsThere) {
  for (const auto& source : kernel_sources()) {
    const auto files = with_includes(source);
    EXPECT_EQ(files[0].path, source);
    const auto includes = [&](std::string_view path) {
      return std::any_of(files.begin(), files.end(), [&](const KernelFile& file) { return file.path == path; });
    };
    EXPECT_TRUE(includes("device/kernel.h") && includes("device/kernel_cuda.h") && includes("device/kernel_types.h"))
        << source;
  }
  EXPECT_THROW(with_includes("ops/no/such.cu"), Error);
}

TEST(KernelSources, KernelsByName) {
  const auto kernels = kernels_of("ops/norm/norm.cu");
  ASSERT_EQ(kernels.size(), 1u);
  EXPECT_EQ(kernels[0].name, "norm_rows");
  EXPECT_EQ(kernels[0].max_threads, "256");
  for (const auto& source : kernel_sources()) EXPECT_FALSE(kernels_of(source).empty()) << source;
}

}  // namespace
}  // namespace tandem::device::kernel_sources_test
