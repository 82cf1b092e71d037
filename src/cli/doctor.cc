// Gathers, then prints as text or JSON.
#include "cli/doctor.h"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <system_error>
#include <thread>

#include "base/error.h"
#include "cli/standard_io.h"
#include "device/cuda_report.h"
#include "device/kernel_cache.h"
#include "engine/plan.h"
#include "ops/simd/kernels.h"

namespace tandem::cli {
namespace {

using device::CudaReport;
using device::LibraryReport;
using Json = nlohmann::ordered_json;

struct Machine {
  std::string processor, instructions;
  unsigned cores = 0;
  int64_t memory = 0, available_memory = 0;  // bytes
};

struct CacheReport {
  std::string folder;
  int64_t entries = 0, bytes = 0;
};

// The value behind "key:" in a file of such lines, as /proc has them; empty if there is none.
std::string value_in(const char* file, const std::string& key) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    const size_t colon = line.find(':');
    if (!line.starts_with(key) || colon == std::string::npos) continue;
    const size_t first = line.find_first_not_of(" \t", colon + 1);
    return first == std::string::npos ? "" : line.substr(first);
  }
  return {};
}

int64_t memory_in(const std::string& key) {
  const std::string value = value_in("/proc/meminfo", key);  // in kB
  return value.empty() ? 0 : std::strtoll(value.c_str(), nullptr, 10) * 1024;
}

const char* name_of(ops::SimdLevel level) {
  switch (level) {
    case ops::SimdLevel::scalar: return "scalar";
    case ops::SimdLevel::neon: return "NEON";
    case ops::SimdLevel::avx2: return "AVX2";
    case ops::SimdLevel::avx512: return "AVX-512";
  }
  return "";
}

Machine machine_report() {
  Machine machine;
  machine.processor = value_in("/proc/cpuinfo", "model name");
  machine.instructions = name_of(ops::kernels().level);
  machine.cores = std::thread::hardware_concurrency();
  machine.memory = memory_in("MemTotal");
  machine.available_memory = memory_in("MemAvailable");
  return machine;
}

CacheReport cache_report() {
  CacheReport report;
  const std::filesystem::path folder = device::default_kernel_cache();
  report.folder = folder.string();
  std::error_code ignored;
  for (std::filesystem::directory_iterator at(folder, ignored), end; at != end; at.increment(ignored)) {
    if (at->path().extension() != ".cubin") continue;
    const auto size = at->file_size(ignored);
    if (ignored) continue;
    ++report.entries;
    report.bytes += static_cast<int64_t>(size);
  }
  return report;
}

constexpr const char* commands_on_gpus = "serve, generate, chat, eval, calibrate timing";

// What --device auto comes to for a model that GPUs run.
struct DefaultDevice {
  std::string name;    // "cuda" or "cpu"
  std::string reason;  // of "cpu"
};

DefaultDevice default_device(const CudaReport& cuda, const CacheReport& cache) {
  if (!cuda.driver.problem.empty()) return {"cpu", "no driver"};
  if (cuda.gpus.empty()) return {"cpu", "no GPU"};
  if (!cuda.gpus.front().problem.empty()) return {"cpu", "GPU 0 cannot be used"};
  if (!cuda.nvrtc.problem.empty() && cache.entries == 0) return {"cpu", "no NVRTC and no compiled kernels"};
  return {"cuda", ""};
}

std::string text_of(const DefaultDevice& device) {
  if (device.name == "cuda")
    return fmt::format("{:<13} cuda: {} use GPU 0 unless --device cpu is given\n", "--device auto", commands_on_gpus);
  return fmt::format("{:<13} cpu, for all commands: {}\n", "--device auto", device.reason);
}

std::string size(int64_t bytes) { return engine::size_at_most(bytes); }

std::string library_line(const char* name, const LibraryReport& library) {
  if (!library.problem.empty()) return fmt::format("{:<13} missing: {}\n", name, library.problem);
  return fmt::format("{:<13} {} ({})\n", name, library.version, library.file);
}

Json library_json(const LibraryReport& library) {
  return {{"usable", library.problem.empty()},
          {"version", library.version},
          {"file", library.file},
          {"problem", library.problem}};
}

std::string text_of(const Machine& machine, const CudaReport& cuda, const CacheReport& cache) {
  std::string text = fmt::format("{:<13} {}\n", "tandem", TANDEM_VERSION);
  text += fmt::format("{:<13} {}, {} cores, {}\n", "processor",
                      machine.processor.empty() ? "unknown" : machine.processor, machine.cores, machine.instructions);
  text += fmt::format("{:<13} {}, {} available\n", "memory", size(machine.memory), size(machine.available_memory));
  text += library_line("driver", cuda.driver);
  text += library_line("NVRTC", cuda.nvrtc);
  text += library_line("NCCL", cuda.nccl);
  for (const auto& gpu : cuda.gpus) {
    text += fmt::format("{:<13} {}, compute capability {}.{}, {} multiprocessors, {} of memory",
                        fmt::format("GPU {}", gpu.ordinal), gpu.name, gpu.target / 10, gpu.target % 10,
                        gpu.multiprocessors, size(gpu.memory));
    if (gpu.free_memory >= 0) text += fmt::format(", {} free", size(gpu.free_memory));
    text += gpu.problem.empty() ? "\n" : fmt::format("; cannot be used: {}\n", gpu.problem);
  }
  if (cuda.gpus.empty() && cuda.driver.problem.empty()) text += fmt::format("{:<13} none\n", "GPUs");
  text += fmt::format("{:<13} {} entries, {} ({})\n", "kernel cache", cache.entries, size(cache.bytes), cache.folder);
  text += text_of(default_device(cuda, cache));
  return text;
}

Json json_of(const Machine& machine, const CudaReport& cuda, const CacheReport& cache) {
  const DefaultDevice device = default_device(cuda, cache);
  Json gpus = Json::array();
  for (const auto& gpu : cuda.gpus) {
    gpus.push_back({{"ordinal", gpu.ordinal},
                    {"usable", gpu.problem.empty()},
                    {"name", gpu.name},
                    {"compute_capability", fmt::format("{}.{}", gpu.target / 10, gpu.target % 10)},
                    {"multiprocessors", gpu.multiprocessors},
                    {"memory_bytes", gpu.memory},
                    {"free_memory_bytes", gpu.free_memory < 0 ? Json() : Json(gpu.free_memory)},
                    {"problem", gpu.problem}});
  }
  return {
      {"schema", "tandem.doctor/1"},
      {"version", TANDEM_VERSION},
      {"processor", {{"name", machine.processor}, {"cores", machine.cores}, {"instructions", machine.instructions}}},
      {"memory", {{"bytes", machine.memory}, {"available_bytes", machine.available_memory}}},
      {"driver", library_json(cuda.driver)},
      {"nvrtc", library_json(cuda.nvrtc)},
      {"nccl", library_json(cuda.nccl)},
      {"gpus", gpus},
      {"kernel_cache", {{"folder", cache.folder}, {"entries", cache.entries}, {"bytes", cache.bytes}}},
      {"default_device", {{"name", device.name}, {"reason", device.reason}}}};
}

}  // namespace

int run_doctor(const DoctorOptions& options) {
  const Machine machine = machine_report();
  const CudaReport cuda = device::cuda_report(options.nvrtc);
  const CacheReport cache = cache_report();
  write_out(options.json ? json_of(machine, cuda, cache).dump(2) + "\n" : text_of(machine, cuda, cache));
  return 0;
}

}  // namespace tandem::cli
