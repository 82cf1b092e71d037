// A driver for tests: a table of functions that keep books in a global and do no work, and a compiler that makes
// recognisable "machine code". What they answer can be set.
#pragma once

#include <atomic>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "device/cuda_compiler.h"
#include "device/cuda_driver.h"
#include "device/kernel_sources.h"

namespace tandem::device::test {

struct FakeState {
  int version = 13000;
  int devices = 1;
  int capability_major = 9;
  size_t memory = size_t{1} << 30;
  bool device_is_broken = false;             // what was queued went wrong: synchronising tells, then every call
  std::map<std::string, cuda::Result> fail;  // by call

  size_t used = 0;
  int contexts = 0, streams = 0, events = 0, modules = 0, host_blocks = 0, graphs = 0;  // alive
  cuda::Event awaited = nullptr;
  std::map<cuda::Pointer, size_t> blocks;
  std::vector<std::string> launches;  // "function gx,gy,gz threads shared"
  std::string last_arguments;
};

inline FakeState& fake() {
  static FakeState state;
  return state;
}

constexpr cuda::Result illegal_address = 700, invalid_value = 1;
constexpr int fake_argument_bytes = 16;

inline cuda::Result answer(const char* call) {
  const auto found = fake().fail.find(call);
  return found == fake().fail.end() ? cuda::success : found->second;
}

inline void fill_devices(cuda::Driver& d) {
  using cuda::Result;
  d.init = [](unsigned) { return answer("init"); };
  d.driver_version = [](int* version) -> Result { return *version = fake().version, cuda::success; };
  d.error_name = [](Result result, const char** name) -> Result {
    *name = result == illegal_address ? "CUDA_ERROR_ILLEGAL_ADDRESS" : "CUDA_ERROR_FAKE";
    return cuda::success;
  };
  d.error_string = [](Result, const char** text) -> Result { return *text = "as the test wanted", cuda::success; };
  d.device_count = [](int* count) -> Result { return *count = fake().devices, cuda::success; };
  d.device_get = [](cuda::Device* device, int ordinal) -> Result { return *device = ordinal, cuda::success; };
  d.device_name = [](char* name, int, cuda::Device) -> Result { return std::strcpy(name, "Fake 9000"), cuda::success; };
  d.device_attribute = [](int* value, int attribute, cuda::Device) -> Result {
    *value = attribute == cuda::attribute_major             ? fake().capability_major
             : attribute == cuda::attribute_minor           ? 0
             : attribute == cuda::attribute_multiprocessors ? 132
                                                            : 227 << 10;
    return cuda::success;
  };
  d.device_memory = [](size_t* bytes, cuda::Device) -> Result { return *bytes = fake().memory, cuda::success; };
  d.context_retain = [](cuda::Context* context, cuda::Device) -> Result {
    *context = &fake();
    fake().contexts += answer("context_retain") == cuda::success;
    return answer("context_retain");
  };
  d.context_release = [](cuda::Device) -> Result { return --fake().contexts, cuda::success; };
  d.context_set = [](cuda::Context) { return answer("context_set"); };
}

inline void fill_memory(cuda::Driver& d) {
  using cuda::Result;
  d.memory_info = [](size_t* available, size_t* total) -> Result {
    *available = fake().memory - fake().used;
    *total = fake().memory;
    return cuda::success;
  };
  d.memory_allocate = [](cuda::Pointer* pointer, size_t bytes) -> Result {
    static cuda::Pointer next = 0x1000;
    if (fake().used + bytes > fake().memory) return cuda::out_of_memory;
    *pointer = next += 0x1000;
    fake().used += fake().blocks[*pointer] = bytes;
    return cuda::success;
  };
  d.memory_free = [](cuda::Pointer pointer) -> Result {
    fake().used -= fake().blocks[pointer];
    fake().blocks.erase(pointer);
    return cuda::success;
  };
  d.host_allocate = [](void** data, size_t bytes, unsigned) -> Result {
    if (bytes > fake().memory) return cuda::out_of_memory;
    *data = ::operator new(bytes);
    return ++fake().host_blocks, cuda::success;
  };
  d.host_free = [](void* data) -> Result {
    ::operator delete(data);
    return --fake().host_blocks, cuda::success;
  };
  d.copy_to_device = [](cuda::Pointer, const void*, size_t, cuda::Stream) { return answer("copy_to_device"); };
  d.copy_to_host = [](void*, cuda::Pointer, size_t, cuda::Stream) { return answer("copy_to_host"); };
  d.copy_on_device = [](cuda::Pointer, cuda::Pointer, size_t, cuda::Stream) { return answer("copy_on_device"); };
  d.fill_bytes = [](cuda::Pointer, unsigned char, size_t, cuda::Stream) { return answer("fill_bytes"); };
}

inline void fill_queue(cuda::Driver& d) {
  using cuda::Result;
  d.stream_create = [](cuda::Stream* stream, unsigned) -> Result {
    return *stream = &fake(), ++fake().streams, cuda::success;
  };
  d.stream_destroy = [](cuda::Stream) -> Result { return --fake().streams, cuda::success; };
  d.stream_synchronize = [](cuda::Stream) -> Result {
    return fake().device_is_broken ? illegal_address : answer("stream_synchronize");
  };
  d.stream_wait_event = [](cuda::Stream, cuda::Event event, unsigned) -> Result {
    fake().awaited = event;
    return answer("stream_wait_event");
  };
  d.event_create = [](cuda::Event* event, unsigned) -> Result {
    if (answer("event_create") != cuda::success) return answer("event_create");
    return *event = &fake(), ++fake().events, cuda::success;
  };
  d.event_destroy = [](cuda::Event) -> Result { return --fake().events, cuda::success; };
  d.event_record = [](cuda::Event, cuda::Stream) { return answer("event_record"); };
  d.event_synchronize = [](cuda::Event) { return answer("event_synchronize"); };
  d.event_elapsed = [](float* elapsed, cuda::Event, cuda::Event) -> Result { return *elapsed = 1.5f, cuda::success; };
  d.capture_begin = [](cuda::Stream, unsigned) { return answer("capture_begin"); };
  d.capture_end = [](cuda::Stream, cuda::Graph* graph) -> Result { return *graph = &fake(), answer("capture_end"); };
  d.graph_instantiate = [](cuda::GraphExec* exec, cuda::Graph, unsigned long long) -> Result {
    return *exec = &fake(), ++fake().graphs, cuda::success;
  };
  d.graph_destroy = [](cuda::Graph) -> Result { return cuda::success; };
  d.graph_exec_destroy = [](cuda::GraphExec) -> Result { return --fake().graphs, cuda::success; };
  d.graph_launch = [](cuda::GraphExec, cuda::Stream) { return answer("graph_launch"); };
}

inline void fill_kernels(cuda::Driver& d) {
  using cuda::Result;
  d.module_load = [](cuda::Module* module, const void*) -> Result {
    if (answer("module_load") != cuda::success) return answer("module_load");
    return *module = &fake(), ++fake().modules, cuda::success;
  };
  d.module_unload = [](cuda::Module) -> Result { return --fake().modules, cuda::success; };
  d.module_function = [](cuda::Function* function, cuda::Module, const char* name) -> Result {
    static std::map<std::string, std::string> names;
    names[name] = name;
    *function = &names[name];
    return answer("module_function");
  };
  d.function_attribute = [](int* value, int attribute, cuda::Function) -> Result {
    *value = attribute == cuda::function_max_threads ? 256 : 1024;
    return cuda::success;
  };
  d.function_set_attribute = [](cuda::Function, int, int) { return answer("function_set_attribute"); };
  d.parameter_info = [](cuda::Function, size_t, size_t* offset, size_t* bytes) -> Result {
    return *offset = 0, *bytes = fake_argument_bytes, cuda::success;
  };
  d.launch = [](cuda::Function function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned, unsigned,
                unsigned shared, cuda::Stream, void** parameters, void**) -> Result {
    if (answer("launch") != cuda::success) return answer("launch");
    fake().launches.push_back(*static_cast<std::string*>(function) + " " + std::to_string(x) + "," + std::to_string(y) +
                              "," + std::to_string(z) + " " + std::to_string(threads) + " " + std::to_string(shared));
    fake().last_arguments.assign(static_cast<const char*>(parameters[0]), fake_argument_bytes);
    return cuda::success;
  };
}

// Starts from a driver with one GPU that nothing was asked of yet.
inline cuda::Driver fake_driver() {
  fake() = {};
  cuda::Driver driver;
  driver.file = "libfake.so";
  fill_devices(driver);
  fill_memory(driver);
  fill_queue(driver);
  fill_kernels(driver);
  return driver;
}

class FakeCompiler final : public KernelCompiler {
 public:
  std::string version() const override { return version_; }
  std::string file() const override { return "libfakec.so"; }
  std::vector<int> targets() const override { return {90}; }
  Compilation compile(const std::string& source, const std::vector<std::string>& options) const override {
    ++compilations;
    if (fails) return {false, {}, source + "(1): error: as the test wanted\nmore words"};
    std::string code = "code of " + source + " with " + options[0] + '\0';
    if (!forgets_kernels)
      for (const auto& kernel : kernels_of(source)) code += kernel.name + '\0';
    return {true, code, {}};
  }

  std::string version_ = "13.7";
  bool fails = false, forgets_kernels = false;
  mutable std::atomic<int> compilations{0};
};

}  // namespace tandem::device::test
