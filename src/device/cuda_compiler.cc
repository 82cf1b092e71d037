// NVRTC through declarations of our own.
#include "device/cuda_compiler.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "device/kernel_sources.h"
#include "device/shared_library.h"

namespace tandem::device {
namespace {

// The part of nvrtc.h that is used; the same in CUDA 12 and 13.
using NvrtcResult = int;
using NvrtcProgram = void*;

struct NvrtcFunctions {
  NvrtcResult (*version)(int* major, int* minor) = nullptr;
  const char* (*error_string)(NvrtcResult) = nullptr;
  NvrtcResult (*target_count)(int* count) = nullptr;
  NvrtcResult (*targets)(int* targets) = nullptr;
  NvrtcResult (*create)(NvrtcProgram*, const char* text, const char* name, int headers, const char* const* texts,
                        const char* const* names) = nullptr;
  NvrtcResult (*destroy)(NvrtcProgram*) = nullptr;
  NvrtcResult (*compile)(NvrtcProgram, int options, const char* const* option) = nullptr;
  NvrtcResult (*cubin_size)(NvrtcProgram, size_t* size) = nullptr;
  NvrtcResult (*cubin)(NvrtcProgram, char* bytes) = nullptr;
  NvrtcResult (*log_size)(NvrtcProgram, size_t* size) = nullptr;
  NvrtcResult (*log)(NvrtcProgram, char* text) = nullptr;
};

constexpr NvrtcResult nvrtc_ok = 0, nvrtc_compilation_failed = 6;
constexpr const char* remedy =
    "NVRTC of CUDA 12 or 13: a CUDA toolkit, or \"pip install nvidia-cuda-nvrtc\" in the Python environment that is "
    "active";

class Nvrtc final : public KernelCompiler {
 public:
  explicit Nvrtc(const SharedLibrary& library) : file_(library.file()) {
    library.bind(functions_.version, "nvrtcVersion");
    library.bind(functions_.error_string, "nvrtcGetErrorString");
    library.bind(functions_.target_count, "nvrtcGetNumSupportedArchs");
    library.bind(functions_.targets, "nvrtcGetSupportedArchs");
    library.bind(functions_.create, "nvrtcCreateProgram");
    library.bind(functions_.destroy, "nvrtcDestroyProgram");
    library.bind(functions_.compile, "nvrtcCompileProgram");
    library.bind(functions_.cubin_size, "nvrtcGetCUBINSize");
    library.bind(functions_.cubin, "nvrtcGetCUBIN");
    library.bind(functions_.log_size, "nvrtcGetProgramLogSize");
    library.bind(functions_.log, "nvrtcGetProgramLog");
    int major = 0, minor = 0;
    check(functions_.version(&major, &minor), "nvrtcVersion");
    version_ = fmt::format("{}.{}", major, minor);
    int count = 0;
    check(functions_.target_count(&count), "nvrtcGetNumSupportedArchs");
    targets_.resize(static_cast<size_t>(count));
    if (count > 0) check(functions_.targets(targets_.data()), "nvrtcGetSupportedArchs");
  }

  std::string version() const override { return version_; }
  std::string file() const override { return file_; }
  std::vector<int> targets() const override { return targets_; }

  Compilation compile(const std::string& source, const std::vector<std::string>& options) const override {
    std::vector<std::string> texts, names;  // with a zero at the end
    for (const KernelFile& file : with_includes(source)) {
      texts.emplace_back(file.text);
      names.emplace_back(file.path);
    }
    std::vector<const char*> header_texts, header_names, words;
    for (size_t i = 1; i < texts.size(); ++i) {
      header_texts.push_back(texts[i].c_str());
      header_names.push_back(names[i].c_str());
    }
    for (const auto& option : options) words.push_back(option.c_str());

    Program program{functions_};
    check(functions_.create(&program.handle, texts[0].c_str(), names[0].c_str(), static_cast<int>(header_texts.size()),
                            header_texts.data(), header_names.data()),
          "nvrtcCreateProgram");
    const NvrtcResult result = functions_.compile(program.handle, static_cast<int>(words.size()), words.data());
    Compilation answer;
    answer.log = text_of(program.handle, functions_.log_size, functions_.log);
    while (!answer.log.empty() && (answer.log.back() == '\0' || answer.log.back() == '\n')) answer.log.pop_back();
    if (result == nvrtc_compilation_failed) return answer;
    if (result != nvrtc_ok && answer.log.empty()) check(result, "nvrtcCompileProgram");
    if (result != nvrtc_ok) {  // a refused option, for one
      answer.log = fmt::format("{}\n{}", functions_.error_string(result), answer.log);
      return answer;
    }
    answer.cubin = text_of(program.handle, functions_.cubin_size, functions_.cubin);
    answer.ok = true;
    return answer;
  }

 private:
  struct Program {
    const NvrtcFunctions& functions;
    NvrtcProgram handle = nullptr;
    ~Program() {
      if (handle != nullptr) functions.destroy(&handle);
    }
  };

  void check(NvrtcResult result, const char* call) const {
    if (result == nvrtc_ok) return;
    throw Error(ErrorCode::resource, fmt::format("NVRTC ({})", file_),
                fmt::format("{} failed: {}", call, functions_.error_string(result)), remedy);
  }
  template <typename Size, typename Get>
  std::string text_of(NvrtcProgram program, Size size_of, Get get) const {
    size_t size = 0;
    check(size_of(program, &size), "asking for the size of a result");
    std::string text(size, '\0');
    if (size > 0) check(get(program, text.data()), "asking for a result");
    return text;
  }

  std::string file_, version_;
  std::vector<int> targets_;
  NvrtcFunctions functions_;
};

}  // namespace

std::vector<std::string> compile_options(const std::string& target, const std::vector<std::string>& defines) {
  // --fmad is the same for every kernel, or two kernels would round the same sum differently.
  std::vector<std::string> options = {fmt::format("--gpu-architecture={}", target), "--std=c++20", "--fmad=true"};
  for (const auto& define : defines) options.push_back(fmt::format("--define-macro={}", define));
  std::sort(options.begin() + 3, options.end());
  return options;
}

std::string target_name(int compute_capability) { return fmt::format("sm_{}a", compute_capability); }

std::vector<int> kernel_targets() { return {90, 100, 103, 110, 120, 121}; }

std::shared_ptr<const KernelCompiler> open_nvrtc(const std::string& file, int driver_major) {
  if (!file.empty()) return std::make_shared<Nvrtc>(SharedLibrary({file}, "NVRTC", remedy));
  std::vector<int> majors;
  for (const int major : {13, 12})
    if (major <= driver_major) majors.push_back(major);
  return std::make_shared<Nvrtc>(SharedLibrary(nvidia_library_files("libnvrtc.so", majors), "NVRTC", remedy));
}

}  // namespace tandem::device
