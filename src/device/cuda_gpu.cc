// The primary context, one stream, and what was loaded into it.
#include "device/cuda_gpu.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace tandem::device {
namespace {

constexpr int marks = 1024;

// What this thread told the driver last.
thread_local cuda::Context current_context = nullptr;

// What CUDA says when the context is lost: everything after it fails, too (CUresult 700, 702, 709 to 719 without the
// two of peer access, 214, 999).
bool ends_the_context(cuda::Result result) {
  return result == 214 || result == 700 || result == 702 || (result >= 709 && result <= 719) || result == 999;
}

struct LoadedKernel {
  std::string name;
  cuda::Function function = nullptr;
  int64_t max_threads = 0, static_shared = 0;
  int64_t argument_bytes = -1;  // of its one parameter; -1: the driver does not say
};

struct LoadedModule {
  KernelBuild build;
  cuda::Module module = nullptr;
};

class CudaGpu final : public Gpu {
 public:
  CudaGpu(const cuda::Driver& driver, std::unique_ptr<KernelCache> cache, int ordinal)
      : cuda_(driver), cache_(std::move(cache)) {
    find_device(ordinal);
    try {
      check(cuda_.context_retain(&context_, device_), "cuDevicePrimaryCtxRetain");
      check(cuda_.context_set(context_), "cuCtxSetCurrent");
      check(cuda_.stream_create(&stream_, cuda::stream_non_blocking), "cuStreamCreate");
      events_.resize(marks);
      for (auto& event : events_) check(cuda_.event_create(&event, 0), "cuEventCreate");
    } catch (...) {
      close();
      throw;
    }
  }
  ~CudaGpu() override { close(); }
  CudaGpu(const CudaGpu&) = delete;
  CudaGpu& operator=(const CudaGpu&) = delete;

  const GpuProperties& properties() const override { return properties_; }

  int64_t free_memory() override {
    enter();
    size_t available = 0, total = 0;
    check(cuda_.memory_info(&available, &total), "cuMemGetInfo");
    return static_cast<int64_t>(available);
  }

  GpuMemory allocate(int64_t bytes, const std::string& what) override {
    enter();
    cuda::Pointer pointer = 0;
    const auto size = static_cast<size_t>(std::max<int64_t>(bytes, 1));
    const cuda::Result result = cuda_.memory_allocate(&pointer, size);
    if (result == cuda::out_of_memory) {
      size_t available = 0, total = 0;
      check(cuda_.memory_info(&available, &total), "cuMemGetInfo");
      throw Error(ErrorCode::does_not_fit, what, fmt::format("{} bytes on {}", bytes, properties_.name),
                  fmt::format("at most the {} bytes that are free", available));
    }
    check(result, "cuMemAlloc");
    ++allocations_;
    // The driver gives addresses as integers. NOLINTNEXTLINE(performance-no-int-to-ptr)
    return GpuMemory(*this, reinterpret_cast<void*>(pointer), bytes);
  }

  PinnedMemory allocate_pinned(int64_t bytes, const std::string& what) override {
    enter();
    void* data = nullptr;
    const cuda::Result result = cuda_.host_allocate(&data, static_cast<size_t>(std::max<int64_t>(bytes, 1)), 0);
    if (result == cuda::out_of_memory)
      throw Error(ErrorCode::does_not_fit, what, fmt::format("{} bytes of pinned host memory", bytes),
                  "what this machine's memory and the user's limits allow");
    check(result, "cuMemHostAlloc");
    ++allocations_;
    return PinnedMemory(*this, data, bytes);
  }

  void prepare(std::span<const KernelSpec> specs) override {
    std::vector<KernelBuild> builds;
    for (const auto& spec : specs) {
      KernelBuild build = build_of(spec);
      if (module_of(build) == nullptr && std::find(builds.begin(), builds.end(), build) == builds.end())
        builds.push_back(std::move(build));
    }
    const std::vector<Error> errors = cache_->get_all(builds, 0, {});
    if (!errors.empty()) throw Error(errors.front());
  }

