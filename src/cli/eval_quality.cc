// Who is compared over which windows; then as many cold runs as were asked for, and the report.
#include "cli/eval_quality.h"

#include <fmt/format.h>

#include <fstream>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "base/error.h"
#include "cli/drafting.h"
#include "cli/kv_scales.h"
#include "cli/loaded_model.h"
#include "cli/progress_line.h"
#include "cli/standard_io.h"
#include "eval/capture.h"
#include "eval/quality.h"
#include "eval/quality_file.h"
#include "eval/quality_model.h"
#include "eval/quality_report.h"
#include "eval/quality_text.h"
#include "model/shape.h"
#include "text/tokenizer.h"

namespace tandem::cli {
namespace {

std::string name_of(const std::filesystem::path& folder) {
  const auto path = std::filesystem::absolute(folder).lexically_normal();
  return path.has_filename() ? path.filename().string() : path.parent_path().filename().string();
}

// A model folder as a side of a run.
struct Model {
  std::filesystem::path folder;
  DeviceChoice device;
  forward::Compute compute;
  forward::CacheType cache_type;
  model::Shape shape;
  text::Tokenizer tokenizer;
  std::vector<float> latent_scales;
  model::WeightOptions weights;

  Model(const std::filesystem::path& given, const std::string& device_name, const std::string& compute_name,
        const std::string& kv_cache_dtype, const std::string& kv_scales, const std::string& nvfp4_nibble_order)
      : folder(checked_folder(given)),
        device(choose_device({device_name, compute_name, kv_cache_dtype, 1,
                              device_name == "cpu" ? "" : coded_weight_of(model::Checkpoint::open(folder))})),
        compute(compute_on(device.on_gpu(), compute_name)),
        cache_type(cache_type_on(device.on_gpu(), kv_cache_dtype, compute)),
        shape(model::read_shape(folder)),
        tokenizer(text::Tokenizer::load(folder)),
        latent_scales(read_scales(kv_scales)),
        weights(weight_options(nvfp4_nibble_order)) {}

  std::vector<float> read_scales(const std::string& kv_scales) const {
    const model::Checkpoint checkpoint = model::Checkpoint::open(folder);
    return stored_kv_scales(cache_type, kv_scales, {}, folder, checkpoint, shape, holds_mtp(checkpoint, shape));
  }
  eval::QualitySide side() const {
    const std::string dtype(model::name_of(cache_type));
    return {name_of(folder),
            latent_scales.empty() ? dtype : dtype + " (calibrated)",
            {},
            config_crc(folder),
            device.on_gpu() ? cli::name_of(compute) + " on " + device.gpu->properties().name : cli::name_of(compute)};
  }
  template <typename CommandOptions>
  std::unique_ptr<eval::LogitSource> source(const CommandOptions& options) const {
    eval::ModelLogitsOptions running;
    running.window = options.window;
    running.cache_type = cache_type;
    running.compute = compute;
    running.weights = weights;
    running.latent_scales = latent_scales;
    running.threads = checked_threads(options.threads);
    running.ranks.tensor_parallel_size = options.tensor_parallel_size;
    running.ranks.decode_context_parallel_size = options.decode_context_parallel_size;
    running.gpu = device.gpu.get();
    return std::make_unique<eval::ModelLogits>(folder, running);
  }
};

struct Text {
  std::string name;  // as reports say it
  std::vector<eval::EvalText> texts;
};

Text read_texts(const std::string& given, const std::filesystem::path& folder) {
  const std::string path = given.empty() ? (folder / "eval_text.jsonl").string() : given;
  return {path == "-" ? "standard input" : std::filesystem::path(path).filename().string(),
          eval::parse_eval_texts(read_text(path), path == "-" ? "standard input" : path)};
}

eval::Windows windows_of(const Text& text, const Model& model, int64_t window) {
  return eval::cut_windows(text.texts, model.tokenizer, model.shape.vocab_size, window);
}

std::unique_ptr<eval::NewFile> new_file(const std::filesystem::path& path) {
  return path.empty() ? nullptr : std::make_unique<eval::NewFile>(path);
}

// A plot may take the place of an earlier plot and of nothing else: a capture is soon mistyped for it.
std::unique_ptr<eval::NewFile> new_plot(const std::filesystem::path& path) {
  std::string begin(5, ' ');
  std::ifstream file(path, std::ios::binary);
  if (file && file.read(begin.data(), 1) && (file.seekg(0), file.read(begin.data(), 5), begin != "<svg "))
    throw Error(ErrorCode::usage, "--svg", path.string() + " is another kind of file", "a new file or an earlier plot");
  return new_file(path);
}

void check_kld(const KldCommandOptions& options, bool is_from_capture, bool has_student) {
  const auto refuse = [](const char* where, const char* found, const char* expected) {
    throw Error(ErrorCode::usage, where, found, expected);
  };
  if (options.runs < 1 || options.runs > 1000)
    throw Error(ErrorCode::usage, "--runs", std::to_string(options.runs), "1 to 1000");
  if (is_from_capture && options.student.empty())
    refuse("--student", "is missing, and the teacher is a capture", "the model folder to compare with it");
  if (is_from_capture && !options.capture.empty())
    refuse("--capture", "given while the teacher is a capture itself", "a model folder as --teacher");
  if (has_student) return;
  if (!options.svg.empty()) refuse("--svg", "given without --student", "a student to compare with");
  if (options.runs > 1) refuse("--runs", "given without --student", "a student to compare with");
  if (options.device != "auto") refuse("--device", "given without --student", "the student that it is for");
  if (options.compute != "auto") refuse("--compute", "given without --student", "the student that it is for");
  if (options.kv_cache_dtype != "auto")
    refuse("--kv-cache-dtype", "given without --student", "the student that it is for");
}

// Who takes part in `eval kld`.
struct Sides {
  std::optional<Model> teacher, student;
  std::filesystem::path capture;  // instead of a teacher
  Text text;
  eval::Windows windows;

