// The folder against its manifest, and some matrices against a new encoding.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "cli/calibration_text.h"
#include "cli/loaded_model.h"
#include "cli/progress_line.h"
#include "cli/quantize.h"
#include "cli/standard_io.h"
#include "device/threads.h"
#include "eval/encode_model.h"
#include "eval/manifest.h"

namespace tandem::cli {
namespace {

std::vector<eval::RecheckResult> recheck(const VerifyOptions& given, const std::filesystem::path& folder,
                                         const eval::Manifest& manifest) {
  if (given.model.empty()) throw Error(ErrorCode::usage, "--model", "missing", "the model that was encoded");
  eval::QuantizeOptions options;
  options.model = checked_folder(given.model);
  options.threads = checked_threads(given.threads);
  const int64_t window =
      eval::options_of(manifest.origin, (folder / eval::manifest_name).string()).exl3.calibration.size;
  CalibrationText text = given.calibration;
  if (text.files.empty() && manifest.origin.calibration_tokens == 0) text.files = {"none"};
  read_calibration(text, options.model, model::read_shape(options.model), window, options.exl3);
  ProgressLine line;
  return eval::recheck(folder, manifest, options, given.recheck, given.seed, [&](int64_t done, int64_t total) {
    line.show(fmt::format("{} of {} matrices encoded again", done, total));
  });
}

// What a run of tandem quantize keeps beside its folder until that is written.
std::string left_over(const std::filesystem::path& folder) {
  const auto whole = std::filesystem::absolute(folder).lexically_normal();
  std::string path = (whole.has_filename() ? whole : whole.parent_path()).string() + ".tmp";
  std::error_code error;
  return std::filesystem::is_directory(path, error) ? path : std::string();
}

}  // namespace

int run_verify(const VerifyOptions& given) {
  if (given.folder.empty()) throw Error(ErrorCode::usage, "MODEL", "missing", "a folder that tandem quantize wrote");
  if (given.recheck < 0) throw Error(ErrorCode::usage, "--recheck", std::to_string(given.recheck), "0 or more");
  const auto folder = checked_folder(given.folder);
  const eval::Manifest manifest = eval::read_manifest(folder);
  device::Threads threads(checked_threads(given.threads));
  std::vector<std::string> faults = eval::verify_folder(folder, manifest, threads);
  std::vector<eval::RecheckResult> rechecked;
  if (faults.empty() && given.recheck > 0) {
    rechecked = recheck(given, folder, manifest);
    for (const eval::RecheckResult& result : rechecked)
      if (!result.fault.empty()) faults.push_back(fmt::format("{}: {}", result.name, result.fault));
  }
  const std::string left = left_over(folder);
  if (given.json) {
    nlohmann::ordered_json json = {{"schema", "tandem.verify/1"}, {"folder", folder.string()}};
    json["files"] = manifest.files.size();
    json["matrices"] = manifest.tensors.size();
    json["rechecked"] = nlohmann::ordered_json::array();
    for (const eval::RecheckResult& result : rechecked) json["rechecked"].push_back(result.name);
    json["faults"] = faults;
    if (!left.empty()) json["left_over"] = left;
    write_out(json.dump() + "\n");
  } else {
    std::string text;
    for (const std::string& fault : faults) text += fault + "\n";
    text += fmt::format("{}: {} files, {} matrices in EXL3, {} encoded again: {}\n", folder.string(),
                        manifest.files.size(), manifest.tensors.size(), rechecked.size(),
                        faults.empty() ? "as written" : fmt::format("{} faults", faults.size()));
    if (!left.empty())
      text += fmt::format("{}: left by a run that was stopped; the same tandem quantize removes it\n", left);
    write_out(text);
  }
  return faults.empty() ? 0 : exit_status(ErrorCode::failed_check);
}

}  // namespace tandem::cli
