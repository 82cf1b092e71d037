// Everything is written as it is read: the same folder for the same model.
#include "eval/model_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/mapped_file.h"
#include "eval/quality_file.h"
#include "model/json_reader.h"

namespace tandem::eval {
namespace fs = std::filesystem;
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* index_name = "model.safetensors.index.json";

}  // namespace

void fail_to_write(const fs::path& path, const std::error_code& error, const std::string& expected) {
  throw Error(ErrorCode::resource, path.string(), error.message(), expected);
}

fs::path folder_to_write(const fs::path& out) {
  fs::path path = fs::absolute(out).lexically_normal();
  return path.has_filename() ? path : path.parent_path();
}

void refuse_present(const fs::path& path, const char* expected) {
  std::error_code error;
  if (fs::symlink_status(path, error).type() != fs::file_type::not_found)
    throw Error(ErrorCode::usage, "--out", path.string() + " is there", expected);
}

Json read_plain_config(const fs::path& path) {
  const MappedFile file = MappedFile::open(path);
  const std::string text(file.text());
  const model::JsonDocument checked(text, path.string());  // bounds the nesting, which the parser below does not
  if (checked.root().has("quantization_config"))
    checked.root().refuse("quantization_config", "none: a checkpoint in BF16 or F32", "present");
  return Json::parse(text);
}

std::vector<fs::path> other_files(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string(), extension = entry->path().extension().string();
    const bool is_weights = extension == ".safetensors" || extension == ".bin" || extension == ".pt" ||
                            extension == ".pth" || extension == ".gguf" || extension == ".onnx";
    if (is_weights || name.starts_with('.') || name == "config.json" || name == index_name ||
        name == "quantization_config.json" || name == "manifest.json")
      continue;
    if (entry->is_regular_file(error)) files.push_back(entry->path());
  }
  if (error) fail_to_write(folder, error, "a readable folder");
  std::sort(files.begin(), files.end());
  return files;
}

Shards shards_of(const model::Checkpoint& checkpoint, const ConversionPlan& plan) {
  Shards shards;
  for (const model::Tensor* tensor : checkpoint.tensors()) {
    Shard& shard = shards[tensor->file];
    const auto found = plan.converted.find(tensor->name);
    if (found == plan.converted.end()) {
      shard.copied.push_back(tensor);
    } else {
      for (const ConvertedWeight& weight : found->second) shard.converted.push_back(&weight);
    }
  }
  for (auto& [name, shard] : shards)
    std::stable_sort(shard.copied.begin(), shard.copied.end(), [](const model::Tensor* a, const model::Tensor* b) {
      return model::dtype_bytes(a->dtype) > model::dtype_bytes(b->dtype);
    });
  return shards;
}

std::vector<model::TensorHeader> headers_of(const Shard& shard) {
  std::vector<model::TensorHeader> headers;
  for (const model::Tensor* tensor : shard.copied) headers.push_back({tensor->name, tensor->dtype, tensor->shape});
  for (const ConvertedWeight* weight : shard.converted)
    headers.insert(headers.end(), weight->tensors.begin(), weight->tensors.end());
  return headers;
}

QuantizeReport make_report(const QuantizeOptions& options, const ConversionPlan& plan, const Shards& shards,
                           int64_t source_bytes) {
  QuantizeReport report;
  report.model = options.model.string();
  report.out = options.out.string();
  report.experts = options.experts;
  report.dense = options.dense;
  report.head = options.head;
  report.source_bytes = source_bytes;
  report.shards = std::ssize(shards);
  std::map<model::Component, QuantizeRow> rows;
  for (const auto& [name, weights] : plan.converted)
    for (const ConvertedWeight& weight : weights) {
      QuantizeRow& row = rows[weight.component];
      row.component = weight.component;
      row.coding = weight.coding;
      row.weights += 1;
      row.parameters += weight.parameters();
      row.source_bytes += weight.source_bytes();
      row.bytes += weight.bytes();
    }
  for (const auto& [component, row] : rows) report.rows.push_back(row);
  for (const auto& [name, shard] : shards) {
    report.copied_tensors += std::ssize(shard.copied);
    for (const model::Tensor* tensor : shard.copied) report.copied_bytes += std::ssize(tensor->data);
    for (const model::TensorHeader& tensor : headers_of(shard)) report.bytes += tensor.bytes();
  }
  return report;
}

void check_space(const fs::path& folder, int64_t bytes, const std::vector<fs::path>& files) {
  constexpr int64_t for_headers = int64_t{16} << 20;
  std::error_code error;
  auto needed = static_cast<uintmax_t>(bytes + for_headers);
  for (const fs::path& file : files) needed += fs::file_size(file, error);
  const fs::space_info space = fs::space(folder, error);
  constexpr uintmax_t mib = 1 << 20;
  if (!error && space.available < needed)
    throw Error(ErrorCode::resource, folder.string(), fmt::format("{} MiB free on its disk", space.available / mib),
                fmt::format("{} MiB for the converted model", needed / mib + 1));
}

void write_text(const fs::path& path, const std::string& text) {
  NewFile file(path);
  file.write(text);
  file.put_in_place();
}

void write_index(const fs::path& folder, const Shards& shards, int64_t bytes) {
  std::map<std::string, std::string> sorted;
  for (const auto& [name, shard] : shards)
    for (const model::TensorHeader& tensor : headers_of(shard)) sorted.emplace(tensor.name, name);
  const Json index = {{"metadata", {{"total_size", bytes}}}, {"weight_map", sorted}};
  write_text(folder / index_name, index.dump(1) + "\n");
}

void copy_files(const std::vector<fs::path>& files, const fs::path& folder) {
  for (const fs::path& file : files) {
    std::error_code error;
    fs::copy_file(file, folder / file.filename(), error);
    if (error) fail_to_write(folder / file.filename(), error, "a copy of " + file.filename().string());
  }
}

void flush(const fs::path& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const bool is_flushed =
      file >= 0 && (::fsync(file) == 0 || errno == EINVAL);  // some file systems have none of folders
  const std::error_code error(errno, std::generic_category());
  if (file >= 0) ::close(file);
  if (!is_flushed) fail_to_write(path, error, "a disk that takes it");
}

void flush_folder(const fs::path& folder) {
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error))
    flush(entry->path());
  if (error) fail_to_write(folder, error, "a readable folder");
  flush(folder);
}

}  // namespace tandem::eval