  explicit Sides(const KldCommandOptions& options) {
    const auto given = options.teacher.empty() ? default_model() : options.teacher;
    std::error_code error;
    if (std::filesystem::is_regular_file(given, error)) {
      (void)eval::CaptureReader::open(given);  // says what is wrong with one that is damaged
      capture = given;
    }
    const bool has_student = !options.student.empty() || options.capture.empty();
    check_kld(options, !capture.empty(), has_student);
    if (capture.empty()) teacher.emplace(given, "cpu", "f32", "f32", "auto", options.nvfp4_nibble_order);
    if (has_student)
      student.emplace(options.student.empty() ? given : options.student, options.device, options.compute,
                      options.kv_cache_dtype, options.kv_scales, options.nvfp4_nibble_order);
    const Model& reads = student ? *student : *teacher;
    text = read_texts(options.text, reads.folder);
    windows = windows_of(text, reads, options.window);
    if (!capture.empty()) {
      eval::CaptureReader::open(capture).check_windows(windows);
    } else if (student && windows_of(text, *teacher, options.window).token_hash != windows.token_hash) {
      throw Error(ErrorCode::bad_file, student->folder.string() + "/tokenizer.json", "gives other tokens for this text",
                  "those of the teacher's tokenizer");
    }
  }

  eval::QualitySide teacher_side() const {
    if (teacher) return teacher->side();
    const auto reader = eval::CaptureReader::open(capture);
    return {reader.header().model, {}, capture.filename().string(), reader.header().config_crc};
  }
  std::unique_ptr<eval::LogitSource> teacher_source(const KldCommandOptions& options) const {
    if (teacher) return teacher->source(options);
    return std::make_unique<eval::CaptureReader>(eval::CaptureReader::open(capture));
  }
};

eval::QualityRun cold_run(const Sides& sides, const KldCommandOptions& options, eval::CaptureWriter* writer,
                          int32_t run) {
  const auto teacher = sides.teacher_source(options);
  const auto student = sides.student ? sides.student->source(options) : nullptr;
  ProgressLine line;
  const int64_t positions = sides.windows.positions();
  eval::QualityRunOptions running;
  running.threads = options.threads;
  running.capture = writer;
  running.progress = [&](int64_t done) {
    line.show(fmt::format("run {} of {}: {} of {} positions", run + 1, options.runs, done, positions));
  };
  return eval::run_quality(sides.windows, teacher.get(), student.get(), running);
}

eval::TokenText spelling(const text::Tokenizer& tokenizer) {
  return [&tokenizer](int32_t id) { return tokenizer.decode(std::span(&id, 1)); };
}

void print(const eval::QualityReport& report, const text::Tokenizer& tokenizer, bool json) {
  write_out(json ? eval::quality_report_json(report, spelling(tokenizer))
                 : eval::quality_report_text(report, spelling(tokenizer)));
}

}  // namespace

int run_eval_kld(const KldCommandOptions& options) {
  checked_threads(options.threads);  // before anything is read
  const Sides sides(options);
  const auto svg = new_plot(options.svg);
  std::unique_ptr<eval::CaptureWriter> writer;
  int64_t capture_bytes = 0;
  if (!options.capture.empty()) {
    const auto header = eval::capture_header(sides.windows, name_of(sides.teacher->folder),
                                             config_crc(sides.teacher->folder), sides.teacher->shape.vocab_size);
    capture_bytes = eval::capture_bytes(header);
    writer = std::make_unique<eval::CaptureWriter>(options.capture, header);
  }
  std::vector<eval::QualityRun> runs;
  for (int32_t run = 0; run < options.runs; ++run)
    runs.push_back(cold_run(sides, options, run == 0 ? writer.get() : nullptr, run));

  auto report = eval::quality_report(sides.windows, runs);
  report.text = sides.text.name;
  report.teacher = sides.teacher_side();
  if (sides.student) report.student = sides.student->side();
  report.capture = options.capture.filename().string();
  report.capture_bytes = capture_bytes;
  print(report, sides.student ? sides.student->tokenizer : sides.teacher->tokenizer, options.json);
  if (svg) {
    svg->write(eval::quality_report_svg(report));
    svg->put_in_place();
  }
  if (!report.divergence || report.divergence->audit.passes()) return 0;
  const auto& means = report.divergence->audit.means;
  throw Error(ErrorCode::failed_check, "offset audit", fmt::format("mean KLD {:.4g} at shift 0", means[1]),
              fmt::format("less than half of {:.4g} at -1 and {:.4g} at +1: the rows are of other positions, or the "
                          "models have nothing in common",
                          means[0], means[2]));
}

int run_eval_ppl(const PplCommandOptions& options) {
  checked_threads(options.threads);
  const Model model(options.model, options.device, options.compute, options.kv_cache_dtype, options.kv_scales,
                    options.nvfp4_nibble_order);
  const Text text = read_texts(options.text, model.folder);
  const auto windows = windows_of(text, model, options.window);
  const auto source = model.source(options);
  eval::QualityRun run;
  {
    ProgressLine line;
    eval::QualityRunOptions running;
    running.threads = options.threads;
    running.progress = [&](int64_t done) { line.show(fmt::format("{} of {} positions", done, windows.positions())); };
    run = eval::run_quality(windows, nullptr, source.get(), running);
  }
  auto report = eval::quality_report(windows, {std::move(run)});
  report.text = text.name;
  report.student = model.side();
  print(report, model.tokenizer, options.json);
  return 0;
}

}  // namespace tandem::cli
