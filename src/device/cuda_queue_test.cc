// CudaGpu over a driver that keeps books: what it asks for, what it refuses, and what it gives back.
#include <filesystem>
#include <functional>

#include "base/error.h"
#include "device/cuda_gpu.h"
#include "device/test_fake_driver.h"
#include "device/test_temporary_folder.h"

namespace tandem::device::cuda_queue_test {
namespace {

using test::fake;

class CudaQueue : public testing::Test {
 protected:
  std::unique_ptr<Gpu> open(int ordinal = 0) {
    return make_cuda_gpu(driver_,
                         std::make_unique<KernelCache>(folder_.path(), std::vector<std::filesystem::path>{}, compiler_),
                         ordinal);
  }
  // What the call throws.
  template <typename Call>
  static Error error_of(const Call& call) {
    try {
      call();
    } catch (const Error& e) {
      return e;
    }
    ADD_FAILURE() << "nothing was thrown";
    return {ErrorCode::internal, "", ""};
  }

  cuda::Driver driver_ = test::fake_driver();
  test::TemporaryFolder folder_;
  std::shared_ptr<test::FakeCompiler> compiler_ = std::make_shared<test::FakeCompiler>();
  const KernelSpec spec_{"ops/norm/norm.cu", "norm_rows", {"A=1"}};
  struct Arguments {
    char text[test::fake_argument_bytes];
  };
};

TEST_F(CudaQueue, PropertiesOfTheDevice) {
  const auto gpu = open();
  EXPECT_EQ(gpu->properties().name, "Fake 9000");
  EXPECT_EQ(gpu->properties().target, 90);
  EXPECT_EQ(gpu->properties().multiprocessors, 132);
  EXPECT_EQ(gpu->properties().shared_bytes, 227 << 10);
  EXPECT_EQ(gpu->free_memory(), int64_t{1} << 30);
}

TEST_F(CudaQueue, NoSuchGpuAndTooOldAGpu) {
  EXPECT_EQ(error_of([&] { open(1); }).where(), "GPU 1");
  fake().capability_major = 8;
  const Error error = error_of([&] { open(); });
  EXPECT_EQ(error.code(), ErrorCode::resource);
  EXPECT_EQ(error.found(), "compute capability 8.0");
  EXPECT_EQ(fake().contexts, 0);
}

TEST_F(CudaQueue, AFailureWhileOpeningLeavesNothing) {
  fake().fail["event_create"] = test::invalid_value;
  EXPECT_THROW(open(), Error);
  EXPECT_EQ(fake().contexts + fake().streams + fake().events, 0);
}

TEST_F(CudaQueue, EverythingIsGivenBack) {
  {
    const auto gpu = open();
    const GpuMemory memory = gpu->allocate(100, "memory");
    const PinnedMemory pinned = gpu->allocate_pinned(100, "pinned");
    gpu->load(spec_);
    gpu->begin_capture();
    gpu->replay(gpu->end_capture());
    EXPECT_EQ(fake().used, 100u);
    EXPECT_EQ(gpu->allocations(), 2);
    EXPECT_EQ(gpu->kernels_loaded(), 1);
  }
  EXPECT_EQ(fake().used, 0u);
  EXPECT_EQ(fake().contexts + fake().streams + fake().events + fake().modules + fake().host_blocks + fake().graphs, 0);
}

TEST_F(CudaQueue, MemoryThatIsNotThere) {
  const auto gpu = open();
  Error error = error_of([&] { gpu->allocate(int64_t{2} << 30, "the pool"); });
  EXPECT_EQ(error.code(), ErrorCode::does_not_fit);
  EXPECT_EQ(error.where(), "the pool");
  EXPECT_NE(error.expected().find(std::to_string(1 << 30)), std::string::npos) << error.what();
  error = error_of([&] { gpu->allocate_pinned(int64_t{2} << 30, "the rings"); });
  EXPECT_EQ(error.code(), ErrorCode::does_not_fit);
  EXPECT_EQ(gpu->allocate(10, "a little").size(), 10) << "the next one is served";
  EXPECT_EQ(gpu->allocations(), 1);
}

TEST_F(CudaQueue, ALaunchHandsOverItsStruct) {
  const auto gpu = open();
  const Kernel kernel = gpu->load(spec_);
  gpu->launch({.kernel = kernel, .grid = {3, 2, 1}, .threads = 64, .shared_bytes = 512}, Arguments{"fifteen letters"});
  EXPECT_EQ(fake().launches, std::vector<std::string>{"norm_rows 3,2,1 64 512"});
  EXPECT_STREQ(fake().last_arguments.c_str(), "fifteen letters");
}

TEST_F(CudaQueue, LaunchesThatCannotBe) {
  const auto gpu = open();
  const Kernel kernel = gpu->load(spec_);
  const auto code_of = [&](const Launch& launch) { return error_of([&] { gpu->launch(launch, Arguments{}); }).code(); };
  EXPECT_EQ(code_of({.kernel = kernel, .threads = 48}), ErrorCode::internal);
  EXPECT_EQ(code_of({.kernel = kernel, .threads = 288}), ErrorCode::internal);
  EXPECT_EQ(code_of({.kernel = kernel, .shared_bytes = 227 << 10}), ErrorCode::internal) << "1 KiB of it is static";
  EXPECT_EQ(error_of([&] { gpu->launch({.kernel = kernel}, 'x'); }).code(), ErrorCode::internal);
  EXPECT_TRUE(fake().launches.empty());
  fake().fail["launch"] = test::invalid_value;
  const Error error = error_of([&] { gpu->launch({.kernel = kernel}, Arguments{}); });
  EXPECT_EQ(error.code(), ErrorCode::resource);
  EXPECT_NE(std::string(error.what()).find("norm_rows of ops/norm/norm.cu"), std::string::npos) << error.what();
  fake().fail.clear();
  EXPECT_NO_THROW(gpu->launch({.kernel = kernel}, Arguments{})) << "a refused launch is not the end";
}

TEST_F(CudaQueue, AnAsynchronousErrorIsTheEnd) {
  const auto gpu = open();
  const Kernel kernel = gpu->load(spec_);
  GpuMemory memory = gpu->allocate(16, "memory");
  fake().device_is_broken = true;
  EXPECT_NO_THROW(gpu->launch({.kernel = kernel}, Arguments{})) << "nobody knows yet";
  Error error = error_of([&] { gpu->synchronize(); });
  EXPECT_EQ(error.code(), ErrorCode::resource);
  EXPECT_NE(std::string(error.what()).find("CUDA_ERROR_ILLEGAL_ADDRESS"), std::string::npos) << error.what();
  fake().device_is_broken = false;  // even if the driver forgot
  char host[16] = {};
  for (const auto& call : std::vector<std::function<void()>>{
           [&] { gpu->launch({.kernel = kernel}, Arguments{}); }, [&] { gpu->synchronize(); },
           [&] { gpu->upload(memory.data(), host, 16); }, [&] { gpu->download(host, memory.data(), 16); },
           [&] { gpu->copy(memory.data(), memory.data(), 8); }, [&] { gpu->fill(memory.data(), 0, 8); },
           [&] { gpu->allocate(1, "more"); }, [&] { gpu->load(spec_); }, [&] { gpu->mark(); },
           [&] { gpu->begin_capture(); }}) {
    error = error_of(call);
    EXPECT_NE(std::string(error.what()).find("an earlier error"), std::string::npos) << error.what();
  }
}

TEST_F(CudaQueue, MarksAreUsedAgainInTurn) {
  const auto gpu = open();
  const int32_t first = gpu->mark(), second = gpu->mark();
  EXPECT_NE(first, second);
  EXPECT_EQ(gpu->milliseconds(first, second), 1.5);
  const int created = fake().events;
  for (int i = 2; i < created; ++i) gpu->mark();
  EXPECT_EQ(gpu->mark(), first);
  EXPECT_EQ(fake().events, created);
  gpu->begin_capture();
  EXPECT_THROW(gpu->mark(), Error);
}

TEST_F(CudaQueue, OneModuleForAllKernelsOfASource) {
  const auto gpu = open();
  gpu->prepare(std::vector<KernelSpec>{spec_, {spec_.source, "another", spec_.defines}});
  EXPECT_EQ(compiler_->compilations, 1);
  gpu->load(spec_);
  gpu->load({spec_.source, "another", spec_.defines});
  EXPECT_EQ(fake().modules, 1);
  gpu->load({spec_.source, "another", {"A=2"}});
  EXPECT_EQ(fake().modules, 2) << "other defines are other machine code";
  EXPECT_EQ(compiler_->compilations, 2);
}

TEST_F(CudaQueue, ASourceThatDoesNotCompile) {
  const auto gpu = open();
  compiler_->fails = true;
  const Error error = error_of([&] { gpu->load(spec_); });
  EXPECT_EQ(error.where(), "ops/norm/norm.cu");
  EXPECT_NE(std::string(error.what()).find("error: as the test wanted"), std::string::npos) << error.what();
  EXPECT_EQ(error_of([&] { gpu->prepare(std::vector<KernelSpec>{spec_}); }).where(), "ops/norm/norm.cu");
}

TEST_F(CudaQueue, KernelsOfTwoCompilersDoNotMix) {
  {  // entries of two versions, and no compiler
    const KernelCache first(folder_.path(), {}, compiler_);
    auto older_too = std::make_shared<test::FakeCompiler>();
    older_too->version_ = "12.9";
    const KernelCache second(folder_.path(), {}, older_too);
    first.get({spec_.source, "sm_90a", {"A=1"}});
    second.get({spec_.source, "sm_90a", {"A=2"}});
  }
  compiler_ = nullptr;
  const auto gpu = open();
  gpu->load({spec_.source, "norm_rows", {"A=1"}});
  EXPECT_NE(std::string(error_of([&] {
                          gpu->load({spec_.source, "norm_rows", {"A=2"}});
                        }).what())
                .find("12.9"),
            std::string::npos);
}

TEST_F(CudaQueue, WaitsForAMarkOfAnotherQueue) {
  const auto first = open(), second = open();
  const int32_t mark = first->mark();
  fake().awaited = nullptr;
  second->wait_for(*first, mark);
  EXPECT_NE(fake().awaited, nullptr);
  second->begin_capture();
  EXPECT_EQ(error_of([&] { second->wait_for(*first, mark); }).code(), ErrorCode::internal);
  second->end_capture();
  fake().fail["stream_wait_event"] = test::invalid_value;
  EXPECT_EQ(error_of([&] { second->wait_for(*first, mark); }).code(), ErrorCode::resource);
}

}  // namespace
}  // namespace tandem::device::cuda_queue_test
