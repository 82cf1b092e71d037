// A GPU in front of gpu_under_test() that counts what is allocated and can break as real ones do.
#pragma once

#include <atomic>
#include <string>

#include "base/error.h"
#include "device/test_gpu.h"

namespace tandem::device {

class WatchedGpu final : public Gpu {
 public:
  std::atomic<bool> broken{false};  // every call fails from now on, as after an asynchronous error
  int64_t device_bytes = 0;         // allocated so far

  const GpuProperties& properties() const override { return gpu_.properties(); }
  int64_t free_memory() override { return gpu_.free_memory(); }
  GpuMemory allocate(int64_t bytes, const std::string& what) override {
    check();
    ++allocations_;
    device_bytes += bytes;
    return gpu_.allocate(bytes, what);
  }
  PinnedMemory allocate_pinned(int64_t bytes, const std::string& what) override {
    check();
    ++allocations_;
    return gpu_.allocate_pinned(bytes, what);
  }
  void prepare(std::span<const KernelSpec> specs) override { gpu_.prepare(specs); }
  Kernel load(const KernelSpec& spec) override {
    check();
    ++kernels_loaded_;
    return gpu_.load(spec);
  }
  void launch_with(const Launch& launch, const void* args, size_t bytes) override {
    check();
    gpu_.launch_with(launch, args, bytes);
  }
  void upload(void* to, const void* from, int64_t bytes) override {
    check();
    gpu_.upload(to, from, bytes);
  }
  void download(void* to, const void* from, int64_t bytes) override {
    check();
    gpu_.download(to, from, bytes);
  }
  void copy(void* to, const void* from, int64_t bytes) override {
    check();
    gpu_.copy(to, from, bytes);
  }
  void fill(void* to, uint8_t value, int64_t bytes) override {
    check();
    gpu_.fill(to, value, bytes);
  }
  void synchronize() override {
    check();
    gpu_.synchronize();
  }
  void begin_capture() override { gpu_.begin_capture(); }
  Graph end_capture() override { return gpu_.end_capture(); }
  void replay(Graph graph) override {
    check();
    gpu_.replay(graph);
  }
  int32_t mark() override { return gpu_.mark(); }
  double milliseconds(int32_t from, int32_t to) override { return gpu_.milliseconds(from, to); }
  void wait_for(Gpu& other, int32_t mark) override { gpu_.wait_for(other, mark); }

 private:
  void check() const {
    if (broken) throw Error(ErrorCode::resource, "cuStreamSynchronize", "CUDA_ERROR_ILLEGAL_ADDRESS");
  }
  // Memory belongs to the GPU behind this one.
  void free_device(void*) noexcept override {}
  void free_pinned(void*) noexcept override {}

  Gpu& gpu_ = gpu_under_test();
};

}  // namespace tandem::device
