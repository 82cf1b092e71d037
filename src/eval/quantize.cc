// Plan, then shards one after the other; the folder gets its name at the end.
#include "eval/quantize.h"

#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "eval/encode_model.h"
#include "eval/model_folder.h"
#include "eval/quality_file.h"
#include "eval/quantize_weights.h"
#include "model/checkpoint.h"
#include "model/shape.h"

namespace tandem::eval {
namespace fs = std::filesystem;
namespace {

using Json = nlohmann::ordered_json;

// A folder that is removed unless it is put in place.
class NewFolder {
 public:
  explicit NewFolder(const fs::path& path) : path_(path), written_(path.string() + ".tmp") {
    refuse_present(path_, "a new folder");
    refuse_present(written_, "no folder that an earlier run left; remove it");
    std::error_code error;
    if (!fs::create_directory(written_, error)) fail_to_write(written_, error, "a folder to write");
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
    if (error) fail_to_write(path_, error, "a folder to write");
    is_in_place_ = true;
  }

 private:
  fs::path path_, written_;
  bool is_in_place_ = false;
};

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

}  // namespace

std::string_view name_of(Coding coding) {
  switch (coding) {
    case Coding::keep: return "keep";
    case Coding::fp8: return "fp8";
    case Coding::nvfp4: return "nvfp4";
    case Coding::exl3: return "exl3";
  }
  return {};
}

std::string_view name_of(Exl3Layout layout) { return layout == Exl3Layout::tr3 ? "tr3" : "exl3"; }

QuantizeReport quantize(const QuantizeOptions& options, const QuantizeProgress& progress) {
  if (options.has_exl3()) return encode_model(options, progress);
  const fs::path out = folder_to_write(options.out);
  const model::Shape shape = model::read_shape(options.model);
  Json config = read_plain_config(options.model / "config.json");
  const model::Checkpoint checkpoint = model::Checkpoint::open(options.model);
  const ConversionPlan plan = plan_conversion(checkpoint, shape, options);
  const Shards shards = shards_of(checkpoint, plan);
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
  write_text(folder.written() / "config.json", config.dump(2) + "\n");
  copy_files(files, folder.written());
  folder.put_in_place();
  return report;
}

}  // namespace tandem::eval
