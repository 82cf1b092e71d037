// Compiled kernels on disk. An entry's key is everything that its machine code depends on: the source with all headers
// that it includes, options and defines, the target, the compiler's version. Byte layout: docs/internals/kernels.md.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "device/cuda_compiler.h"

namespace tandem::device {

// One source for one target; its cubin holds all its kernels.
struct KernelBuild {
  std::string source;  // of kernel_sources()
  std::string target;  // "sm_90a"
  std::vector<std::string> defines;
  bool operator==(const KernelBuild&) const = default;
};

struct Cubin {
  std::string bytes;
  std::string compiler;        // version of the NVRTC that made it
  std::filesystem::path file;  // the entry
  bool compiled = false;       // by this call
  double seconds = 0;          // that it took, if so
  std::string log;             // the compiler's words, if so
};

class KernelCache {
 public:
  // folder: where entries are read and written; made when needed, and one that cannot be written only costs a
  // compilation the next time. shipped: folders that are only read. compiler: nullptr where there is none; then any
  // version's entries are taken, and what is missing is an error that ends with `no_compiler`.
  KernelCache(std::filesystem::path folder, std::vector<std::filesystem::path> shipped,
              std::shared_ptr<const KernelCompiler> compiler, std::string no_compiler = {});

  // From the disk, or compiled and written. A damaged entry, or one that belongs to another key, is made anew. Throws
  // Error(internal) for a source that does not compile, or without a kernel that it declares (the compiler's log then
  // lies in the folder, beside the entries),
  // Error(resource) where there is no compiler. May be called by several threads.
  Cubin get(const KernelBuild& build) const;

  // get() of all of them, several at a time, by at most `threads` threads (0: one for each core). `done` is called once
  // for each that is had, by one thread at a time, and may be empty. Returns what get() threw, in the order of
  // `builds`.
  std::vector<Error> get_all(std::span<const KernelBuild> builds, int threads,
                             const std::function<void(const KernelBuild&, const Cubin&)>& done) const;

  // The entry's file if it is there and sound, else an empty path; compiles nothing.
  std::filesystem::path find(const KernelBuild& build) const;

  const std::filesystem::path& folder() const { return folder_; }
  const KernelCompiler* compiler() const { return compiler_.get(); }

 private:
  bool read(const std::filesystem::path& folder, const KernelBuild& build, Cubin& cubin) const;
  Cubin compile(const KernelBuild& build) const;

  std::filesystem::path folder_;
  std::vector<std::filesystem::path> shipped_;
  std::shared_ptr<const KernelCompiler> compiler_;
  std::string no_compiler_;
};

// $XDG_CACHE_HOME/tandem/kernels or ~/.cache/tandem/kernels; empty when neither variable is set.
std::filesystem::path default_kernel_cache();
// ../share/tandem/kernels beside the program's folder, where a release keeps kernels built ahead of time.
std::vector<std::filesystem::path> shipped_kernels();

}  // namespace tandem::device
