// dlopen and the places to look in.
#include "device/shared_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "base/error.h"

namespace tandem::device {
namespace {

namespace fs = std::filesystem;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// The entries of a folder whose names begin so, in falling order: the newest version first.
std::vector<fs::path> entries(const fs::path& folder, const std::string& prefix) {
  std::vector<fs::path> found;
  std::error_code ignored;
  for (fs::directory_iterator at(folder, ignored), end; at != end; at.increment(ignored))
    if (at->path().filename().string().starts_with(prefix)) found.push_back(at->path());
  std::sort(found.rbegin(), found.rend());
  return found;
}

// The folder of the python3 that a shell would run, not followed through links: a virtual environment's is a link.
fs::path python_folder() {
  const std::string path = variable("PATH");
  for (size_t at = 0; at < path.size();) {
    const size_t end = std::min(path.find(':', at), path.size());
    fs::path folder = path.substr(at, end - at);
    std::error_code ignored;
    if (!folder.empty() && fs::exists(folder / "python3", ignored)) return folder;
    at = end + 1;
  }
  return {};
}

// Roots that have lib/python3*/site-packages below them.
std::vector<fs::path> python_roots() {
  std::vector<fs::path> roots;
  if (const auto environment = variable("VIRTUAL_ENV"); !environment.empty()) roots.emplace_back(environment);
  if (const auto folder = python_folder(); !folder.empty()) roots.push_back(folder.parent_path());
  std::error_code ignored;
  const fs::path program = fs::read_symlink("/proc/self/exe", ignored);
  if (!program.empty()) {
    // beside the program, and build/venv of the source tree for build/<preset>/tandem and the tests below it
    fs::path above = program.parent_path();
    for (int i = 0; i < 4 && above.has_relative_path(); ++i, above = above.parent_path())
      roots.push_back(above / "venv");
  }
  if (const auto home = variable("HOME"); !home.empty()) roots.push_back(fs::path(home) / ".local");
  roots.emplace_back("/usr/local");
  roots.emplace_back("/usr");
  return roots;
}

std::vector<fs::path> library_folders() {
  std::vector<fs::path> folders;
  for (const char* name : {"CUDA_HOME", "CUDA_PATH"})
    if (const auto root = variable(name); !root.empty())
      for (const char* sub : {"lib64", "lib"}) folders.push_back(fs::path(root) / sub);
  for (const char* parent : {"/usr/local", "/opt"})
    for (const auto& toolkit : entries(parent, "cuda"))
      for (const char* sub : {"lib64", "lib"}) folders.push_back(toolkit / sub);
  for (const auto& root : python_roots())
    for (const auto& python : entries(root / "lib", "python3"))
      for (const char* packages : {"site-packages", "dist-packages"})
        for (const auto& package : entries(python / packages / "nvidia", "")) folders.push_back(package / "lib");
  return folders;
}

}  // namespace

SharedLibrary::SharedLibrary(const std::vector<std::string>& files, const std::string& what, const std::string& remedy)
    : what_(what), remedy_(remedy) {
  std::string complaints;
  for (const auto& file : files) {
    handle_ = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle_ != nullptr) {
      file_ = file;
      return;
    }
    if (!complaints.empty()) complaints += "; ";
    const char* complaint = dlerror();
    complaints += complaint == nullptr ? file : complaint;
  }
  throw Error(ErrorCode::resource, what, fmt::format("not found ({})", complaints), remedy);
}

void* SharedLibrary::symbol(const char* name, bool required) const {
  void* address = dlsym(handle_, name);
  if (address == nullptr && required)
    throw Error(ErrorCode::resource, what_, fmt::format("{} has no function {}", file_, name), remedy_);
  return address;
}

std::vector<std::string> nvidia_library_files(const std::string& name, const std::vector<int>& majors) {
  const std::vector<fs::path> folders = library_folders();
  std::vector<std::string> files;
  for (const int major : majors) {
    const std::string versioned = fmt::format("{}.{}", name, major);
    files.push_back(versioned);
    for (const auto& folder : folders) {
      std::error_code ignored;
      const fs::path file = folder / versioned;
      if (fs::exists(file, ignored)) files.push_back(file.string());
    }
  }
  return files;
}

}  // namespace tandem::device
