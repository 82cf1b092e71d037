// Reads config and weights' headers, chooses what was left open, asks the planner.
#include "cli/plan.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <system_error>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/mapped_file.h"
#include "cli/loaded_model.h"
#include "cli/standard_io.h"
#include "engine/plan_extras.h"
#include "model/cache_bytes.h"
#include "model/checkpoint.h"
#include "model/split.h"

namespace tandem::cli {
namespace fs = std::filesystem;
namespace {

constexpr int64_t default_kept_states_memory_of_gpu = int64_t{1} << 30;
constexpr int64_t largest_memory = int64_t{1} << 50;

bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

std::string config_text(const fs::path& model) {
  std::error_code error;
  const MappedFile file = MappedFile::open(fs::is_directory(model, error) ? model / "config.json" : model);
  return std::string(file.text());
}

void check_choice(const char* flag, const std::string& value, std::initializer_list<const char*> choices) {
  if (std::find(choices.begin(), choices.end(), value) == choices.end())
    throw Error(ErrorCode::usage, flag, "\"" + value + "\"", fmt::format("one of {}", fmt::join(choices, ", ")));
}

// Everything about the model that does not depend on devices.
struct Subject {
  fs::path path;
  model::Shape shape;
  std::string config;
  std::optional<model::Checkpoint> checkpoint;
};

Subject open(const PlanOptions& options) {
  Subject subject;
  subject.path = options.model.empty() ? default_model() : options.model;
  subject.shape = model::read_shape(subject.path);
  subject.config = config_text(subject.path);
  if (model::has_weights(subject.path)) subject.checkpoint = model::Checkpoint::open(subject.path);
  if (subject.checkpoint && (!options.weights.empty() || options.bytes_per_parameter != 0))
    throw Error(ErrorCode::usage, options.weights.empty() ? "--weights-bytes-per-parameter" : "--weights",
                "given for a folder with weights", "a bare config.json");
  return subject;
}

void set_weights(PlanReport& report, const PlanOptions& options, const Subject& subject, const model::Shape& shape) {
  if (subject.checkpoint) {
    report.weights_format = "as stored";
    report.weights = engine::weights_of_checkpoint(*subject.checkpoint, shape);
    return;
  }
  if (!options.weights.empty() && options.bytes_per_parameter != 0)
    throw Error(ErrorCode::usage, "--weights", "given with --weights-bytes-per-parameter", "one of them");
  const engine::WeightFormat format =
      options.bytes_per_parameter != 0 ? engine::flat_format(options.bytes_per_parameter)
      : !options.weights.empty()       ? engine::parse_weight_format(options.weights)
                                       : engine::format_of_config(subject.config, "config.json");
  report.weights_format = engine::name_of(format);
  report.weights = engine::weights_in_format(shape, format);
}

engine::DrafterShape drafter_of(const PlanOptions& options, const Subject& subject) {
  fs::path folder = options.drafter_model;
  if (folder.empty()) {
    const fs::path beside = fs::absolute(subject.path).lexically_normal().string() + "-dflash2";
    if (is_there(beside / "config.json")) folder = beside;
  }
  const engine::DrafterShape drafter =
      folder.empty() ? engine::DrafterShape{}
                     : engine::parse_drafter(config_text(folder), (folder / "config.json").string());
  if (drafter.hidden_size != subject.shape.hidden_size || drafter.vocab_size != subject.shape.vocab_size)
    throw Error(
        folder.empty() ? ErrorCode::usage : ErrorCode::bad_file,
        folder.empty() ? "--drafter" : (folder / "config.json").string(),
        fmt::format("a drafter of hidden size {} and vocabulary {}{}", drafter.hidden_size, drafter.vocab_size,
                    folder.empty() ? ", the published one" : ""),
        fmt::format("{} and {}; --drafter-model names another", subject.shape.hidden_size, subject.shape.vocab_size));
  return drafter;
}

void set_drafter(PlanReport& report, const PlanOptions& options, const Subject& subject) {
  if (report.drafter != "dflash2") return;
  const engine::DrafterShape drafter = drafter_of(options, subject);
  const int ranks = report.ranks.tensor_parallel_size;
  for (int rank = 0; rank < ranks; ++rank)
    report.drafter_bytes[static_cast<size_t>(rank)] = 2 * drafter.parameters_of_rank(ranks);
  report.stream_drafter = drafter.row_bytes(ranks) * drafter.ring_rows();
  report.kept_drafter = drafter.row_bytes(ranks) * drafter.kept_rows();
}

void set_vision(PlanReport& report, const PlanOptions& options, const Subject& subject) {
  if (options.vision == "off") return;
  if (subject.checkpoint) {
    for (const model::Tensor* tensor : subject.checkpoint->tensors())
      if (tensor->name.find("visual.") != std::string::npos)
        report.vision_bytes += static_cast<int64_t>(tensor->data.size());
  } else {
    report.vision_bytes = 2 * engine::vision_parameters(subject.config, "config.json").value_or(0);
  }
  if (report.vision_bytes == 0)
    throw Error(ErrorCode::usage, "--vision", "on, but the model has no vision tower", "off");
  report.vision_workspace = engine::vision_workspace_bytes;
}

void set_devices(PlanReport& report, const PlanOptions& options) {
  if (!options.gpus.empty() && !options.host_memory.empty())
    throw Error(ErrorCode::usage, "--gpus", "given with --host-memory", "one of them");
  report.on_gpus = !options.gpus.empty();
  if (report.on_gpus) {
    const Gpus gpus = parse_gpus(options.gpus);
    report.devices = gpus.count;
    report.device_memory = gpus.memory;
    if (!(options.gpu_memory_utilization > 0 && options.gpu_memory_utilization <= 1))
      throw Error(ErrorCode::usage, "--gpu-memory-utilization", fmt::format("{}", options.gpu_memory_utilization),
                  "more than 0, at most 1");
    report.usable_memory =
        static_cast<int64_t>(std::floor(static_cast<double>(gpus.memory) * options.gpu_memory_utilization));
  } else {
    report.device_memory = !options.host_memory.empty()
                               ? parse_size("--host-memory", options.host_memory)
                               : static_cast<int64_t>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGESIZE);
    report.usable_memory = report.device_memory;
  }
  report.ranks.tensor_parallel_size =
      options.tensor_parallel_size != 0 ? options.tensor_parallel_size : std::min(report.devices, 2);
  report.ranks.decode_context_parallel_size = options.decode_context_parallel_size;
  if (report.on_gpus && report.ranks.tensor_parallel_size > report.devices)
    throw Error(ErrorCode::usage, "--tensor-parallel-size", fmt::format("{}", report.ranks.tensor_parallel_size),
                fmt::format("at most the {} of --gpus", report.devices));
}

engine::PlanSettings settings_of(const PlanReport& report, const PlanOptions& options) {
  engine::PlanSettings settings;
  settings.kv_cache_memory = options.kv_cache_memory;
  settings.max_model_len = options.max_model_len;
  settings.max_num_batched_tokens = options.max_num_batched_tokens;
  settings.max_num_seqs = options.max_num_seqs;
  settings.kept_states_memory = options.kept_states_memory.value_or(
      report.on_gpus ? default_kept_states_memory_of_gpu : engine::default_kept_states_memory);
  settings.ranks = report.ranks;
  settings.cache_type = report.kv_cache_dtype == "f32" ? forward::CacheType::f32 : forward::CacheType::bf16;
  settings.memory_of_each_rank = settings.fill_memory = report.on_gpus;
  return settings;
}

// What is left of the memory beside weights; below 1: they alone do not fit. Ranks of one host share it and the
// weights.
int64_t memory_left(const PlanReport& report) {
  if (report.on_gpus) return report.usable_memory - std::max(report.resident(0), report.resident(1));
  return report.usable_memory - report.weights.total - report.drafter_bytes[0] - report.drafter_bytes[1] -
         report.vision_bytes - report.vision_workspace;
}

void set_plan(PlanReport& report, const PlanOptions& options, const model::Shape& shape) {
  report.settings = settings_of(report, options);
  const int threads = report.on_gpus         ? 1
                      : options.threads != 0 ? checked_threads(options.threads)
                                             : static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  const engine::PlannedBytes text = engine::text_model_bytes(shape, report.ranks, threads, report.row);
  const engine::PlannedBytes bytes = [&](const forward::Capacity& capacity) {
    return text(capacity) + capacity.slots * report.stream_drafter + capacity.kept_states * report.kept_drafter;
  };
  engine::PlanSettings unlimited = report.settings;  // wrong settings are errors, whatever fits
  unlimited.machine_memory = largest_memory;
  try {
    engine::make_plan(shape.max_position_embeddings, bytes, unlimited);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::does_not_fit) throw;
  }
  report.settings.machine_memory = memory_left(report);
  if (report.settings.machine_memory < 1) {
    const auto gib = [](int64_t size) { return static_cast<double>(size) / (1 << 30); };
    report.problem =
        fmt::format("the weights ({}) and what stands beside them need {:.2f} GiB of {:.2f} GiB", report.weights_format,
                    gib(report.usable_memory - memory_left(report)), gib(report.usable_memory));
    return;
  }
  try {
    report.plan = engine::make_plan(shape.max_position_embeddings, bytes, report.settings);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::does_not_fit) throw;
    report.problem = error.where() + ": " + error.found();
    if (!error.expected().empty()) report.changes.push_back(error.expected());
  }
}

