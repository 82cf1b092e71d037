// The part of NVIDIA's driver that the program uses, through declarations of our own: a table of function pointers,
// filled from libcuda.so.1 at run time, or by a test.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace tandem::device::cuda {

// The types of cuda.h, as the driver's binary interface has them.
using Result = int;
using Device = int;
using Pointer = uint64_t;  // device memory
using Context = void*;
using Stream = void*;
using Event = void*;
using Module = void*;
using Function = void*;
using Graph = void*;
using GraphExec = void*;

constexpr Result success = 0, out_of_memory = 2;
constexpr int attribute_multiprocessors = 16, attribute_major = 75, attribute_minor = 76, attribute_shared_optin = 97;
constexpr int function_max_threads = 0, function_static_shared = 1, function_max_dynamic_shared = 8,
              function_preferred_carveout = 9;
constexpr unsigned stream_non_blocking = 1, capture_thread_local = 1;

struct Driver {
  std::string file;  // of the library

  Result (*init)(unsigned flags) = nullptr;
  Result (*driver_version)(int* version) = nullptr;  // 13000: CUDA 13.0
  Result (*error_name)(Result, const char** name) = nullptr;
  Result (*error_string)(Result, const char** text) = nullptr;

  Result (*device_count)(int* count) = nullptr;
  Result (*device_get)(Device*, int ordinal) = nullptr;
  Result (*device_name)(char* name, int length, Device) = nullptr;
  Result (*device_attribute)(int* value, int attribute, Device) = nullptr;
  Result (*device_memory)(size_t* bytes, Device) = nullptr;
  Result (*context_retain)(Context*, Device) = nullptr;
  Result (*context_release)(Device) = nullptr;
  Result (*context_set)(Context) = nullptr;

  Result (*memory_info)(size_t* free_bytes, size_t* total) = nullptr;
  Result (*memory_allocate)(Pointer*, size_t bytes) = nullptr;
  Result (*memory_free)(Pointer) = nullptr;
  Result (*host_allocate)(void** data, size_t bytes, unsigned flags) = nullptr;
  Result (*host_free)(void* data) = nullptr;
  Result (*copy_to_device)(Pointer, const void* host, size_t bytes, Stream) = nullptr;
  Result (*copy_to_host)(void* host, Pointer, size_t bytes, Stream) = nullptr;
  Result (*copy_on_device)(Pointer to, Pointer from, size_t bytes, Stream) = nullptr;
  Result (*fill_bytes)(Pointer, unsigned char value, size_t count, Stream) = nullptr;

  Result (*stream_create)(Stream*, unsigned flags) = nullptr;
  Result (*stream_destroy)(Stream) = nullptr;
  Result (*stream_synchronize)(Stream) = nullptr;
  Result (*stream_wait_event)(Stream, Event, unsigned flags) = nullptr;
  Result (*event_create)(Event*, unsigned flags) = nullptr;
  Result (*event_destroy)(Event) = nullptr;
  Result (*event_record)(Event, Stream) = nullptr;
  Result (*event_synchronize)(Event) = nullptr;
  Result (*event_elapsed)(float* milliseconds, Event from, Event to) = nullptr;

  Result (*module_load)(Module*, const void* image) = nullptr;
  Result (*module_unload)(Module) = nullptr;
  Result (*module_function)(Function*, Module, const char* name) = nullptr;
  Result (*function_attribute)(int* value, int attribute, Function) = nullptr;
  Result (*function_set_attribute)(Function, int attribute, int value) = nullptr;
  Result (*launch)(Function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                   unsigned block_z, unsigned shared_bytes, Stream, void** parameters, void** extra) = nullptr;
  // Only in drivers since CUDA 12.4: where a kernel's parameter lies and how long it is.
  Result (*parameter_info)(Function, size_t index, size_t* offset, size_t* bytes) = nullptr;

  Result (*capture_begin)(Stream, unsigned mode) = nullptr;
  Result (*capture_end)(Stream, Graph*) = nullptr;
  Result (*graph_instantiate)(GraphExec*, Graph, unsigned long long flags) = nullptr;
  Result (*graph_destroy)(Graph) = nullptr;
  Result (*graph_exec_destroy)(GraphExec) = nullptr;
  Result (*graph_launch)(GraphExec, Stream) = nullptr;
};

// Opens libcuda.so.1, or `file`, and fills the table; nothing is initialised. Throws Error(resource): no driver (with
// the places that were tried), or one that lacks a function.
Driver load_driver(const std::string& file = {});

// cuInit and the version. Throws Error(resource): no GPU, no permission, or a driver older than CUDA 12.0, whose loader
// does not know sm_90a. Returns the version as 13000.
int initialise(const Driver& driver);

// "CUDA_ERROR_OUT_OF_MEMORY: out of memory".
std::string words_of(const Driver& driver, Result result);

// Throws Error(resource) with the call's name and the driver's words unless `result` is success.
void check(const Driver& driver, Result result, const std::string& call);

// "580.159.03" where the system tells, else "CUDA 13.0".
std::string driver_version_name(int version);

}  // namespace tandem::device::cuda
