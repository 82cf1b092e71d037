// A Gpu that remembers the launches that go through it, so that each can be repeated and timed by itself: what the
// forward pass queues is measured as it is, with no second description of it.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "device/gpu.h"

namespace tandem::bench {

struct TracedLaunch {
  device::Launch launch;
  device::KernelSpec kernel;
  std::vector<std::byte> args;

  template <typename Args>
  const Args& as() const {
    return *reinterpret_cast<const Args*>(args.data());
  }
};

class TracedGpu : public device::Gpu {
 public:
  explicit TracedGpu(device::Gpu& gpu) : gpu_(gpu) {}

  // From here on launches are remembered in place of queued; take() ends that.
  void trace() { tracing_ = true; }
  std::vector<TracedLaunch> take();
  void repeat(const TracedLaunch& one) { gpu_.launch_with(one.launch, one.args.data(), one.args.size()); }

  const device::GpuProperties& properties() const override { return gpu_.properties(); }
  int64_t free_memory() override { return gpu_.free_memory(); }
  device::GpuMemory allocate(int64_t bytes, const std::string& what) override { return gpu_.allocate(bytes, what); }
  device::PinnedMemory allocate_pinned(int64_t bytes, const std::string& what) override {
    return gpu_.allocate_pinned(bytes, what);
  }
  void prepare(std::span<const device::KernelSpec> specs) override { gpu_.prepare(specs); }
  device::Kernel load(const device::KernelSpec& spec) override;
  void launch_with(const device::Launch& launch, const void* args, size_t bytes) override;
  void upload(void* to, const void* from, int64_t bytes) override { gpu_.upload(to, from, bytes); }
  void download(void* to, const void* from, int64_t bytes) override { gpu_.download(to, from, bytes); }
  void copy(void* to, const void* from, int64_t bytes) override { gpu_.copy(to, from, bytes); }
  void fill(void* to, uint8_t value, int64_t bytes) override { gpu_.fill(to, value, bytes); }
  void synchronize() override { gpu_.synchronize(); }
  void begin_capture() override { gpu_.begin_capture(); }
  device::Graph end_capture() override { return gpu_.end_capture(); }
  void replay(device::Graph graph) override { gpu_.replay(graph); }
  int32_t mark() override { return gpu_.mark(); }
  void wait_for(device::Gpu& other, int32_t of_other) override { gpu_.wait_for(other, of_other); }
  double milliseconds(int32_t from, int32_t to) override { return gpu_.milliseconds(from, to); }

 private:
  // Memory belongs to the Gpu that gave it.
  void free_device(void*) noexcept override {}
  void free_pinned(void*) noexcept override {}

  device::Gpu& gpu_;
  bool tracing_ = false;
  std::vector<device::KernelSpec> specs_;  // by Kernel::index
  std::vector<TracedLaunch> launches_;
};

}  // namespace tandem::bench