PlanReport report_of(const PlanOptions& options, const Subject& subject) {
  check_choice("--drafter", options.drafter, {"auto", "none", "mtp", "dflash2"});
  check_choice("--vision", options.vision, {"on", "off"});
  PlanReport report;
  report.model = subject.path.string();
  set_devices(report, options);
  model::Shape shape = subject.shape;
  report.drafter = options.drafter != "auto" ? options.drafter : shape.num_nextn_predict_layers > 0 ? "mtp" : "none";
  if (report.drafter == "mtp" && shape.num_nextn_predict_layers == 0)
    throw Error(ErrorCode::usage, "--drafter", "mtp, but the model has no MTP layer", "none or dflash2");
  if (report.drafter != "mtp") shape.num_nextn_predict_layers = 0;
  report.kv_cache_dtype = options.kv_cache_dtype != "auto" ? options.kv_cache_dtype : report.on_gpus ? "bf16" : "f32";
  report.row = model::cache_row(shape, report.kv_cache_dtype);
  report.layers = engine::cached_layers(shape);
  report.tokens_per_pool = shape.index_kpool;
  report.max_position_embeddings = shape.max_position_embeddings;
  const model::Shape rank = model::shape_of_rank(shape, 0, report.ranks.tensor_parallel_size > 1 ? 2 : 1);
  report.stream = engine::slot_parts(rank);
  report.kept_state = engine::kept_state_parts(rank);
  set_weights(report, options, subject, shape);
  set_drafter(report, options, subject);
  set_vision(report, options, subject);
  set_plan(report, options, shape);
  return report;
}