  Kernel load(const KernelSpec& spec) override {
    enter();
    const KernelBuild build = build_of(spec);
    cuda::Module module = module_of(build);
    if (module == nullptr) module = load_module(build);
    LoadedKernel kernel;
    kernel.name = fmt::format("{} of {}", spec.name, spec.source);
    check(cuda_.module_function(&kernel.function, module, spec.name.c_str()), "cuModuleGetFunction", kernel.name);
    kernel.max_threads = attribute(kernel, cuda::function_max_threads);
    kernel.static_shared = attribute(kernel, cuda::function_static_shared);
    const int64_t dynamic_shared = properties_.shared_bytes - kernel.static_shared;
    check(cuda_.function_set_attribute(kernel.function, cuda::function_max_dynamic_shared,
                                       static_cast<int>(dynamic_shared)),
          "cuFuncSetAttribute", kernel.name);
    if (spec.most_shared_memory)
      check(cuda_.function_set_attribute(kernel.function, cuda::function_preferred_carveout, 100), "cuFuncSetAttribute",
            kernel.name);
    if (cuda_.parameter_info != nullptr) {
      size_t offset = 0, size = 0;
      check(cuda_.parameter_info(kernel.function, 0, &offset, &size), "cuFuncGetParamInfo", kernel.name);
      kernel.argument_bytes = static_cast<int64_t>(size);
    }
    kernels_.push_back(std::move(kernel));
    ++kernels_loaded_;
    return {static_cast<int32_t>(kernels_.size()) - 1};
  }

  void launch_with(const Launch& launch, const void* args, size_t bytes) override {
    enter();
    const LoadedKernel& kernel = kernels_.at(static_cast<size_t>(launch.kernel.index));
    if (kernel.argument_bytes >= 0 && kernel.argument_bytes != static_cast<int64_t>(bytes))
      throw Error(ErrorCode::internal, kernel.name, fmt::format("{} bytes of arguments", bytes),
                  fmt::format("{}: host and kernel must see the same struct", kernel.argument_bytes));
    if (launch.threads == 0 || launch.threads % 32 != 0 || launch.threads > kernel.max_threads)
      throw Error(ErrorCode::internal, kernel.name, fmt::format("{} threads a block", launch.threads),
                  fmt::format("whole warps, at most {} threads", kernel.max_threads));
    if (launch.shared_bytes + kernel.static_shared > properties_.shared_bytes)
      throw Error(ErrorCode::internal, kernel.name, fmt::format("{} bytes of shared memory", launch.shared_bytes),
                  fmt::format("at most {}", properties_.shared_bytes - kernel.static_shared));
    void* parameters[] = {const_cast<void*>(args)};  // the driver copies what it points to
    const cuda::Result result =
        cuda_.launch(kernel.function, launch.grid[0], launch.grid[1], launch.grid[2], launch.threads, 1, 1,
                     static_cast<unsigned>(launch.shared_bytes), stream_, parameters, nullptr);
    if (result != cuda::success)
      check(result, "cuLaunchKernel",
            fmt::format("{}, {} x {} x {} blocks of {} threads, {} bytes of shared memory", kernel.name, launch.grid[0],
                        launch.grid[1], launch.grid[2], launch.threads, launch.shared_bytes));
  }

  void upload(void* to, const void* from, int64_t bytes) override {
    enter();
    if (bytes > 0) check(cuda_.copy_to_device(address(to), from, static_cast<size_t>(bytes), stream_), "cuMemcpyHtoD");
  }
  void download(void* to, const void* from, int64_t bytes) override {
    enter();
    if (bytes > 0) check(cuda_.copy_to_host(to, address(from), static_cast<size_t>(bytes), stream_), "cuMemcpyDtoH");
  }
  void copy(void* to, const void* from, int64_t bytes) override {
    enter();
    if (bytes > 0)
      check(cuda_.copy_on_device(address(to), address(from), static_cast<size_t>(bytes), stream_), "cuMemcpyDtoD");
  }
  void fill(void* to, uint8_t value, int64_t bytes) override {
    enter();
    if (bytes > 0) check(cuda_.fill_bytes(address(to), value, static_cast<size_t>(bytes), stream_), "cuMemsetD8");
  }
  void synchronize() override {
    enter();
    check(cuda_.stream_synchronize(stream_), "cuStreamSynchronize");
  }

