// --device: what auto takes, what cuda refuses, and how much of a GPU's memory is planned.
#include "cli/device_choice.h"

#include "base/error.h"

namespace tandem::cli::device_choice_test {
namespace {

constexpr int64_t gib = int64_t{1} << 30;

// Properties and free memory, nothing that could run.
class PaperGpu final : public device::Gpu {
 public:
  explicit PaperGpu(int64_t free) : free_(free) {
    properties_.name = "NVIDIA H200";
    properties_.driver = "580.1";
    properties_.target = 90;
    properties_.memory = 100 * gib;
  }
  const device::GpuProperties& properties() const override { return properties_; }
  int64_t free_memory() override { return free_; }
  device::GpuMemory allocate(int64_t, const std::string&) override { return unexpected<device::GpuMemory>(); }
  device::PinnedMemory allocate_pinned(int64_t, const std::string&) override {
    return unexpected<device::PinnedMemory>();
  }
  void prepare(std::span<const device::KernelSpec>) override { unexpected<int>(); }
  device::Kernel load(const device::KernelSpec&) override { return unexpected<device::Kernel>(); }
  void launch_with(const device::Launch&, const void*, size_t) override { unexpected<int>(); }
  void upload(void*, const void*, int64_t) override { unexpected<int>(); }
  void download(void*, const void*, int64_t) override { unexpected<int>(); }
  void copy(void*, const void*, int64_t) override { unexpected<int>(); }
  void fill(void*, uint8_t, int64_t) override { unexpected<int>(); }
  void synchronize() override { unexpected<int>(); }
  void begin_capture() override { unexpected<int>(); }
  device::Graph end_capture() override { return unexpected<device::Graph>(); }
  void replay(device::Graph) override { unexpected<int>(); }
  int32_t mark() override { return unexpected<int32_t>(); }
  void wait_for(device::Gpu&, int32_t) override {}
  double milliseconds(int32_t, int32_t) override { return unexpected<double>(); }

 private:
  template <typename T>
  static T unexpected() {
    throw Error(ErrorCode::internal, "a test's GPU", "was used");
  }
  void free_device(void*) noexcept override {}
  void free_pinned(void*) noexcept override {}

  device::GpuProperties properties_;
  int64_t free_;
};

std::unique_ptr<device::Gpu> a_gpu() { return std::make_unique<PaperGpu>(99 * gib); }
std::unique_ptr<device::Gpu> no_gpu() { throw Error(ErrorCode::resource, "CUDA", "no libcuda.so.1 here"); }

Error refusal(const DeviceWish& wish, const OpenGpu& open = a_gpu) {
  try {
    choose_device(wish, open);
  } catch (const Error& error) {
    return error;
  }
  return {ErrorCode::internal, "", "nothing was refused"};
}

TEST(DeviceChoice, AutoTakesTheGpuThatIsThere) {
  const DeviceChoice chosen = choose_device({}, a_gpu);
  EXPECT_TRUE(chosen.on_gpu());
  EXPECT_TRUE(chosen.has_gpu);
  EXPECT_EQ(chosen.reason, "");
  const DeviceChoice cpu = choose_device({}, no_gpu);
  EXPECT_FALSE(cpu.on_gpu() || cpu.has_gpu);
  EXPECT_NE(cpu.reason.find("no libcuda.so.1 here"), std::string::npos) << cpu.reason;
  EXPECT_THROW(choose_device({},
                             []() -> std::unique_ptr<device::Gpu> {
                               throw Error(ErrorCode::internal, "our own mistake", "is not hidden");
                             }),
               Error);
}

TEST(DeviceChoice, CpuDoesNotLookForOne) {
  const DeviceChoice cpu = choose_device({.device = "cpu", .coded_weight = "w"}, []() -> std::unique_ptr<device::Gpu> {
    throw Error(ErrorCode::internal, "GPU", "was looked for");
  });
  EXPECT_FALSE(cpu.on_gpu() || cpu.has_gpu);
}

TEST(DeviceChoice, WhatAGpuDoesNotDoGoesToTheCpuOrIsAnError) {
  struct Case {
    DeviceWish wish;
    ErrorCode code;
    std::string where;
  };
  const std::vector<Case> cases = {{{.compute = "f32"}, ErrorCode::usage, "--compute"},
                                   {{.kv_cache_dtype = "f32"}, ErrorCode::usage, "--kv-cache-dtype"},
                                   {{.ranks = 2}, ErrorCode::usage, "--tensor-parallel-size"},
                                   {{.coded_weight = "q.trellis"}, ErrorCode::bad_file, "q.trellis"}};
  for (Case one : cases) {
    const DeviceChoice cpu = choose_device(one.wish, a_gpu);
    EXPECT_FALSE(cpu.on_gpu()) << one.where;
    EXPECT_TRUE(cpu.has_gpu);
    EXPECT_NE(cpu.reason.find(one.where), std::string::npos) << cpu.reason;
    EXPECT_EQ(cpu.reason.find("--device cuda"), std::string::npos) << cpu.reason;
    one.wish.device = "cuda";
    const Error error = refusal(one.wish);
    EXPECT_EQ(error.code(), one.code) << error.what();
    EXPECT_EQ(error.where(), one.where);
  }
  EXPECT_TRUE(choose_device({.device = "cuda", .compute = "bf16", .kv_cache_dtype = "fp8"}, a_gpu).on_gpu());
  EXPECT_EQ(refusal({.device = "cuda"}, no_gpu).code(), ErrorCode::resource);
  EXPECT_EQ(refusal({.device = "gpu"}).where(), "--device");
  EXPECT_EQ(refusal({.device = "cpu", .compute = "fp16"}).where(), "--compute");
  EXPECT_EQ(refusal({.kv_cache_dtype = "int3"}).code(), ErrorCode::usage);
}

TEST(DeviceChoice, Types) {
  using forward::CacheType, forward::Compute;
  EXPECT_EQ(compute_on(false, "auto"), Compute::f32);
  EXPECT_EQ(compute_on(true, "auto"), Compute::bf16);
  EXPECT_EQ(cache_type_on(false, "auto", Compute::f32), CacheType::f32);
  EXPECT_EQ(cache_type_on(true, "auto", Compute::bf16), CacheType::bf16);
  EXPECT_EQ(cache_type_on(true, "fp8", Compute::bf16), CacheType::fp8);
}

TEST(DeviceChoice, MemoryOfOthersIsNotPlanned) {
  PaperGpu alone(100 * gib), shared(40 * gib), full(12 * gib);
  EXPECT_EQ(gpu_memory_beside(alone, 0.5, 10 * gib), 40 * gib - gib / 2);
  EXPECT_EQ(gpu_memory_beside(alone, 1, 0), 100 * gib - gib / 2);
  EXPECT_EQ(gpu_memory_beside(shared, 0.75, 10 * gib), 5 * gib - gib / 2);
  try {
    gpu_memory_beside(full, 0.9375, 10 * gib);
    ADD_FAILURE() << "fits";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::does_not_fit);
    EXPECT_NE(error.found().find("90112MiB of 102400MiB in use"), std::string::npos) << error.what();
  }
  EXPECT_THROW(gpu_memory_beside(alone, 0, 1), Error);
  EXPECT_THROW(gpu_memory_beside(alone, 1.5, 1), Error);
}

}  // namespace
}  // namespace tandem::cli::device_choice_test
