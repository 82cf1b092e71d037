// The kernel sources of src/**/*.cu and the headers that they include, as text in the program: NVRTC compiles them
// where the program runs (design.md 6).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::device {

struct KernelFile {
  std::string_view path;  // under src/, as in #include "…"
  std::string_view text;
};

// Every embedded file, by path. Defined in a file that cmake/embed_kernels.cmake writes.
std::span<const KernelFile> kernel_files();

// Throws Error(internal) if there is no such file.
const KernelFile& kernel_file(std::string_view path);

// The file itself, then every file that it includes, directly or not, each once.
std::vector<KernelFile> with_includes(std::string_view path);

// The paths of the .cu files, in order.
std::vector<std::string> kernel_sources();

struct KernelDeclaration {
  std::string name;
  std::string max_threads;  // of a block, as written in the source: a number or a constant's name
};

// What a source declares with TANDEM_KERNEL(name, Args, max_threads …), in its order.
std::vector<KernelDeclaration> kernels_of(std::string_view source);

}  // namespace tandem::device