  void begin_capture() override {
    enter();
    check(cuda_.capture_begin(stream_, cuda::capture_thread_local), "cuStreamBeginCapture");
    capturing_ = true;
  }
  Graph end_capture() override {
    enter();
    capturing_ = false;
    cuda::Graph graph = nullptr;
    check(cuda_.capture_end(stream_, &graph), "cuStreamEndCapture");
    cuda::GraphExec exec = nullptr;
    const cuda::Result result = cuda_.graph_instantiate(&exec, graph, 0);
    cuda_.graph_destroy(graph);
    check(result, "cuGraphInstantiate");
    graphs_.push_back(exec);
    return {static_cast<int32_t>(graphs_.size()) - 1};
  }
  void replay(Graph graph) override {
    enter();
    check(cuda_.graph_launch(graphs_.at(static_cast<size_t>(graph.index)), stream_), "cuGraphLaunch");
  }

  int32_t mark() override {
    enter();
    if (capturing_) throw Error(ErrorCode::internal, "mark", "a mark inside a graph", "marks around its replay");
    const int32_t index = next_mark_;
    next_mark_ = (next_mark_ + 1) % marks;
    check(cuda_.event_record(events_[static_cast<size_t>(index)], stream_), "cuEventRecord");
    return index;
  }
  double milliseconds(int32_t from, int32_t to) override {
    enter();
    float elapsed = 0;
    const cuda::Event first = events_.at(static_cast<size_t>(from)), last = events_.at(static_cast<size_t>(to));
    check(cuda_.event_synchronize(last), "cuEventSynchronize");
    check(cuda_.event_elapsed(&elapsed, first, last), "cuEventElapsedTime");
    return elapsed;
  }

  void wait_for(Gpu& other, int32_t mark) override {
    enter();
    const auto* that = dynamic_cast<const CudaGpu*>(&other);
    if (that == nullptr || capturing_)
      throw Error(ErrorCode::internal, "wait_for", capturing_ ? "a wait inside a graph" : "a GPU of another kind");
    const cuda::Event event = that->events_.at(static_cast<size_t>(mark));
    check(cuda_.stream_wait_event(stream_, event, 0), "cuStreamWaitEvent");
  }

 private:
  static cuda::Pointer address(const void* device_memory) { return reinterpret_cast<cuda::Pointer>(device_memory); }

  // Every public call begins here: a context belongs to threads, and a lost one is never used again.
  void enter() {
    if (!lost_.empty()) throw Error(ErrorCode::resource, "CUDA driver", lost_);
    if (current_context == context_) return;
    check(cuda_.context_set(context_), "cuCtxSetCurrent");
    current_context = context_;
  }
  bool can_free() noexcept {
    if (!lost_.empty() || cuda_.context_set(context_) != cuda::success) return false;
    current_context = context_;
    return true;
  }
  void check(cuda::Result result, const char* call, const std::string& what = {}) {
    if (result == cuda::success) return;
    std::string found = fmt::format("{} failed: {}", call, cuda::words_of(cuda_, result));
    if (!what.empty()) found += fmt::format(" ({})", what);
    if (ends_the_context(result)) lost_ = fmt::format("an earlier error ended the work on the GPU: {}", found);
    throw Error(ErrorCode::resource, "CUDA driver", found);
  }

  int device_attribute(int which) {
    int value = 0;
    check(cuda_.device_attribute(&value, which, device_), "cuDeviceGetAttribute");
    return value;
  }
  int64_t attribute(const LoadedKernel& kernel, int which) {
    int value = 0;
    check(cuda_.function_attribute(&value, which, kernel.function), "cuFuncGetAttribute", kernel.name);
    return value;
  }

  void find_device(int ordinal) {
    int count = 0, version = 0;
    check(cuda_.device_count(&count), "cuDeviceGetCount");
    if (ordinal < 0 || ordinal >= count)
      throw Error(ErrorCode::resource, fmt::format("GPU {}", ordinal), fmt::format("{} GPUs are visible", count),
                  "one of them (nvidia-smi lists them; CUDA_VISIBLE_DEVICES hides some), or --device cpu");
    check(cuda_.device_get(&device_, ordinal), "cuDeviceGet");
    char name[256] = {};
    check(cuda_.device_name(name, sizeof name - 1, device_), "cuDeviceGetName");
    size_t memory = 0;
    check(cuda_.device_memory(&memory, device_), "cuDeviceTotalMem");
    check(cuda_.driver_version(&version), "cuDriverGetVersion");
    properties_.name = name;
    properties_.driver = cuda::driver_version_name(version);
    properties_.target = 10 * device_attribute(cuda::attribute_major) + device_attribute(cuda::attribute_minor);
    properties_.multiprocessors = device_attribute(cuda::attribute_multiprocessors);
    properties_.shared_bytes = device_attribute(cuda::attribute_shared_optin);
    properties_.memory = static_cast<int64_t>(memory);
    if (properties_.target < 90)
      throw Error(ErrorCode::resource, fmt::format("GPU {} ({})", ordinal, name),
                  fmt::format("compute capability {}.{}", properties_.target / 10, properties_.target % 10),
                  "9.0 (Hopper) or above, or --device cpu");
  }

