// The emulated GPU: a registry of kernels, a queue that runs at once or is recorded, memory that is poisoned.
#include "emulated_gpu.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <utility>

#include "base/error.h"
#include "fibers.h"
#include "kernel_emulated.h"

namespace tandem::emulator {
namespace {

struct Entry {
  uint32_t max_threads;
  Body body;
};
using Key = std::pair<std::string, std::string>;  // source:name, defines

std::map<Key, Entry>& registry() {
  static std::map<Key, Entry> entries;
  return entries;
}

std::string joined(std::vector<std::string> defines) {
  std::sort(defines.begin(), defines.end());
  return fmt::format("{}", fmt::join(defines, ","));
}

constexpr int64_t shared_limit = 227 << 10;  // of sm_90

class EmulatedGpu final : public device::Gpu {
 public:
  explicit EmulatedGpu(uint64_t seed) : random_(seed) {
    properties_.name = "emulated on the CPU";
    properties_.driver = "none";
    properties_.target = 90;
    properties_.multiprocessors = 4;
    properties_.memory = int64_t{8} << 30;
    properties_.shared_bytes = shared_limit;
  }
  const device::GpuProperties& properties() const override { return properties_; }
  int64_t free_memory() override { return properties_.memory - used_; }

  device::GpuMemory allocate(int64_t bytes, const std::string& what) override {
    return device::GpuMemory(*this, poisoned(bytes, what), bytes);
  }
  device::PinnedMemory allocate_pinned(int64_t bytes, const std::string& what) override {
    return device::PinnedMemory(*this, poisoned(bytes, what), bytes);
  }

  void prepare(std::span<const device::KernelSpec>) override {}
  device::Kernel load(const device::KernelSpec& spec) override {
    const auto found = registry().find({spec.source + ":" + spec.name, joined(spec.defines)});
    if (found == registry().end()) {
      throw Error(ErrorCode::internal, spec.source,
                  fmt::format("no emulated kernel {} for {}", spec.name, joined(spec.defines)),
                  "one of tests/emulator/CMakeLists.txt");
    }
    ++kernels_loaded_;
    kernels_.emplace_back(spec.name, found->second);
    return {static_cast<int32_t>(kernels_.size()) - 1};
  }

  void launch_with(const device::Launch& launch, const void* args, size_t bytes) override {
    const auto& [name, entry] = kernels_.at(static_cast<size_t>(launch.kernel.index));
    const auto* first = static_cast<const std::byte*>(args);
    if (launch.threads == 0 || launch.threads % 32 != 0 || launch.threads > entry.max_threads)
      throw Error(ErrorCode::internal, name, fmt::format("{} threads a block", launch.threads),
                  fmt::format("whole warps, at most {} threads", entry.max_threads));
    if (launch.shared_bytes > shared_limit)
      throw Error(ErrorCode::internal, name, fmt::format("{} bytes of shared memory", launch.shared_bytes),
                  fmt::format("at most {}", shared_limit));
    if (launch.grid[0] == 0 || launch.grid[1] == 0 || launch.grid[2] == 0 || launch.grid[1] > 65535 ||
        launch.grid[2] > 65535)
      throw Error(ErrorCode::internal, name,
                  fmt::format("a grid of {} x {} x {}", launch.grid[0], launch.grid[1], launch.grid[2]),
                  "1 to 65535 blocks in y and z");
    queue([this, launch, entry = entry, copy = std::vector<std::byte>(first, first + bytes)] {
      run(launch, entry, copy.data());
    });
  }
  void upload(void* to, const void* from, int64_t bytes) override { move(to, from, bytes); }
  void download(void* to, const void* from, int64_t bytes) override { move(to, from, bytes); }
  void copy(void* to, const void* from, int64_t bytes) override { move(to, from, bytes); }
  void fill(void* to, uint8_t value, int64_t bytes) override {
    queue([=] { std::memset(to, value, static_cast<size_t>(bytes)); });
  }
  void synchronize() override {}

