// What only a real driver can show: memory, order of the queue, graphs, marks, launches that are refused. The
// emulator's kernels come from the build, so these use one of ours.
#include <array>
#include <numeric>

#include "base/error.h"
#include "device/kernel_dimensions.h"
#include "device/kernel_sources.h"
#include "device/test_gpu.h"
#include "ops/norm/norm_cuda.h"

namespace tandem::device {
namespace {

TEST(RealGpu, CopiesAndFills) {
  Gpu& gpu = gpu_under_test();
  std::vector<int32_t> values(100000);
  std::iota(values.begin(), values.end(), 7);
  const auto bytes = static_cast<int64_t>(values.size() * sizeof(int32_t));
  const GpuMemory first = on_gpu(values), second = gpu.allocate(bytes, "a copy");
  EXPECT_EQ(reinterpret_cast<uintptr_t>(first.data()) % 256, 0u);
  gpu.fill(second.data(), 0xab, bytes);
  gpu.copy(second.data(), first.data(), bytes / 2);
  std::vector<int32_t> expected = values;
  std::fill(expected.begin() + static_cast<int64_t>(expected.size() / 2), expected.end(),
            static_cast<int32_t>(0xabababab));
  EXPECT_EQ(from_gpu<int32_t>(second.data(), static_cast<int64_t>(values.size())), expected);
}

TEST(RealGpu, PinnedMemoryGoesBothWays) {
  Gpu& gpu = gpu_under_test();
  const PinnedMemory pinned = gpu.allocate_pinned(4096, "pinned");
  const GpuMemory memory = gpu.allocate(4096, "memory");
  std::fill_n(pinned.as<uint8_t>(), 4096, uint8_t{0x5a});
  gpu.upload(memory.data(), pinned.data(), 4096);
  gpu.synchronize();
  std::fill_n(pinned.as<uint8_t>(), 4096, uint8_t{0});
  gpu.download(pinned.data(), memory.data(), 4096);
  gpu.synchronize();
  EXPECT_EQ(std::count(pinned.as<uint8_t>(), pinned.as<uint8_t>() + 4096, uint8_t{0x5a}), 4096);
}

TEST(RealGpu, AGraphRepeatsWhatWasRecordedOnNewData) {
  Gpu& gpu = gpu_under_test();
  const GpuMemory from = on_gpu(std::vector<int32_t>{1, 2, 3}), to = on_gpu(std::vector<int32_t>{0, 0, 0});
  gpu.begin_capture();
  gpu.copy(to.data(), from.data(), 12);
  const Graph graph = gpu.end_capture();
  EXPECT_EQ(from_gpu<int32_t>(to.data(), 3), (std::vector<int32_t>{0, 0, 0})) << "nothing runs while it is recorded";
  const std::vector<int32_t> values = {4, 5, 6};
  gpu.upload(from.data(), values.data(), 12);
  gpu.replay(graph);
  EXPECT_EQ(from_gpu<int32_t>(to.data(), 3), values);
}

TEST(RealGpu, MarksMeasure) {
  Gpu& gpu = gpu_under_test();
  const int64_t bytes = int64_t{1} << 30;
  const GpuMemory memory = gpu.allocate(bytes, "a gigabyte");
  gpu.fill(memory.data(), 1, bytes);
  const int32_t from = gpu.mark();
  gpu.fill(memory.data(), 2, bytes);
  const int32_t to = gpu.mark();
  gpu.synchronize();
  EXPECT_GT(gpu.milliseconds(from, to), 0.01);
}

TEST(RealGpu, MemoryThatIsNotThereIsAnErrorAndNothingIsLost) {
  Gpu& gpu = gpu_under_test();
  try {
    const GpuMemory memory = gpu.allocate(gpu.properties().memory + (int64_t{1} << 30), "too much");
    FAIL() << "it was given";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::does_not_fit) << e.what();
    EXPECT_EQ(e.where(), "too much");
  }
  EXPECT_GT(gpu.allocate(4096, "a little").size(), 0);
}

TEST(RealGpu, LaunchesThatCannotBeAreRefused) {
  Gpu& gpu = gpu_under_test();
  const Kernel kernel = gpu.load({"ops/norm/norm.cu", "norm_rows", model_defines({})});
  ops::NormArgs args{};
  EXPECT_THROW(gpu.launch({.kernel = kernel, .threads = 512}, args), Error);
  EXPECT_THROW(gpu.launch({.kernel = kernel, .threads = 48}, args), Error);
  EXPECT_THROW(gpu.launch({.kernel = kernel, .threads = 32, .shared_bytes = int64_t{1} << 20}, args), Error);
  EXPECT_THROW(gpu.launch({.kernel = kernel, .threads = 32}, std::array<char, 3>{}), Error)
      << "arguments of another size (drivers since CUDA 12.4 tell)";
}

// Every kernel of every source compiles for this GPU and is found by its name.
TEST(RealGpu, EveryKernelLoads) {
  Gpu& gpu = gpu_under_test();
  std::vector<KernelSpec> specs;
  for (const auto& source : kernel_sources())
    for (const auto& kernel : kernels_of(source)) specs.push_back({source, kernel.name, model_defines({})});
  gpu.prepare(specs);
  for (const auto& spec : specs) EXPECT_NO_THROW(gpu.load(spec)) << spec.name << " of " << spec.source;
}

}  // namespace
}  // namespace tandem::device
