// Run folder, walk, shards, manifest.
#include "eval/encode_model.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/mapped_file.h"
#include "eval/bit_allocation.h"
#include "eval/exl3_config.h"
#include "eval/finished_tensors.h"
#include "eval/model_folder.h"
#include "eval/model_walk.h"
#include "eval/quality_file.h"

namespace tandem::eval {
namespace fs = std::filesystem;
namespace {

constexpr const char* run_name = "run.json";

// Held by one process at a time; the system lets go of it when that ends, however it ends.
class FolderLock {
 public:
  explicit FolderLock(const fs::path& path) : folder_(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    if (folder_ >= 0 && ::flock(folder_, LOCK_EX | LOCK_NB) == 0) return;
    const int reason = errno;
    if (folder_ >= 0) ::close(folder_);
    throw Error(ErrorCode::usage, path.string(),
                reason == EWOULDBLOCK ? "another run is writing it" : std::strerror(reason), "one run at a time");
  }
  ~FolderLock() { ::close(folder_); }
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int folder_;
};

fs::path made_folder(const fs::path& path) {
  std::error_code error;
  fs::create_directory(path, error);
  if (error) fail_to_write(path, error, "a folder to write");
  return path;
}

// "<out>.tmp" of one run at a time, kept when the run fails.
class RunFolder {
 public:
  RunFolder(const fs::path& out, const EncodingOrigin& origin)
      : path_(made_folder(out.string() + ".tmp")), lock_(path_) {
    const fs::path run = path_ / run_name;
    // A run that was killed before it had written run.json has left nothing else.
    if (is_without_work(path_)) {
      write_text(run, origin_json(origin));
      return;
    }
    std::error_code error;
    if (!fs::exists(run, error)) refuse_present(path_, "no folder that an earlier run left; remove it");
    check_same(run, origin);
  }

  const fs::path& path() const { return path_; }
  // run.json last: what is left of a removal that was stopped still says whose it is.
  void remove() const {
    std::error_code ignored;
    for (fs::directory_iterator entry(path_, ignored), end; !ignored && entry != end; entry.increment(ignored))
      if (entry->path().filename() != run_name) fs::remove_all(entry->path(), ignored);
    fs::remove_all(path_, ignored);
  }

 private:
  static bool is_without_work(const fs::path& path) {
    std::error_code error;
    for (fs::directory_iterator entry(path, error), end; !error && entry != end; entry.increment(error))
      if (entry->path().extension() != ".new") return false;
    return !error;
  }
  static void check_same(const fs::path& run, const EncodingOrigin& origin) {
    const MappedFile file = MappedFile::open(run);
    const std::string differs = difference(parse_origin(file.text(), run.string()), origin);
    if (!differs.empty())
      throw Error(ErrorCode::usage, run.string(), differs + " was another when the run began",
                  "the same source, calibration and settings, or no such folder: remove it to start anew");
  }

  fs::path path_;
  FolderLock lock_;
};

// The walk's matrices as files, with progress.
class RunStore final : public WalkStore {
 public:
  RunStore(const FinishedTensors& finished, QuantizeReport& report, const QuantizeProgress& progress, int64_t total)
      : finished_(finished), report_(report), progress_(progress), total_(total) {}

  bool is_wanted(const ConvertedWeight& weight) override {
    const std::optional<FinishedTensor> found = finished_.find(weight, &report_.notes);
    if (!found) return true;
    tell(weight, found->facts);
    ++report_.resumed_tensors;
    return false;
  }
  FinishedTensor found(const ConvertedWeight& weight) override {
    std::optional<FinishedTensor> found = finished_.find(weight);
    if (!found) throw Error(ErrorCode::bad_file, weight.module(), "its finished file is gone", "no other hand on it");
    return std::move(*found);
  }
  void encoded(const ConvertedWeight& weight, const EncodedTensor& facts, const std::vector<std::byte>& data) override {
    finished_.put(weight, facts, data);
    tell(weight, facts);
  }

 private:
  void tell(const ConvertedWeight& weight, const EncodedTensor& facts) {
    progress_(done_ += weight.source_bytes(), total_);
    if (weight.coding != Coding::exl3) return;
    report_.encoded.push_back(facts);
    report_.encoded.back().name = weight.module();
  }

