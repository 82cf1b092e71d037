// Finds the shards of a model folder, maps them, and merges their tensors under the rule of the index file.
#include "model/checkpoint.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <system_error>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "base/mapped_file.h"
#include "model/json_reader.h"
#include "model/safetensors.h"

namespace tandem::model {
namespace fs = std::filesystem;
namespace {

constexpr size_t largest_index = 100'000'000;

// tensor name → file name, as the index says; empty without an index
using WeightMap = std::unordered_map<std::string, std::string>;

bool present(const fs::path& path) {
  std::error_code error;
  const bool found = fs::exists(path, error);
  if (error) throw Error(ErrorCode::resource, path.string(), error.message(), "a readable file");
  return found;
}

WeightMap read_index(const fs::path& path) {
  const MappedFile file = MappedFile::open(path);
  const std::string where = path.string();
  if (file.text().size() > largest_index) {
    throw Error(ErrorCode::bad_file, where, fmt::format("{} bytes", file.text().size()),
                fmt::format("at most {}", largest_index));
  }
  const JsonDocument document(file.text(), where);
  WeightMap map;
  for (auto& [tensor, shard] : document.root().text_members("weight_map")) {
    // A shard lies beside its index: a name with a folder in it could lead anywhere.
    if (shard.empty() || shard == "." || shard == ".." ||
        shard.find_first_of(std::string_view("/\\\0", 3)) != std::string::npos) {
      throw Error(ErrorCode::bad_file, where + ": weight_map." + printable(tensor), "found \"" + printable(shard) + '"',
                  "the name of a file in the same folder");
    }
    map.emplace(tensor, shard);
  }
  if (map.empty())
    throw Error(ErrorCode::bad_file, where + ": weight_map", "is empty", "tensor names with their files");
  return map;
}

std::vector<fs::path> safetensors_in(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  fs::directory_iterator entries(folder, error);
  if (error) throw Error(ErrorCode::resource, folder.string(), error.message(), "a readable folder");
  for (; entries != fs::directory_iterator(); entries.increment(error)) {
    if (entries->path().extension() == ".safetensors") files.push_back(entries->path());
    if (error) break;
  }
  if (error) throw Error(ErrorCode::resource, folder.string(), error.message(), "a readable folder");
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

struct Checkpoint::Files {
  fs::path folder;
  std::vector<MappedFile> files;
  std::vector<Tensor> tensors;  // sorted by name

  void add(const fs::path& path, const WeightMap& map);
  void sort();
  const Tensor* find(const std::string& name) const;
  void check_against(const WeightMap& map, const fs::path& index) const;
};

// A tensor that the index expects in another shard is left out; one that the index does not name is kept.
void Checkpoint::Files::add(const fs::path& path, const WeightMap& map) {
  const std::string name = path.filename().string();
  files.push_back(MappedFile::open(path));
  for (Tensor& tensor : parse_safetensors(files.back().bytes(), path.string(), name)) {
    const auto entry = map.find(tensor.name);
    if (entry == map.end() || entry->second == name) tensors.push_back(std::move(tensor));
  }
}

void Checkpoint::Files::sort() {
  std::sort(tensors.begin(), tensors.end(), [](const Tensor& a, const Tensor& b) { return a.name < b.name; });
  const auto twice = std::adjacent_find(tensors.begin(), tensors.end(),
                                        [](const Tensor& a, const Tensor& b) { return a.name == b.name; });
  if (twice != tensors.end()) {
    throw Error(ErrorCode::bad_file, "tensor " + printable(twice->name),
                fmt::format("stored in both {} and {}", twice->file, std::next(twice)->file), "one file");
  }
}

const Tensor* Checkpoint::Files::find(const std::string& name) const {
  const auto found =
      std::lower_bound(tensors.begin(), tensors.end(), name,
                       [](const Tensor& tensor, const std::string& wanted) { return tensor.name < wanted; });
  return found != tensors.end() && found->name == name ? &*found : nullptr;
}

void Checkpoint::Files::check_against(const WeightMap& map, const fs::path& index) const {
  for (const auto& [name, shard] : std::map(map.begin(), map.end())) {
    if (find(name) == nullptr) {
      throw Error(ErrorCode::bad_file, (index.parent_path() / shard).string() + ": tensor " + printable(name),
                  "missing", "the tensor, because " + index.filename().string() + " puts it there");
    }
  }
}

bool has_weights(const fs::path& folder) {
  std::error_code error;
  if (!fs::is_directory(folder, error)) return false;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name.ends_with(".safetensors") || name == "model.safetensors.index.json") return true;
  }
  return false;
}

Checkpoint Checkpoint::open(const fs::path& path) {
  auto files = std::make_unique<Files>();
  files->folder = fs::is_directory(path) ? path : path.parent_path();
  if (!present(path)) throw Error(ErrorCode::bad_file, path.string(), "does not exist", "a model folder");
  const fs::path index = path / "model.safetensors.index.json";
  if (!fs::is_directory(path)) {
    files->add(path, {});
  } else if (present(index)) {
    const WeightMap map = read_index(index);
    std::vector<std::string> shards;
    for (const auto& [name, shard] : map) shards.push_back(shard);
    std::sort(shards.begin(), shards.end());
    shards.erase(std::unique(shards.begin(), shards.end()), shards.end());
    for (const std::string& shard : shards) files->add(path / shard, map);
    files->sort();
    files->check_against(map, index);
  } else if (present(path / "model.safetensors")) {
    files->add(path / "model.safetensors", {});
  } else {
    const std::vector<fs::path> shards = safetensors_in(path);
    if (shards.empty()) throw Error(ErrorCode::bad_file, path.string(), "no weights", "*.safetensors files");
    for (const fs::path& shard : shards) files->add(shard, {});
  }
  files->sort();
  return Checkpoint(std::move(files));
}

Checkpoint::Checkpoint(std::unique_ptr<Files> files) : files_(std::move(files)) {}
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&&) noexcept = default;
Checkpoint::~Checkpoint() = default;

const Tensor* Checkpoint::find(const std::string& name) const { return files_->find(name); }

const Tensor& Checkpoint::at(const std::string& name) const {
  const Tensor* const tensor = find(name);
  if (tensor == nullptr)
    throw Error(ErrorCode::bad_file, "tensor " + printable(name), "missing", "it in the checkpoint");
  return *tensor;
}

std::vector<const Tensor*> Checkpoint::tensors() const {
  std::vector<const Tensor*> result;
  for (const Tensor& tensor : files_->tensors) result.push_back(&tensor);
  return result;
}

std::span<const Tensor> Checkpoint::starting_with(const std::string& prefix) const {
  const auto before = [](const Tensor& tensor, const std::string& wanted) { return tensor.name < wanted; };
  const auto first = std::lower_bound(files_->tensors.begin(), files_->tensors.end(), prefix, before);
  auto last = first;
  while (last != files_->tensors.end() && last->name.starts_with(prefix)) ++last;
  return {first, last};
}

const fs::path& Checkpoint::folder() const { return files_->folder; }

int64_t Checkpoint::total_bytes() const {
  return std::accumulate(
      files_->tensors.begin(), files_->tensors.end(), int64_t{0},
      [](int64_t sum, const Tensor& tensor) { return sum + static_cast<int64_t>(tensor.data.size()); });
}

int64_t Tensor::elements() const {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

}  // namespace tandem::model
