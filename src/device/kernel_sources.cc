// Looks things up in the embedded text.
#include "device/kernel_sources.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace tandem::device {
namespace {

std::string_view trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\n");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\n") - first + 1);
}

// Calls use(line) for each line of a text.
template <typename Use>
void for_each_line(std::string_view text, const Use& use) {
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    use(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

// The path of a line #include "path"; empty for any other line.
std::string_view included_path(std::string_view line) {
  line = trimmed(line);
  if (!line.starts_with('#')) return {};
  line = trimmed(line.substr(1));
  if (!line.starts_with("include")) return {};
  line = trimmed(line.substr(7));
  if (!line.starts_with('"')) return {};
  return line.substr(1, line.find('"', 1) - 1);
}

}  // namespace

const KernelFile& kernel_file(std::string_view path) {
  for (const KernelFile& file : kernel_files())
    if (file.path == path) return file;
  throw Error(ErrorCode::internal, "kernel source", fmt::format("\"{}\"", path), "one that is embedded in the program");
}

std::vector<KernelFile> with_includes(std::string_view path) {
  std::vector<KernelFile> files = {kernel_file(path)};
  for (size_t i = 0; i < files.size(); ++i) {
    const std::string_view text = files[i].text;
    for_each_line(text, [&](std::string_view line) {
      const std::string_view included = included_path(line);
      if (included.empty()) return;
      const auto same = [&](const KernelFile& file) { return file.path == included; };
      if (std::none_of(files.begin(), files.end(), same)) files.push_back(kernel_file(included));
    });
  }
  return files;
}

std::vector<std::string> kernel_sources() {
  std::vector<std::string> paths;
  for (const KernelFile& file : kernel_files())
    if (file.path.ends_with(".cu")) paths.emplace_back(file.path);
  return paths;
}

std::vector<KernelDeclaration> kernels_of(std::string_view source) {
  constexpr std::string_view macro = "TANDEM_KERNEL(";
  const std::string_view text = kernel_file(source).text;
  std::vector<KernelDeclaration> kernels;
  for (size_t at = text.find(macro); at != std::string_view::npos; at = text.find(macro, at + 1)) {
    if (at != 0 && text[at - 1] != '\n') continue;  // a comment, or another macro's body
    const size_t begin = at + macro.size();
    const std::string_view words = text.substr(begin, text.find(')', begin) - begin);
    const size_t name = words.find(','), args = words.find(',', name + 1);
    if (name == std::string_view::npos || args == std::string_view::npos) continue;
    const std::string_view threads = words.substr(args + 1, words.find(',', args + 1) - args - 1);
    kernels.push_back({std::string(trimmed(words.substr(0, name))), std::string(trimmed(threads))});
  }
  return kernels;
}

}  // namespace tandem::device
