// NVIDIA's libraries, found at run time: the program builds and starts on machines that have none of them.
#pragma once

#include <string>
#include <vector>

namespace tandem::device {

// An opened library. It stays open for the life of the process: NVIDIA's libraries have threads of their own and do not
// take being unloaded.
class SharedLibrary {
 public:
  // Opens the first of `files` that the dynamic linker takes: plain names are searched where it always looks. Throws
  // Error(resource) that names `what`, every place that was tried, and `remedy`.
  SharedLibrary(const std::vector<std::string>& files, const std::string& what, const std::string& remedy);

  // The file that was opened, with its folder where the system tells.
  const std::string& file() const { return file_; }

  // Throws Error(resource) that names the function and the file.
  template <typename Function>
  void bind(Function*& function, const char* name) const {
    function = reinterpret_cast<Function*>(symbol(name, true));
  }
  // nullptr where the library is too old to have it.
  template <typename Function>
  void bind_optional(Function*& function, const char* name) const {
    function = reinterpret_cast<Function*>(symbol(name, false));
  }

 private:
  void* symbol(const char* name, bool required) const;

  void* handle_ = nullptr;
  std::string file_, what_, remedy_;
};

// Where a library of NVIDIA's lies, most likely first: the dynamic linker's own places, CUDA toolkits, and the pip
// wheels of Python environments: $VIRTUAL_ENV, the python3 on PATH, `venv` beside the program's folder, the user's and
// the system's packages. `name` is "libnvrtc.so", `majors` are the versions that we can use, best first.
std::vector<std::string> nvidia_library_files(const std::string& name, const std::vector<int>& majors);

}  // namespace tandem::device
