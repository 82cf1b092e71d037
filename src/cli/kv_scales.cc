// Texts in, a table of scales out; one file for each model, as scales do not depend on the machine.
#include "cli/kv_scales.h"

#include <fmt/format.h>

#include <system_error>

#include "base/error.h"
#include "base/mapped_file.h"
#include "cli/drafting.h"
#include "cli/loaded_model.h"
#include "cli/progress_line.h"
#include "cli/standard_io.h"
#include "engine/step_runner.h"
#include "eval/kv_calibration.h"
#include "eval/quality_file.h"
#include "model/weights.h"
#include "text/tokenizer.h"

namespace tandem::cli {
namespace {

std::string key_of(const std::filesystem::path& folder, const model::Checkpoint& checkpoint) {
  return fmt::format("kv scales; model config {:08x}, {} bytes", config_crc(folder), checkpoint.total_bytes());
}

std::filesystem::path file_of(const std::filesystem::path& cache_dir, const std::string& key) {
  DraftingFlags flags;
  flags.cache_dir = cache_dir;
  return calibration_file(flags, key);
}

eval::Windows windows_of(const CalibrateKvOptions& options, const std::filesystem::path& folder,
                         const model::Shape& shape) {
  const std::string path = options.text.empty() ? (folder / "calibration_text.jsonl").string() : options.text;
  std::error_code error;
  if (options.text.empty() && !std::filesystem::exists(path, error))
    throw Error(ErrorCode::usage, "--calibration", "missing, and the model folder has no calibration_text.jsonl",
                "a text that the model is not evaluated on");
  const std::string name = path == "-" ? "standard input" : path;
  if (options.window > shape.max_position_embeddings)
    throw Error(ErrorCode::usage, "--window", std::to_string(options.window),
                fmt::format("at most max_position_embeddings {}", shape.max_position_embeddings));
  return eval::cut_windows(eval::parse_eval_texts(read_text(path), name), text::Tokenizer::load(folder),
                           shape.vocab_size, options.window);
}

void print_scales(const eval::KvCalibration& calibration, const std::filesystem::path& file) {
  std::string text =
      fmt::format("{} tokens; relative error of {} rows\n", calibration.tokens, calibration.sampled_rows);
  text += "  layer  max |latent|  scale       error    with a scale for each row\n";
  for (const eval::KvCalibration::Layer& layer : calibration.layers)
    text += fmt::format("  {:5}  {:12.6g}  {:<10g}  {:.5f}  {:.5f}\n", layer.layer, layer.absolute_max, layer.scale,
                        layer.error, layer.row_scale_error);
  write_out(text + fmt::format("stored in {}\n", file.string()));
}

}  // namespace

int run_calibrate_kv(const CalibrateKvOptions& options) {
  const auto folder = checked_folder(options.model.empty() ? default_model() : options.model);
  const model::Shape shape = model::read_shape(folder);
  const eval::Windows windows = windows_of(options, folder, shape);
  const model::Checkpoint checkpoint = model::Checkpoint::open(folder);
  const model::TextWeights weights =
      model::load_text_weights(checkpoint, shape, weight_options(options.nvfp4_nibble_order));
  const std::string key = key_of(folder, checkpoint);
  const auto file = file_of(options.cache_dir, key);
  std::error_code error;
  std::filesystem::create_directories(file.parent_path(), error);
  if (error)
    throw Error(ErrorCode::resource, file.parent_path().string(), error.message(), "a folder that can be made");
  eval::NewFile stored(file);
  ProgressLine line;
  const eval::KvCalibration calibration = eval::calibrate_kv(
      shape, weights, engine::threads_of_rank(checked_threads(options.threads), {}), windows,
      [&](size_t done) { line.show(fmt::format("{} of {} windows", done, windows.windows.size())); });
  const std::string json = eval::kv_calibration_json(calibration, key);
  stored.write(json);
  stored.put_in_place();
  if (options.json) {
    write_out(json);
  } else {
    print_scales(calibration, file);
  }
  return 0;
}

std::vector<float> stored_kv_scales(forward::CacheType type, const std::string& kv_scales,
                                    const std::filesystem::path& cache_dir, const std::filesystem::path& folder,
                                    const model::Checkpoint& checkpoint, const model::Shape& shape, bool with_mtp) {
  if (type != forward::CacheType::nvfp4) {
    if (kv_scales != "auto")
      throw Error(ErrorCode::usage, "--kv-scales", "given with another --kv-cache-dtype", "nvfp4");
    return {};
  }
  if (kv_scales == "none") return {};
  const std::string key = key_of(folder, checkpoint);
  const auto file = kv_scales == "auto" ? file_of(cache_dir, key) : std::filesystem::path(kv_scales);
  std::error_code error;
  if (kv_scales == "auto" && !std::filesystem::exists(file, error)) return {};
  const auto bytes = MappedFile::open(file);
  return eval::parse_kv_calibration(bytes.text(), file.string(), key, shape, with_mtp).scales();
}

}  // namespace tandem::cli