  const FinishedTensors& finished_;
  QuantizeReport& report_;
  const QuantizeProgress& progress_;
  int64_t done_ = 0, total_;
};

void check_options(const QuantizeOptions& options, const model::Shape& shape) {
  const Exl3Options& exl3 = options.exl3;
  const auto check = [](const char* flag, Coding coding, int bits, int least) {
    if (coding == Coding::exl3 && (bits < least || bits > 8))
      throw Error(ErrorCode::usage, flag, fmt::format("exl3:{}", bits), "exl3:1 to exl3:8");
  };
  const int least = exl3.bits_target > 0 ? 0 : 1;
  check("--experts", options.experts, exl3.expert_bits, least);
  check("--dense", options.dense, exl3.dense_bits, least);
  check("--head", options.head, exl3.head_bits, 1);
  if (exl3.layout == Exl3Layout::tr3 &&
      (options.experts != Coding::exl3 || options.dense == Coding::exl3 || options.head == Coding::exl3))
    throw Error(ErrorCode::usage, "--layout tr3", "other matrices than the routed experts in EXL3",
                "--experts exl3:N alone: the layout is of routed experts");
  if (!exl3.is_calibrated) {
    if (exl3.bits_target > 0)
      throw Error(ErrorCode::usage, "--bits-target", "--calibration none", "text that errors are measured on");
    return;
  }
  if (exl3.calibration.windows.empty() || exl3.calibration.tokens() < least_calibration_tokens)
    throw Error(ErrorCode::usage, "--calibration", fmt::format("{} tokens", exl3.calibration.tokens()),
                fmt::format("at least {}; a quantity worth its time is 100,000 and more", least_calibration_tokens));
  for (const Window& window : exl3.calibration.windows)
    for (const int32_t id : window.ids)
      if (id < 0 || id >= shape.vocab_size)
        throw Error(
            ErrorCode::bad_file, "--calibration", fmt::format("token {}", id),
            fmt::format("ids below the model's vocab_size {}: text of this model's tokenizer", shape.vocab_size));
}

void write_shards(const fs::path& folder, const Shards& shards, const FinishedTensors& finished) {
  for (const auto& [name, shard] : shards) {
    NewFile file(folder / name);
    file.write(model::safetensors_header(headers_of(shard)));
    for (const model::Tensor* tensor : shard.copied) file.write(tensor->data);
    for (const ConvertedWeight* weight : shard.converted) {
      const std::optional<FinishedTensor> found = finished.find(*weight);
      if (!found)
        throw Error(ErrorCode::bad_file, weight->module(), "its finished file is damaged", "run again to redo it");
      file.write(found->data);
    }
    file.put_in_place();
  }
}

int64_t bytes_to_encode(const ConversionPlan& plan) {
  int64_t bytes = 0;
  for (const auto& [name, weights] : plan.converted)
    for (const ConvertedWeight& weight : weights) bytes += weight.source_bytes();
  return bytes;
}

// By name: the order of the walk differs between a run that was resumed and one that was not.
void sort_by_name(std::vector<EncodedTensor>& tensors) {
  std::sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
}

void note_fallbacks(bool is_calibrated, QuantizeReport& report) {
  if (!is_calibrated) {
    report.notes.push_back("without calibration text: all matrices are encoded without error feedback");
    return;
  }
  for (const EncodedTensor& tensor : report.encoded) {
    if (tensor.fallback)
      report.notes.push_back(fmt::format("{}: {} calibration rows reached it; encoded without error feedback",
                                         tensor.name, tensor.calibration_rows));
    if (tensor.damping_retries > 0)
      report.notes.push_back(
          fmt::format("{}: its inputs needed {} times more damping", tensor.name, tensor.damping_retries));
    if (tensor.dropped_rows > 0)
      report.notes.push_back(
          fmt::format("{}: {} calibration rows were not finite and left out", tensor.name, tensor.dropped_rows));
  }
}

// The folder beside the finished matrices, made anew at every attempt.
fs::path write_folder(const RunFolder& run, const QuantizeOptions& options, const ConversionPlan& plan,
                      const Shards& shards, const FinishedTensors& finished, const QuantizeReport& report,
                      const EncodingOrigin& origin, device::Threads& threads) {
  fs::path folder = run.path() / "model";
  std::error_code error;
  fs::remove_all(folder, error);
  if (!fs::create_directory(folder, error)) fail_to_write(folder, error, "a folder to write");
  const std::vector<fs::path> files = other_files(options.model);
  check_space(folder, report.bytes, files);
  write_shards(folder, shards, finished);
  write_index(folder, shards, report.bytes);
  nlohmann::ordered_json config = read_plain_config(options.model / "config.json");
  config["quantization_config"] = exl3_config(options, plan, report);
  write_text(folder / "config.json", config.dump(2) + "\n");
  write_text(folder / "quantization_config.json", exl3_storage(options, plan, report).dump(1) + "\n");
  copy_files(files, folder);
  Manifest manifest;
  manifest.origin = origin;
  manifest.tensors = report.encoded;
  std::vector<std::string> names;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error))
    names.push_back(entry->path().filename().string());
  if (error) fail_to_write(folder, error, "a readable folder");
  manifest.files = facts_of_files(folder, names, threads);
  write_text(folder / manifest_name, manifest_text(manifest));
  flush_folder(folder);
  return folder;
}

