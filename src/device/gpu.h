// One GPU as the rest of the program sees it: memory, kernels, one queue of work in order, graphs. Implemented by the
// CUDA driver (cuda_gpu.h) and, in tests, by an emulator that runs kernels on the CPU (tests/emulator/).
//
// Errors: Error(resource) for what the driver refuses, with the call and the driver's own words; Error(does_not_fit)
// for memory. An asynchronous error (a kernel that read where it must not) is thrown by the next call that notices it,
// and by every call after that.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "device/kernel_types.h"

namespace tandem::device {

// A kernel by source file (its path under src/) and name, compiled with the model's dimensions.
struct KernelSpec {
  std::string source;                // "ops/linear/linear.cu"
  std::string name;                  // "linear_rows"
  std::vector<std::string> defines;  // "TANDEM_KDA_DIM=128", …: model_defines()
  // Blocks that are to share a multiprocessor need more of its memory than the driver would give to one: all that there
  // is, at the cost of the first cache.
  bool most_shared_memory = false;
};

// A loaded kernel; belongs to the Gpu that loaded it.
struct Kernel {
  int32_t index = -1;
};

struct Launch {
  Kernel kernel;
  uint32_t grid[3] = {1, 1, 1};
  uint32_t threads = 32;     // of a block: whole warps
  int64_t shared_bytes = 0;  // dynamic shared memory of a block
};

// A recorded sequence of launches and copies.
struct Graph {
  int32_t index = -1;
};

struct GpuProperties {
  std::string name;    // "NVIDIA H200"
  std::string driver;  // "580.159"
  int32_t target = 0;  // compute capability: 90
  int32_t multiprocessors = 0;
  int64_t memory = 0;        // bytes
  int64_t shared_bytes = 0;  // dynamic shared memory that a block may ask for
};

class Gpu;

enum class MemoryKind {
  device,
  pinned,  // host memory that the device copies from and to without a detour
};

// Memory that a Gpu gave; freed with the object, which must not outlive its Gpu.
template <MemoryKind Kind>
class OwnedMemory {
 public:
  OwnedMemory() = default;
  OwnedMemory(Gpu& gpu, void* data, int64_t size) : gpu_(&gpu), data_(data), size_(size) {}
  ~OwnedMemory();
  OwnedMemory(OwnedMemory&& other) noexcept;
  OwnedMemory& operator=(OwnedMemory&& other) noexcept;

  std::byte* data() const { return static_cast<std::byte*>(data_); }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  int64_t size() const { return size_; }

 private:
  Gpu* gpu_ = nullptr;
  void* data_ = nullptr;
  int64_t size_ = 0;
};
using GpuMemory = OwnedMemory<MemoryKind::device>;
using PinnedMemory = OwnedMemory<MemoryKind::pinned>;

class Gpu {
 public:
  virtual ~Gpu() = default;
  virtual const GpuProperties& properties() const = 0;
  virtual int64_t free_memory() = 0;

  // `what` names the memory in errors. At least 256-byte aligned. Contents are undefined.
  virtual GpuMemory allocate(int64_t bytes, const std::string& what) = 0;
  virtual PinnedMemory allocate_pinned(int64_t bytes, const std::string& what) = 0;

  // Compiles what is not in the kernel cache yet, several sources at a time; load() then finds it.
  virtual void prepare(std::span<const KernelSpec> specs) = 0;
  virtual Kernel load(const KernelSpec& spec) = 0;

  // Everything below goes into one queue and runs in its order. `args` is the kernel's argument struct; it is copied.
  template <typename Args>
  void launch(const Launch& launch, const Args& args) {
    launch_with(launch, &args, sizeof args);
  }
  virtual void launch_with(const Launch& launch, const void* args, size_t bytes) = 0;
  // Host memory must stay as it is until the copy is done (synchronize()); pinned memory makes it asynchronous.
  virtual void upload(void* to_device, const void* from_host, int64_t bytes) = 0;
  virtual void download(void* to_host, const void* from_device, int64_t bytes) = 0;
  virtual void copy(void* to_device, const void* from_device, int64_t bytes) = 0;
  virtual void fill(void* to_device, uint8_t value, int64_t bytes) = 0;
  virtual void synchronize() = 0;  // waits for the queue

  // Between the two, nothing runs: what is queued becomes the graph.
  virtual void begin_capture() = 0;
  virtual Graph end_capture() = 0;
  virtual void replay(Graph graph) = 0;

  // Time on the device: marks go into the queue; milliseconds between two of them that have passed.
  virtual int32_t mark() = 0;  // a new mark each call, of a fixed number that are used again in turn
  virtual double milliseconds(int32_t from, int32_t to) = 0;
  // What is queued after this waits until the other GPU's queue, of the same kind, has passed its mark, which it has
  // made already. Nothing waits on the host.
  virtual void wait_for(Gpu& other, int32_t mark) = 0;

  // Since the start: allocations (device and pinned) and kernels compiled or loaded. Promise 5: neither grows after
  // ready.
  int64_t allocations() const { return allocations_; }
  int64_t kernels_loaded() const { return kernels_loaded_; }

 protected:
  int64_t allocations_ = 0;
  int64_t kernels_loaded_ = 0;

 private:
  template <MemoryKind Kind>
  friend class OwnedMemory;
  virtual void free_device(void* data) noexcept = 0;
  virtual void free_pinned(void* data) noexcept = 0;
};

}  // namespace tandem::device
