// The run-time compiler of kernels: source text to machine code for one GPU target.
#pragma once

#include <memory>
#include <string>
#include <vector>

namespace tandem::device {

struct Compilation {
  bool ok = false;
  std::string cubin;  // machine code as an ELF file
  std::string log;    // the compiler's words; may be empty
};

class KernelCompiler {
 public:
  virtual ~KernelCompiler() = default;
  virtual std::string version() const = 0;  // "13.0"
  virtual std::string file() const = 0;     // of the compiler's library
  // Targets that it knows as compute capabilities: 90, 100, …
  virtual std::vector<int> targets() const = 0;
  // `source` as a path of kernel_sources(). May be called by several threads. Throws Error(resource) only when the
  // compiler itself fails; a source that does not compile is an answer.
  virtual Compilation compile(const std::string& source, const std::vector<std::string>& options) const = 0;
};

// Options of a source for a target ("sm_90a") and defines ("NAME=VALUE"); part of a cache entry's key.
std::vector<std::string> compile_options(const std::string& target, const std::vector<std::string>& defines);

// "sm_90a" for 90: machine code for this very generation, with the instructions that only it has.
std::string target_name(int compute_capability);

// Every target that kernels are written for.
std::vector<int> kernel_targets();

// NVRTC. `file`: its library; empty: the newest that is found of versions 13 and 12, with no major version above
// `driver_major` (a driver loads no newer machine code). Throws Error(resource) that says where it was looked for and
// how to get it.
std::shared_ptr<const KernelCompiler> open_nvrtc(const std::string& file = {}, int driver_major = 99);

}  // namespace tandem::device