  KernelBuild build_of(const KernelSpec& spec) const {
    return {spec.source, target_name(properties_.target), spec.defines};
  }
  cuda::Module module_of(const KernelBuild& build) const {
    for (const auto& loaded : modules_)
      if (loaded.build == build) return loaded.module;
    return nullptr;
  }
  cuda::Module load_module(const KernelBuild& build) {
    const Cubin cubin = cache_->get(build);
    // All kernels by one compiler: two could round the same sum differently, and rows would not have one arithmetic.
    if (compiler_.empty()) compiler_ = cubin.compiler;
    if (compiler_ != cubin.compiler)
      throw Error(ErrorCode::resource, build.source,
                  fmt::format("compiled by NVRTC {}, kernels before it by {}", cubin.compiler, compiler_),
                  fmt::format("one compiler's kernels: empty {}", cache_->folder().string()));
    cuda::Module module = nullptr;
    check(cuda_.module_load(&module, cubin.bytes.data()), "cuModuleLoadData",
          fmt::format("{} by NVRTC {}", cubin.file.string(), cubin.compiler));
    modules_.push_back({build, module});
    return module;
  }

  void free_device(void* data) noexcept override {
    if (can_free()) cuda_.memory_free(address(data));
  }
  void free_pinned(void* data) noexcept override {
    if (can_free()) cuda_.host_free(data);
  }
  void close() noexcept {
    if (context_ == nullptr) return;
    cuda_.context_set(context_);
    current_context = nullptr;
    for (const auto& graph : graphs_) cuda_.graph_exec_destroy(graph);
    for (const auto& loaded : modules_) cuda_.module_unload(loaded.module);
    for (const auto& event : events_)
      if (event != nullptr) cuda_.event_destroy(event);
    if (stream_ != nullptr) cuda_.stream_destroy(stream_);
    cuda_.context_release(device_);
  }

  cuda::Driver cuda_;
  std::unique_ptr<KernelCache> cache_;
  GpuProperties properties_;
  cuda::Device device_ = 0;
  cuda::Context context_ = nullptr;
  cuda::Stream stream_ = nullptr;
  std::vector<cuda::Event> events_;
  std::vector<LoadedModule> modules_;
  std::vector<LoadedKernel> kernels_;
  std::vector<cuda::GraphExec> graphs_;
  std::string compiler_;  // version of the NVRTC that made the loaded kernels
  std::string lost_;      // why nothing works any more
  int32_t next_mark_ = 0;
  bool capturing_ = false;
};

}  // namespace

std::unique_ptr<Gpu> make_cuda_gpu(const cuda::Driver& driver, std::unique_ptr<KernelCache> cache, int ordinal) {
  return std::make_unique<CudaGpu>(driver, std::move(cache), ordinal);
}

std::unique_ptr<Gpu> open_cuda_gpu(int ordinal, const CudaOptions& options) {
  const cuda::Driver driver = cuda::load_driver();
  const int version = cuda::initialise(driver);
  std::shared_ptr<const KernelCompiler> compiler;
  std::string missing;
  try {
    compiler = open_nvrtc(options.nvrtc, version / 1000);
  } catch (const Error& e) {
    if (!options.nvrtc.empty()) throw;
    missing = e.what();
  }
  auto folder = options.cache_dir.empty() ? default_kernel_cache() : options.cache_dir;
  return make_cuda_gpu(
      driver, std::make_unique<KernelCache>(std::move(folder), shipped_kernels(), std::move(compiler), missing),
      ordinal);
}

}  // namespace tandem::device