// Choices beside the planner's settings that would each make the plan fit.
void try_choices(PlanReport& report, const PlanOptions& options, const Subject& subject) {
  std::vector<std::pair<std::string, PlanOptions>> choices;
  const auto choice = [&](const std::string& text, const auto& change) {
    PlanOptions changed = options;
    change(changed);
    choices.emplace_back(text, changed);
  };
  if (options.vision == "on") choice("--vision off", [](PlanOptions& o) { o.vision = "off"; });
  if (report.drafter != "none") choice("--drafter none", [](PlanOptions& o) { o.drafter = "none"; });
  for (const char* dtype : {"bf16", "fp8"})
    if (model::cache_row(subject.shape, dtype).latent_bytes < report.row.latent_bytes)
      choice(std::string("--kv-cache-dtype ") + dtype, [dtype](PlanOptions& o) { o.kv_cache_dtype = dtype; });
  if (report.ranks.tensor_parallel_size == 1 && report.devices > 1)
    choice("--tensor-parallel-size 2", [](PlanOptions& o) { o.tensor_parallel_size = 2; });
  if (report.ranks.tensor_parallel_size == 2 && report.ranks.decode_context_parallel_size == 1)
    choice("--decode-context-parallel-size 2", [](PlanOptions& o) { o.decode_context_parallel_size = 2; });
  for (const auto& [text, changed] : choices)
    if (report_of(changed, subject).plan) report.changes.push_back(text);
  if (subject.checkpoint || options.bytes_per_parameter != 0) return;
  for (const char* format : {"fp8", "nvfp4", "exl3:4", "exl3:3", "exl3:2"}) {  // the largest that fits
    PlanOptions changed = options;
    changed.weights = format;
    const PlanReport smaller = report_of(changed, subject);
    if (smaller.weights.total >= report.weights.total || !smaller.plan) continue;
    report.changes.push_back(std::string("--weights ") + format);
    return;
  }
}

}  // namespace

int64_t parse_size(const std::string& flag, std::string_view text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  std::string unit(end, text.data() + text.size());
  unit.erase(0, unit.find_first_not_of(' '));
  double factor = -1;
  double power = 1;
  for (const char* prefix : {"", "K", "M", "G", "T"}) {
    const std::string name = prefix;
    const double decimal = std::pow(1000, power - 1), binary = std::pow(1024, power - 1);
    if (unit == name + "B" || unit == name) factor = decimal;
    if (!name.empty() && (unit == name + "iB" || unit == name + "i")) factor = binary;
    ++power;
  }
  const double bytes = number * factor;
  if (error != std::errc() || !(bytes >= 1 && bytes <= static_cast<double>(largest_memory)))
    throw Error(ErrorCode::usage, flag, "\"" + std::string(text) + "\"",
                "a size such as 96GiB or 512MB, at most 1024TiB");
  return static_cast<int64_t>(std::floor(bytes));
}

Gpus parse_gpus(std::string_view text) {
  Gpus gpus;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), gpus.count);
  const std::string_view rest(end, static_cast<size_t>(text.data() + text.size() - end));
  if (error != std::errc() || gpus.count < 1 || gpus.count > 64 || !rest.starts_with('x'))
    throw Error(ErrorCode::usage, "--gpus", "\"" + std::string(text) + "\"",
                "number (1 to 64) and memory, such as 2x96GiB");
  gpus.memory = parse_size("--gpus", rest.substr(1));
  if (gpus.memory < int64_t{1} << 20)  // a unit was forgotten
    throw Error(ErrorCode::usage, "--gpus", "\"" + std::string(text) + "\"", "memory with its unit, such as 2x96GiB");
  return gpus;
}

PlanReport make_report(const PlanOptions& options) {
  const Subject subject = open(options);
  PlanReport report = report_of(options, subject);
  if (!report.plan) try_choices(report, options, subject);
  return report;
}

int run_plan(const PlanOptions& options) {
  const PlanReport report = make_report(options);
  write_out(options.json ? plan_json(report) : plan_text(report));
  if (report.plan) return 0;
  throw Error(
      ErrorCode::does_not_fit, report.model, report.problem,
      report.changes.empty() ? "smaller weights or more memory" : fmt::format("{}", fmt::join(report.changes, " or ")));
}

}  // namespace tandem::cli
