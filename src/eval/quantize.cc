// Plan, then shards one after the other; the folder gets its name at the end.
#include "eval/quantize.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/mapped_file.h"
#include "eval/quality_file.h"
#include "eval/quantize_weights.h"
#include "model/checkpoint.h"
#include "model/json_reader.h"
#include "model/shape.h"

namespace tandem::eval {
namespace fs = std::filesystem;
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* index_name = "model.safetensors.index.json";

[[noreturn]] void fail(const fs::path& path, const std::error_code& error, const std::string& expected) {
  throw Error(ErrorCode::resource, path.string(), error.message(), expected);
}

// A folder that is removed unless it is put in place.
class NewFolder {
 public:
  explicit NewFolder(const fs::path& path) : path_(path), written_(path.string() + ".tmp") {
    refuse_present(path_, "a new folder");
    refuse_present(written_, "no folder that an earlier run left; remove it");
    std::error_code error;
    if (!fs::create_directory(written_, error)) fail(written_, error, "a folder to write");
  }
  ~NewFolder() {
    std::error_code ignored;
    if (!is_in_place_) fs::remove_all(written_, ignored);
  }
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;

  const fs::path& written() const { return written_; }
  void put_in_place() {
    refuse_present(path_, "a new folder");
    std::error_code error;
    fs::rename(written_, path_, error);
    if (error) fail(path_, error, "a folder to write");
    is_in_place_ = true;
  }

 private:
  static void refuse_present(const fs::path& path, const char* expected) {
    std::error_code error;
    if (fs::symlink_status(path, error).type() != fs::file_type::not_found)
      throw Error(ErrorCode::usage, "--out", path.string() + " is there", expected);
  }

  fs::path path_, written_;
  bool is_in_place_ = false;
};

// Tokenizer, templates, texts: everything at the top but weights, what speaks of them, and hidden files.
std::vector<fs::path> other_files(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string(), extension = entry->path().extension().string();
    const bool is_weights = extension == ".safetensors" || extension == ".bin" || extension == ".pt" ||
                            extension == ".pth" || extension == ".gguf" || extension == ".onnx";
    if (is_weights || name.starts_with('.') || name == "config.json" || name == index_name) continue;
    if (entry->is_regular_file(error)) files.push_back(entry->path());
  }
  if (error) fail(folder, error, "a readable folder");
  std::sort(files.begin(), files.end());
  return files;
}

struct Shard {
  std::vector<const model::Tensor*> copied;
  std::vector<const ConvertedWeight*> converted;
};

// Shards by file name. Copied tensors come first, those with the widest elements before others, so that their data is
// aligned.
std::map<std::string, Shard> shards_of(const model::Checkpoint& checkpoint, const ConversionPlan& plan) {
  std::map<std::string, Shard> shards;
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

void write_file(const fs::path& path, const std::string& text) {
  NewFile file(path);
  file.write(text);
  file.put_in_place();
}

void write_index(const fs::path& folder, const std::map<std::string, Shard>& shards, int64_t bytes) {
  std::map<std::string, std::string> sorted;
  for (const auto& [name, shard] : shards)
    for (const model::TensorHeader& tensor : headers_of(shard)) sorted.emplace(tensor.name, name);
  const Json index = {{"metadata", {{"total_size", bytes}}}, {"weight_map", sorted}};
  write_file(folder / index_name, index.dump(1) + "\n");
}

// What other programs go by; this one goes by the tensors. For FP8 alone the published checkpoint's keys, with NVFP4
// ModelOpt's.
Json quantization_config(const QuantizeOptions& options, const ConversionPlan& plan) {
  Json config;
  const bool is_nvfp4 = options.experts == Coding::nvfp4;
  const bool is_fp8 = options.experts == Coding::fp8 || options.dense == Coding::fp8;
  config["quant_method"] = is_nvfp4 ? "modelopt" : "fp8";
  if (is_nvfp4) {
    config["quant_algo"] = is_fp8 ? "MIXED_PRECISION" : "NVFP4";
    config["group_size"] = 16;
  } else {
    config["fmt"] = "e4m3";
    config["activation_scheme"] = "dynamic";
  }
  if (is_fp8) config["weight_block_size"] = {128, 128};
  if (is_nvfp4 && is_fp8) {
    Json& layers = config["quantized_layers"] = Json::object();
    for (const auto& [module, coding] : plan.converted_modules)
      layers[module] = {{"quant_algo", coding == Coding::nvfp4 ? "NVFP4" : "FP8_PB_WO"}};
  }
  config[is_nvfp4 ? "ignore" : "modules_to_not_convert"] = plan.kept_modules;
  return config;
}

Json read_config(const fs::path& path) {
  const MappedFile file = MappedFile::open(path);
  const std::string text(file.text());
  const model::JsonDocument checked(text, path.string());  // bounds the nesting, which the parser below does not
  if (checked.root().has("quantization_config"))
    checked.root().refuse("quantization_config", "none: a checkpoint in BF16 or F32", "present");
  return Json::parse(text);
}

QuantizeReport make_report(const QuantizeOptions& options, const ConversionPlan& plan,
                           const std::map<std::string, Shard>& shards, int64_t source_bytes) {
  QuantizeReport report;
  report.model = options.model.string();
  report.out = options.out.string();
  report.experts = options.experts;
  report.dense = options.dense;
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

}  // namespace

std::string_view name_of(Coding coding) {
  return coding == Coding::fp8 ? "fp8" : coding == Coding::nvfp4 ? "nvfp4" : "keep";
}

QuantizeReport quantize(const QuantizeOptions& options, const QuantizeProgress& progress) {
  fs::path out = fs::absolute(options.out).lexically_normal();
  if (!out.has_filename()) out = out.parent_path();
  const model::Shape shape = model::read_shape(options.model);
  Json config = read_config(options.model / "config.json");
  const model::Checkpoint checkpoint = model::Checkpoint::open(options.model);
  const ConversionPlan plan = plan_conversion(checkpoint, shape, options.experts, options.dense);
  const auto shards = shards_of(checkpoint, plan);
  QuantizeReport report = make_report(options, plan, shards, checkpoint.total_bytes());
  const std::vector<fs::path> files = other_files(options.model);

  device::Threads threads(options.threads);
  NewFolder folder(out);
  check_space(folder.written(), report.bytes, files);
  int64_t bytes_read = 0;
  const auto advance = [&](int64_t bytes) { progress(bytes_read += bytes, report.source_bytes); };
  for (const auto& [name, shard] : shards) {
    NewFile file(folder.written() / name);
    file.write(model::safetensors_header(headers_of(shard)));
    for (const model::Tensor* tensor : shard.copied) {
      file.write(tensor->data);
      advance(std::ssize(tensor->data));
    }
    encode_in_order(threads, shard.converted, [&](const ConvertedWeight& weight, std::span<const std::byte> bytes) {
      file.write(bytes);
      advance(weight.source_bytes());
    });
    file.put_in_place();
  }
  write_index(folder.written(), shards, report.bytes);
  config["quantization_config"] = quantization_config(options, plan);
  write_file(folder.written() / "config.json", config.dump(2) + "\n");
  for (const fs::path& file : files) {
    std::error_code error;
    fs::copy_file(file, folder.written() / file.filename(), error);
    if (error) fail(folder.written() / file.filename(), error, "a copy of " + file.filename().string());
  }
  folder.put_in_place();
  return report;
}

}  // namespace tandem::eval