  void begin_capture() override { capturing_ = true; }
  device::Graph end_capture() override {
    capturing_ = false;
    graphs_.push_back(std::exchange(captured_, {}));
    return {static_cast<int32_t>(graphs_.size()) - 1};
  }
  void replay(device::Graph graph) override {
    for (const auto& work : graphs_.at(static_cast<size_t>(graph.index))) work();
  }
  int32_t mark() override {
    marks_.push_back(std::chrono::steady_clock::now());
    return static_cast<int32_t>(marks_.size()) - 1;
  }
  double milliseconds(int32_t from, int32_t to) override {
    return std::chrono::duration<double, std::milli>(marks_.at(static_cast<size_t>(to)) -
                                                     marks_.at(static_cast<size_t>(from)))
        .count();
  }

  void wait_for(device::Gpu&, int32_t) override {}  // what is queued is done at once

 private:
  void* poisoned(int64_t bytes, const std::string& what) {
    ++allocations_;
    if (bytes > free_memory())
      throw Error(ErrorCode::does_not_fit, what, fmt::format("{} bytes", bytes),
                  fmt::format("at most {} free bytes", free_memory()));
    used_ += bytes;
    const size_t size = (static_cast<size_t>(std::max<int64_t>(bytes, 1)) + 255) / 256 * 256;
    void* data = std::aligned_alloc(256, size);
    if (data == nullptr)
      throw Error(ErrorCode::does_not_fit, what, fmt::format("{} bytes", bytes), "host memory for the emulator");
    std::memset(data, 0xff, size);
    sizes_[data] = bytes;
    return data;
  }
  void release(void* data) noexcept {
    used_ -= sizes_[data];
    sizes_.erase(data);
    std::free(data);
  }
  void free_device(void* data) noexcept override { release(data); }
  void free_pinned(void* data) noexcept override { release(data); }

  template <typename Work>
  void queue(Work work) {
    if (capturing_) {
      captured_.push_back(std::move(work));
    } else {
      work();
    }
  }
  void move(void* to, const void* from, int64_t bytes) {
    queue([=] { std::memmove(to, from, static_cast<size_t>(bytes)); });
  }
  void run(const device::Launch& launch, const Entry& entry, const void* args) {
    shared_.resize(static_cast<size_t>(launch.shared_bytes) + 128);
    void* first = shared_.data();
    size_t space = shared_.size();
    auto* aligned = static_cast<unsigned char*>(std::align(128, space - 128, first, space));
    for (uint32_t z = 0; z < launch.grid[2]; ++z) {
      for (uint32_t y = 0; y < launch.grid[1]; ++y) {
        for (uint32_t x = 0; x < launch.grid[0]; ++x) {
          std::fill(shared_.begin(), shared_.end(), uint8_t{0xff});
          run_block(entry.body, args, {{launch.grid[0], launch.grid[1], launch.grid[2]}, {x, y, z}, launch.threads},
                    aligned, random_);
        }
      }
    }
  }

  device::GpuProperties properties_;
  std::vector<std::pair<std::string, Entry>> kernels_;
  std::vector<std::function<void()>> captured_;
  std::vector<std::vector<std::function<void()>>> graphs_;
  std::vector<std::chrono::steady_clock::time_point> marks_;
  std::map<void*, int64_t> sizes_;
  std::vector<unsigned char> shared_;
  std::mt19937_64 random_;
  int64_t used_ = 0;
  bool capturing_ = false;
};

}  // namespace

Registration::Registration(const char* source, const char* name, const char* defines, uint32_t max_threads, Body body) {
  std::vector<std::string> list;
  std::string text = defines;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    list.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  registry()[{std::string(source) + ":" + name, joined(list)}] = {max_threads, body};
}

std::unique_ptr<device::Gpu> make_gpu(uint64_t seed) { return std::make_unique<EmulatedGpu>(seed); }

}  // namespace tandem::emulator