// An earlier run has given `out` its name and was stopped before it had removed its own folder.
bool is_left_behind(const fs::path& out) {
  std::error_code error;
  return fs::is_directory(out.string() + ".tmp", error) && fs::is_regular_file(out / manifest_name, error);
}

// Does what that run had left to do, if it was this one, and reports from what it wrote.
QuantizeReport finish(const fs::path& out, const QuantizeOptions& options, const model::Checkpoint& checkpoint,
                      ConversionPlan& plan, const EncodingOrigin& origin, device::Threads& threads) {
  const Manifest manifest = read_manifest(out);
  if (!difference(manifest.origin, origin).empty()) refuse_present(out, "a new folder");
  const RunFolder run(out, origin);
  const std::vector<std::string> faults = verify_folder(out, manifest, threads);
  if (!faults.empty())
    throw Error(
        ErrorCode::failed_check, out.string(), faults.front(),
        fmt::format("what its manifest says; remove the folder to write it again from {}", run.path().string()));
  take_widths(manifest, (out / manifest_name).string(), options.exl3, plan);
  QuantizeReport report = make_report(options, plan, shards_of(checkpoint, plan), checkpoint.total_bytes());
  report.average_bits = average_bits(plan);
  report.encoded = manifest.tensors;
  report.resumed_tensors = std::ssize(manifest.tensors);
  report.notes.push_back("an earlier run had written all of it; what it had left beside it was removed");
  note_fallbacks(options.exl3.is_calibrated, report);
  run.remove();
  return report;
}

}  // namespace

QuantizeReport encode_model(const QuantizeOptions& options, const QuantizeProgress& progress) {
  const auto start = std::chrono::steady_clock::now();
  const fs::path out = folder_to_write(options.out);
  const bool is_finished = is_left_behind(out);
  if (!is_finished) refuse_present(out, "a new folder");
  const model::Shape shape = model::read_shape(options.model);
  check_options(options, shape);
  read_plain_config(options.model / "config.json");
  const model::Checkpoint checkpoint = model::Checkpoint::open(options.model);
  ConversionPlan plan = plan_conversion(checkpoint, shape, options);
  const model::TextWeights weights = model::load_text_weights(checkpoint, shape);

  device::Threads threads(options.threads);
  const EncodingOrigin origin = origin_of(options, threads);
  if (is_finished) return finish(out, options, checkpoint, plan, origin, threads);
  const RunFolder run(out, origin);
  std::vector<std::string> notes;
  if (options.exl3.bits_target > 0) notes = allocate_bits(options, shape, weights, run.path(), threads, progress, plan);

  const Shards shards = shards_of(checkpoint, plan);
  QuantizeReport report = make_report(options, plan, shards, checkpoint.total_bytes());
  report.notes = std::move(notes);
  report.average_bits = average_bits(plan);
  const FinishedTensors finished(run.path() / "finished");
  RunStore store(finished, report, progress, bytes_to_encode(plan));
  ModelWalk(options, shape, weights, plan, run.path(), threads).run(store);
  sort_by_name(report.encoded);
  note_fallbacks(options.exl3.is_calibrated, report);

  const fs::path folder = write_folder(run, options, plan, shards, finished, report, origin, threads);
  refuse_present(out, "a new folder");
  std::error_code error;
  fs::rename(folder, out, error);
  if (error) fail_to_write(out, error, "a folder to write");
  flush(out.parent_path());  // before the matrices are removed that it could be written from again
  run.remove();
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

}  // namespace tandem::eval
