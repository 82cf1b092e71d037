// Reads config and weights' headers, chooses what was left open, asks the planner.
#include "cli/plan.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/mapped_file.h"
#include "cli/device_choice.h"
#include "cli/loaded_model.h"
#include "cli/standard_io.h"
#include "engine/plan_extras.h"
#include "engine/step_runner.h"
#include "model/cache_bytes.h"
#include "model/checkpoint.h"
#include "model/split.h"

namespace tandem::cli {
namespace fs = std::filesystem;
namespace {

constexpr int64_t largest_memory = int64_t{1} << 50;

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
  if (subject.checkpoint && (!options.weights.empty() || options.bytes_per_parameter))
    throw Error(ErrorCode::usage, options.weights.empty() ? "--weights-bytes-per-parameter" : "--weights",
                "given for a folder with weights", "a bare config.json");
  return subject;
}

forward::CacheType cache_type_of(const PlanReport& report) { return model::parse_cache_type(report.kv_cache_dtype); }

void set_weights(PlanReport& report, const PlanOptions& options, const Subject& subject, const model::Shape& shape) {
  if (subject.checkpoint) {
    report.weights_format = "as stored";
    report.weights = engine::weights_of_checkpoint(*subject.checkpoint, shape);
    return;
  }
  if (!options.weights.empty() && options.bytes_per_parameter)
    throw Error(ErrorCode::usage, "--weights", "given with --weights-bytes-per-parameter", "one of them");
  const engine::WeightFormat format = options.bytes_per_parameter ? engine::flat_format(*options.bytes_per_parameter)
                                      : !options.weights.empty()
                                          ? engine::parse_weight_format(options.weights)
                                          : engine::format_of_config(subject.config, "config.json");
  report.weights_format = format.name();
  report.weights = engine::weights_in_format(shape, format);
}

// What serve would load beside the text model. A config without weights has no drafter beside it, so --drafter dflash2
// plans the published one.
Drafting drafting_of(const PlanOptions& options, const Subject& subject) {
  const bool has_mtp =
      subject.checkpoint ? holds_mtp(*subject.checkpoint, subject.shape) : subject.shape.num_nextn_predict_layers > 0;
  DraftingFlags flags;
  flags.drafter = options.drafter;
  flags.drafter_model = options.drafter_model;
  const bool may_be_published = !subject.checkpoint && options.drafter == "dflash2" && options.drafter_model.empty();
  if (may_be_published) flags.drafter = "auto";  // takes one that is there, and asks for none
  Drafting drafting = resolve_drafting(flags, subject.path, subject.shape, has_mtp);
  if (!may_be_published) return drafting;
  drafting.choice = draft::Choice::dflash2;
  drafting.mtp = false;
  if (drafting.shape) return drafting;
  drafting.shape = model::DrafterShape{};
  try {
    model::check_drafter_fits(*drafting.shape, subject.shape, "the published drafter");
  } catch (const Error& error) {
    throw Error(ErrorCode::usage, "--drafter", fmt::format("{}: {}", error.where(), error.found()),
                fmt::format("{}; --drafter-model names another", error.expected()));
  }
  return drafting;
}

// Bytes of a context row over all drafter layers: ranks of GPUs share the heads; a rank of the CPU path has all of
// them, in the cache's type.
int64_t context_row_bytes(const PlanReport& report, bool on_gpus) {
  const model::DrafterShape& drafter = *report.drafting.shape;
  if (on_gpus) return drafter.row_bytes(report.ranks.tensor_parallel_size);
  return drafter.row_bytes(1) * (cache_type_of(report) == forward::CacheType::f32 ? 2 : 1);
}

void set_drafter(PlanReport& report) {
  if (!report.drafting.shape) return;
  const model::DrafterShape& drafter = *report.drafting.shape;
  const fs::path& folder = report.drafting.folder;
  const int ranks = report.ranks.tensor_parallel_size;
  const int64_t whole = !folder.empty() && model::has_weights(folder) ? model::Checkpoint::open(folder).total_bytes()
                                                                      : 2 * drafter.parameters();
  for (int rank = 0; rank < ranks; ++rank)
    report.drafter_bytes[static_cast<size_t>(rank)] = report.on_gpus ? 2 * drafter.parameters_of_rank(ranks) : whole;
  report.stream_drafter = context_row_bytes(report, report.on_gpus) * drafter.ring_rows();
  report.kept_drafter = context_row_bytes(report, report.on_gpus) * drafter.kept_rows();
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
  check_utilization(options.gpu_memory_utilization);
  report.on_gpus = !options.gpus.empty();
  if (report.on_gpus) {
    const Gpus gpus = parse_gpus(options.gpus);
    report.devices = gpus.count;
    report.device_memory = gpus.memory;
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
      report.on_gpus ? engine::default_kept_states_memory_of_gpu : engine::default_kept_states_memory);
  settings.ranks = report.ranks;
  settings.cache_type = cache_type_of(report);
  settings.mtp = report.drafting.mtp;
  settings.max_draft_rows = report.drafting.draft_rows(options.max_num_seqs);
  settings.memory_of_each_rank = settings.fill_memory = report.on_gpus;
  return settings;
}

// What is left of the memory beside weights; below 1: they alone do not fit. Ranks of one host share it and all
// weights.
int64_t memory_left(const PlanReport& report) {
  if (report.on_gpus) return report.usable_memory - std::max(report.resident(0), report.resident(1));
  return report.usable_memory - report.weights.total - report.drafter_bytes[0] - report.vision_bytes -
         report.vision_workspace;
}

// What a rank allocates: of the CPU path as serve plans it; on GPUs with context rows of half of the drafter's heads.
engine::PlannedBytes planned_bytes(const PlanReport& report, const PlanOptions& options, const model::Shape& shape) {
  const int threads = report.on_gpus ? 1 : engine::threads_of_rank(checked_threads(options.threads), report.ranks);
  engine::PlannedBytes bytes =
      engine::text_model_bytes(shape, report.ranks, threads, report.row, report.drafting.drafter_shape());
  if (!report.on_gpus || !report.drafting.shape) return bytes;
  const model::DrafterShape& drafter = *report.drafting.shape;
  const int64_t surplus = context_row_bytes(report, false) - context_row_bytes(report, true);
  const int64_t of_slot = surplus * drafter.ring_rows(), of_kept_state = surplus * drafter.kept_rows();
  return [bytes, of_slot, of_kept_state](const forward::Capacity& c) {
    return bytes(c) - c.slots * of_slot - c.kept_states * of_kept_state;
  };
}

void set_plan(PlanReport& report, const PlanOptions& options, const model::Shape& shape) {
  report.settings = settings_of(report, options);
  const engine::PlannedBytes bytes = planned_bytes(report, options, shape);
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
  check_choice("--vision", options.vision, {"on", "off"});
  PlanReport report;
  report.model = subject.path.string();
  set_devices(report, options);
  model::Shape shape = subject.shape;
  report.drafting = drafting_of(options, subject);
  if (!report.drafting.mtp) shape.num_nextn_predict_layers = 0;
  report.kv_cache_dtype = options.kv_cache_dtype != "auto" ? options.kv_cache_dtype : report.on_gpus ? "bf16" : "f32";
  report.row = model::cache_row(shape, cache_type_of(report));
  report.layers = engine::cached_layers(shape);
  report.tokens_per_pool = shape.index_kpool;
  report.max_position_embeddings = shape.max_position_embeddings;
  const model::Shape rank = model::shape_of_rank(shape, 0, report.ranks.tensor_parallel_size > 1 ? 2 : 1);
  report.stream = engine::slot_parts(rank);
  report.kept_state = engine::kept_state_parts(rank);
  set_weights(report, options, subject, shape);
  set_drafter(report);
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
  if (report.drafting.mtp && report.drafting.shape && options.drafter_model.empty())
    choice("--drafter mtp", [](PlanOptions& o) { o.drafter = "mtp"; });
  if (report.drafting.choice != draft::Choice::none)
    choice("--drafter none", [](PlanOptions& o) { o.drafter = "none"; });
  for (const char* dtype : {"bf16", "fp8"})
    if (model::cache_row(subject.shape, model::parse_cache_type(dtype)).latent_bytes < report.row.latent_bytes)
      choice(std::string("--kv-cache-dtype ") + dtype, [dtype](PlanOptions& o) { o.kv_cache_dtype = dtype; });
  if (report.ranks.tensor_parallel_size == 1 && report.devices > 1)
    choice("--tensor-parallel-size 2", [](PlanOptions& o) { o.tensor_parallel_size = 2; });
  if (report.ranks.tensor_parallel_size == 2 && report.ranks.decode_context_parallel_size == 1)
    choice("--decode-context-parallel-size 2", [](PlanOptions& o) { o.decode_context_parallel_size = 2; });
  for (const auto& [text, changed] : choices)
    if (report_of(changed, subject).plan) report.changes.push_back(text);
  if (subject.checkpoint || options.bytes_per_parameter) return;
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
