// A walk that takes most matrices from the folder and encodes a few anew.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "base/error.h"
#include "eval/bit_allocation.h"
#include "eval/encode_model.h"
#include "eval/model_walk.h"

namespace tandem::eval {
namespace {

class RecheckStore final : public WalkStore {
 public:
  RecheckStore(const model::Checkpoint& made, std::set<std::string> chosen, const QuantizeProgress& progress)
      : made_(made), chosen_(std::move(chosen)), total_(std::ssize(chosen_)), progress_(progress) {}

  bool is_wanted(const ConvertedWeight& weight) override { return chosen_.contains(weight.module()); }
  FinishedTensor found(const ConvertedWeight& weight) override {
    FinishedTensor stored;
    for (const model::TensorHeader& header : weight.tensors) {
      const model::Tensor& tensor = made_.at(header.name);
      if (std::ssize(tensor.data) != header.bytes())
        throw Error(ErrorCode::bad_file, "tensor " + header.name, fmt::format("{} bytes", tensor.data.size()),
                    fmt::format("{} at this width", header.bytes()));
      stored.bytes.insert(stored.bytes.end(), tensor.data.begin(), tensor.data.end());
    }
    stored.data = stored.bytes;
    return stored;
  }
  void encoded(const ConvertedWeight& weight, const EncodedTensor& /*facts*/,
               const std::vector<std::byte>& data) override {
    RecheckResult result{weight.module(), {}};
    size_t at = 0;
    for (const model::TensorHeader& header : weight.tensors) {
      const auto stored = made_.at(header.name).data;
      const auto size = static_cast<size_t>(header.bytes());
      const std::span<const std::byte> made = std::span(data).subspan(at, size);
      at += size;
      const auto [here, there] = std::mismatch(made.begin(), made.end(), stored.begin(), stored.end());
      if (here != made.end() || there != stored.end()) {
        result.fault = fmt::format("{} differs at byte {}", header.name, here - made.begin());
        break;
      }
    }
    results.push_back(std::move(result));
    chosen_.erase(weight.module());
    progress_(std::ssize(results), total_);
  }
  bool goes_on() override { return !chosen_.empty(); }

  std::vector<RecheckResult> results;

 private:
  const model::Checkpoint& made_;
  std::set<std::string> chosen_;
  int64_t total_;
  const QuantizeProgress& progress_;
};

// Options with the settings of the manifest, and the text and folder that are given.
QuantizeOptions settings_of(const std::filesystem::path& folder, const Manifest& manifest,
                            const QuantizeOptions& options) {
  QuantizeOptions settings = options_of(manifest.origin, (folder / manifest_name).string());
  settings.model = options.model;
  settings.threads = options.threads;
  settings.exl3.calibration = options.exl3.calibration;
  settings.exl3.calibration_files = options.exl3.calibration_files;
  settings.exl3.encode = options.exl3.encode;
  return settings;
}

}  // namespace

void take_widths(const Manifest& manifest, const std::string& where, const Exl3Options& options, ConversionPlan& plan) {
  std::map<std::string, int> bits;
  for (const EncodedTensor& tensor : manifest.tensors) bits[tensor.name] = tensor.bits;
  for (auto& [name, converted] : plan.converted)
    for (ConvertedWeight& weight : converted) {
      if (weight.coding != Coding::exl3) continue;
      const auto found = bits.find(weight.module());
      if (found == bits.end())
        throw Error(ErrorCode::bad_file, where, weight.module() + " is missing", "every matrix in EXL3");
      set_bits(weight, found->second, options);
    }
}

std::vector<RecheckResult> recheck(const std::filesystem::path& folder, const Manifest& manifest,
                                   const QuantizeOptions& options, int64_t count, uint64_t seed,
                                   const QuantizeProgress& progress) {
  const QuantizeOptions settings = settings_of(folder, manifest, options);
  device::Threads threads(settings.threads);
  EncodingOrigin origin = origin_of(settings, threads);
  origin.settings = manifest.origin.settings;
  const std::string differs = difference(manifest.origin, origin);
  if (!differs.empty())
    throw Error(ErrorCode::failed_check, folder.string(), differs + " is another than when it was made",
                "the same model and calibration text");
  const model::Shape shape = model::read_shape(settings.model);
  const model::Checkpoint source = model::Checkpoint::open(settings.model), made = model::Checkpoint::open(folder);
  const model::TextWeights weights = model::load_text_weights(source, shape);
  ConversionPlan plan = plan_conversion(source, shape, settings);
  take_widths(manifest, (folder / manifest_name).string(), settings.exl3, plan);
  std::vector<std::string> names;
  for (const auto& [name, converted] : plan.converted)
    for (const ConvertedWeight& weight : converted)
      if (weight.coding == Coding::exl3) names.push_back(weight.module());
  std::set<std::string> chosen;
  std::shuffle(names.begin(), names.end(), std::mt19937_64(seed));
  chosen.insert(names.begin(), names.begin() + std::min<int64_t>(count, std::ssize(names)));
  RecheckStore store(made, std::move(chosen), progress);
  ModelWalk(settings, shape, weights, plan, std::filesystem::temp_directory_path(), threads).run(store);
  return std::move(store.results);
}

}  // namespace tandem::eval
