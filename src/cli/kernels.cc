// Goes through sources and targets and prints what the kernel cache says.
#include "cli/kernels.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "base/error.h"
#include "cli/loaded_model.h"
#include "cli/progress_line.h"
#include "cli/standard_io.h"
#include "device/cuda_report.h"
#include "device/kernel_cache.h"
#include "device/kernel_dimensions.h"
#include "device/kernel_sources.h"
#include "model/shape.h"

namespace tandem::cli {
namespace {

using device::Cubin;
using device::KernelBuild;
using Json = nlohmann::ordered_json;

std::vector<std::string> defines_of(const std::filesystem::path& model) {
  const model::Shape shape = model::read_shape(model.empty() ? default_model() : model);
  device::KernelDimensions dimensions;
  dimensions.kda_dim = shape.kda_head_dim;
  dimensions.kv_lora_rank = shape.kv_lora_rank;
  dimensions.index_head_dim = shape.index_head_dim;
  dimensions.index_kpool = shape.index_kpool;
  return device::model_defines(dimensions);
}

// "sm_90a" or "90" to 90; empty for anything that is no target of ours.
std::optional<int> parsed_target(std::string word) {
  if (word.starts_with("sm_")) word = word.substr(3);
  if (word.ends_with('a')) word.pop_back();
  int target = 0;
  const auto [end, failed] = std::from_chars(word.data(), word.data() + word.size(), target);
  const std::vector<int> known = device::kernel_targets();
  if (failed != std::errc() || end != word.data() + word.size()) return std::nullopt;
  return std::find(known.begin(), known.end(), target) == known.end() ? std::nullopt : std::optional(target);
}

std::vector<int> asked_targets(const std::string& arch) {
  if (arch == "all") return device::kernel_targets();
  std::vector<int> targets;
  if (arch.empty()) {
    for (const auto& gpu : device::cuda_report({}).gpus)
      if (gpu.target >= 90 && std::find(targets.begin(), targets.end(), gpu.target) == targets.end())
        targets.push_back(gpu.target);
    if (targets.empty())
      throw Error(ErrorCode::usage, "--arch", "not given, and no GPU here", "a target such as sm_90a");
    return targets;
  }
  for (size_t at = 0; at <= arch.size();) {
    const size_t end = std::min(arch.find(',', at), arch.size());
    const std::string word = arch.substr(at, end - at);
    const auto target = parsed_target(word);
    if (!target)
      throw Error(ErrorCode::usage, "--arch", fmt::format("\"{}\"", word),
                  "all, or some of sm_90a, sm_100a, sm_103a, sm_110a, sm_120a, sm_121a");
    targets.push_back(*target);
    at = end + 1;
  }
  return targets;
}

std::vector<KernelBuild> builds_of(const std::vector<int>& targets, const std::vector<std::string>& defines) {
  std::vector<KernelBuild> builds;
  for (const auto& source : device::kernel_sources())
    for (const int target : targets) builds.push_back({source, device::target_name(target), defines});
  return builds;
}

Json built_json(const KernelBuild& build, const Cubin& cubin) {
  return {{"source", build.source},
          {"target", build.target},
          {"file", cubin.file.string()},
          {"bytes", cubin.bytes.size()},
          {"compiled", cubin.compiled},
          {"seconds", cubin.seconds},
          {"log", cubin.log}};
}

std::string built_line(const KernelBuild& build, const Cubin& cubin) {
  std::string line = fmt::format("{:<44} {:<8} {:>8.1f} KiB  {}\n", build.source, build.target,
                                 static_cast<double>(cubin.bytes.size()) / 1024,
                                 cubin.compiled ? fmt::format("compiled in {:.1f} s", cubin.seconds) : "was there");
  if (!cubin.log.empty()) line += fmt::format("{}\n", cubin.log);
  return line;
}

}  // namespace

int run_kernels_build(const KernelsOptions& options) {
  const auto targets = asked_targets(options.arch);
  const auto builds = builds_of(targets, defines_of(options.model));
  const auto compiler = device::open_nvrtc(options.nvrtc);
  const device::KernelCache cache(options.out.empty() ? device::default_kernel_cache() : options.out, {}, compiler);
  if (cache.folder().empty())
    throw Error(ErrorCode::usage, "--out", "not given, and neither XDG_CACHE_HOME nor HOME is set", "a folder");
  Json report = {{"schema", "tandem.kernels.build/1"},
                 {"compiler", {{"file", compiler->file()}, {"version", compiler->version()}}},
                 {"folder", cache.folder().string()},
                 {"built", Json::array()},
                 {"failed", Json::array()}};
  ProgressLine progress;
  size_t done = 0;
  const auto errors = cache.get_all(builds, options.threads, [&](const KernelBuild& build, const Cubin& cubin) {
    if (cubin.file.empty())
      throw Error(ErrorCode::resource, cache.folder().string(), "could not be written", "a folder that may be written");
    if (!options.json) write_out(built_line(build, cubin));
    report["built"].push_back(built_json(build, cubin));
    progress.show(fmt::format("{} of {} compiled", ++done, builds.size()));
  });
  for (const Error& error : errors) report["failed"].push_back(error.what());
  if (options.json) write_out(report.dump(2) + "\n");
  if (errors.empty()) return 0;
  if (!options.json)
    for (const Error& error : errors) write_out(fmt::format("FAILED {}\n", error.what()));
  throw Error(errors.front().code(), "kernels", fmt::format("{} of {} were not built", errors.size(), builds.size()),
              "see above");
}

int run_kernels_list(const KernelsOptions& options) {
  const auto defines = defines_of(options.model);
  std::shared_ptr<const device::KernelCompiler> compiler;
  try {
    compiler = device::open_nvrtc(options.nvrtc);
  } catch (const Error&) {
    if (!options.nvrtc.empty()) throw;  // else: entries of any version are listed
  }
  const device::KernelCache cache(options.out.empty() ? device::default_kernel_cache() : options.out,
                                  device::shipped_kernels(), compiler);
  Json report = {{"schema", "tandem.kernels.list/1"},
                 {"folder", cache.folder().string()},
                 {"defines", defines},
                 {"sources", Json::array()}};
  std::string text = fmt::format("kernel cache: {}\n", cache.folder().string());
  for (const auto& source : device::kernel_sources()) {
    Json entry = {{"source", source}, {"kernels", Json::array()}, {"cached_targets", Json::array()}};
    std::string names, cached;
    for (const auto& kernel : device::kernels_of(source)) {
      entry["kernels"].push_back({{"name", kernel.name}, {"max_threads", kernel.max_threads}});
      names += fmt::format(" {}", kernel.name);
    }
    for (const int target : device::kernel_targets()) {
      const std::string name = device::target_name(target);
      if (cache.find({source, name, defines}).empty()) continue;
      entry["cached_targets"].push_back(name);
      cached += fmt::format(" {}", name);
    }
    report["sources"].push_back(entry);
    text += fmt::format("{}\n  kernels:{}\n  in the cache for:{}\n", source, names, cached.empty() ? " none" : cached);
  }
  write_out(options.json ? report.dump(2) + "\n" : text);
  return 0;
}

}  // namespace tandem::cli
