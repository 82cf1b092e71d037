// Entries: the cubin as it is, so that CUDA's tools read it, and one line of text behind it that names its key and its
// checksum.
#include "device/kernel_cache.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "device/kernel_sources.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace tandem::device {
namespace {

namespace fs = std::filesystem;

// 128 bits of XXH3: it tells texts apart and finds damage; it is no defence against somebody who may write the cache.
std::string digest(std::string_view text) {
  const XXH128_hash_t hash = XXH3_128bits(text.data(), text.size());
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

// What machine code depends on beside the compiler's version.
std::string input_digest(const KernelBuild& build) {
  std::string text;
  const auto add = [&](std::string_view part) { text += fmt::format("{}:{}\n", part.size(), part); };
  for (const KernelFile& file : with_includes(build.source)) {
    add(file.path);
    add(file.text);
  }
  for (const auto& option : compile_options(build.target, build.defines)) add(option);
  return digest(text);
}

std::string stem_of(const KernelBuild& build) {
  return fmt::format("{}-{}-{}", fs::path(build.source).stem().string(), build.target, input_digest(build));
}
std::string file_name(const std::string& stem, const std::string& compiler) {
  return fmt::format("{}-nvrtc{}.cubin", stem, compiler);
}
std::string last_line(const std::string& stem, const std::string& compiler, std::string_view cubin) {
  return fmt::format("\ntandem cubin 1 {} nvrtc {} {} bytes {}\n", stem, compiler, cubin.size(), digest(cubin));
}

// The first kernel that the source declares and the machine code lacks; empty if none. Names that a macro pastes
// together are not looked for.
std::string missing_kernel(const KernelBuild& build, std::string_view cubin) {
  for (const auto& kernel : kernels_of(build.source)) {
    if (kernel.name.find('#') != std::string::npos) continue;
    const std::string symbol = fmt::format("{0}{1}{0}", '\0', kernel.name);  // as a symbol table has it
    if (cubin.find(symbol) == std::string_view::npos) return kernel.name;
  }
  return {};
}

std::string read_file(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return in ? std::string(std::istreambuf_iterator<char>(in), {}) : std::string();
}

// Written beside its place and renamed, so that nobody sees half of it. False if that was refused.
bool write_file(const fs::path& file, std::string_view text) {
  static std::atomic<int> counter{0};
  const fs::path part = fmt::format("{}.part-{}-{}", file.string(), ::getpid(), counter++);
  std::error_code failed;
  fs::create_directories(file.parent_path(), failed);
  std::ofstream out(part, std::ios::binary);
  out << text;
  out.close();
  if (out) fs::rename(part, file, failed);
  if (out && !failed) return true;
  fs::remove(part, failed);
  return false;
}

// The entry's machine code; empty if the file is not what it says or not for this key.
std::string sound_entry(const fs::path& file, const std::string& stem, const std::string& compiler) {
  std::string text = read_file(file);
  const size_t end = text.size() < 2 ? std::string::npos : text.rfind('\n', text.size() - 2);
  if (end == std::string::npos) return {};
  const std::string_view cubin = std::string_view(text).substr(0, end);
  if (cubin.empty() || std::string_view(text).substr(end) != last_line(stem, compiler, cubin)) return {};
  text.resize(end);
  return text;
}

// Versions of compilers that made entries of this stem, newest name first.
std::vector<std::string> versions_in(const fs::path& folder, const std::string& stem) {
  const std::string prefix = fmt::format("{}-nvrtc", stem), suffix = ".cubin";
  std::vector<std::string> versions;
  std::error_code ignored;
  for (fs::directory_iterator at(folder, ignored), end; at != end; at.increment(ignored)) {
    const std::string name = at->path().filename().string();
    if (name.starts_with(prefix) && name.ends_with(suffix))
      versions.push_back(name.substr(prefix.size(), name.size() - prefix.size() - suffix.size()));
  }
  std::sort(versions.rbegin(), versions.rend());
  return versions;
}

}  // namespace

KernelCache::KernelCache(fs::path folder, std::vector<fs::path> shipped, std::shared_ptr<const KernelCompiler> compiler,
                         std::string no_compiler)
    : folder_(std::move(folder)),
      shipped_(std::move(shipped)),
      compiler_(std::move(compiler)),
      no_compiler_(std::move(no_compiler)) {}

bool KernelCache::read(const fs::path& folder, const KernelBuild& build, Cubin& cubin) const {
  if (folder.empty()) return false;
  const std::string stem = stem_of(build);
  const auto versions = compiler_ ? std::vector<std::string>{compiler_->version()} : versions_in(folder, stem);
  for (const auto& version : versions) {
    const fs::path file = folder / file_name(stem, version);
    std::string bytes = sound_entry(file, stem, version);
    if (bytes.empty()) continue;
    cubin.bytes = std::move(bytes);
    cubin.compiler = version;
    cubin.file = file;
    return true;
  }
  return false;
}

Cubin KernelCache::compile(const KernelBuild& build) const {
  if (compiler_ == nullptr)
    throw Error(ErrorCode::resource, build.source,
                fmt::format("not in the kernel cache {} for {}, and no compiler", folder_.string(), build.target),
                no_compiler_);
  const std::string stem = stem_of(build);
  const auto start = std::chrono::steady_clock::now();
  Compilation made = compiler_->compile(build.source, compile_options(build.target, build.defines));
  if (const std::string missing = made.ok ? missing_kernel(build, made.cubin) : ""; !missing.empty()) {
    made.ok = false;
    made.log = fmt::format("no kernel {} in the machine code\n{}", missing, made.log);
  }
  if (!made.ok) {
    const fs::path log = folder_ / fmt::format("{}.log", stem);
    const bool kept = !folder_.empty() && write_file(log, made.log);
    throw Error(ErrorCode::internal, build.source,
                fmt::format("does not compile for {} ({} {}): {}", build.target, compiler_->file(),
                            compiler_->version(), made.log.substr(0, made.log.find('\n'))),
                kept ? fmt::format("see {}", log.string()) : made.log);
  }
  Cubin cubin;
  cubin.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  cubin.bytes = std::move(made.cubin);
  cubin.log = std::move(made.log);
  cubin.compiler = compiler_->version();
  cubin.compiled = true;
  if (folder_.empty()) return cubin;
  cubin.file = folder_ / file_name(stem, cubin.compiler);
  if (!write_file(cubin.file, fmt::format("{}{}", cubin.bytes, last_line(stem, cubin.compiler, cubin.bytes)))) {
    log(LogLevel::warning, "kernel cache: {} could not be written; the next start compiles again", cubin.file.string());
    cubin.file.clear();
  }
  return cubin;
}

Cubin KernelCache::get(const KernelBuild& build) const {
  Cubin cubin;
  if (read(folder_, build, cubin)) return cubin;
  for (const auto& folder : shipped_)
    if (read(folder, build, cubin)) return cubin;
  return compile(build);
}

fs::path KernelCache::find(const KernelBuild& build) const {
  Cubin cubin;
  if (read(folder_, build, cubin)) return cubin.file;
  for (const auto& folder : shipped_)
    if (read(folder, build, cubin)) return cubin.file;
  return {};
}

std::vector<Error> KernelCache::get_all(std::span<const KernelBuild> builds, int threads,
                                        const std::function<void(const KernelBuild&, const Cubin&)>& done) const {
  std::atomic<size_t> next{0};
  std::mutex mutex;
  std::map<size_t, Error> failures;
  const auto one = [&](size_t i) {
    try {
      const Cubin cubin = get(builds[i]);
      const std::lock_guard lock(mutex);
      if (done) done(builds[i], cubin);
      return;
    } catch (const Error& e) {
      const std::lock_guard lock(mutex);
      failures.emplace(i, e);
    } catch (const std::exception& e) {
      const std::lock_guard lock(mutex);
      failures.emplace(i, Error(ErrorCode::internal, builds[i].source, e.what()));
    }
  };
  const auto work = [&] {
    for (size_t i = next++; i < builds.size(); i = next++) one(i);
  };
  if (threads <= 0) threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  std::vector<std::jthread> others;
  for (int i = 1; i < std::min(threads, static_cast<int>(builds.size())); ++i) others.emplace_back(work);
  work();
  others.clear();  // waits for them
  std::vector<Error> errors;
  for (auto& [index, error] : failures) errors.push_back(std::move(error));
  return errors;
}

fs::path default_kernel_cache() {
  const auto variable = [](const char* name) -> fs::path {
    const char* value = std::getenv(name);
    return value == nullptr ? fs::path() : fs::path(value);
  };
  if (const fs::path cache = variable("XDG_CACHE_HOME"); !cache.empty()) return cache / "tandem" / "kernels";
  if (const fs::path home = variable("HOME"); !home.empty()) return home / ".cache" / "tandem" / "kernels";
  return {};
}

std::vector<fs::path> shipped_kernels() {
  std::error_code failed;
  const fs::path program = fs::read_symlink("/proc/self/exe", failed);
  if (failed) return {};
  return {program.parent_path().parent_path() / "share" / "tandem" / "kernels"};
}

}  // namespace tandem::device
