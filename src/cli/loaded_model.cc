// Opens a model folder step by step; each step's error names the file.
#include "cli/loaded_model.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <system_error>
#include <thread>
#include <utility>

#include "base/crc32c.h"
#include "base/error.h"
#include "base/log.h"
#include "base/mapped_file.h"
#include "cli/kv_scales.h"
#include "engine/batch_engine.h"
#include "engine/plan_bytes.h"
#include "engine/sampling_check.h"
#include "engine/step_recording.h"
#include "forward/gpu_model.h"
#include "forward/rounded_weights.h"
#include "model/json_reader.h"

namespace tandem::cli {
namespace {

constexpr const char* bundled = "models/nano";

bool is_folder(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::is_directory(path, error);
}

text::Tokenizer checked_tokenizer(const std::filesystem::path& folder, const model::Shape& shape) {
  auto tokenizer = text::Tokenizer::load(folder);
  if (tokenizer.size() > shape.vocab_size)
    throw Error(ErrorCode::bad_file, (folder / "tokenizer.json").string(), std::to_string(tokenizer.size()) + " tokens",
                "at most vocab_size " + std::to_string(shape.vocab_size) + " of config.json");
  return tokenizer;
}

int64_t memory_of_machine() {
  const auto pages = ::sysconf(_SC_PHYS_PAGES), page_size = ::sysconf(_SC_PAGESIZE);
  return pages > 0 && page_size > 0 ? static_cast<int64_t>(pages) * page_size : 0;
}

forward::Ranks ranks_of(const LoadOptions& options) {
  return {.rank = 0,
          .tensor_parallel_size = options.tensor_parallel_size,
          .decode_context_parallel_size = options.decode_context_parallel_size};
}

// What --device comes to for this model.
DeviceChoice device_of(const LoadOptions& options, const model::Checkpoint& checkpoint) {
  check_utilization(options.gpu_memory_utilization);  // on a CPU, too: nothing that is given is passed over
  return choose_device({options.device, options.compute, options.kv_cache_dtype, options.tensor_parallel_size,
                        options.device == "cpu" ? "" : coded_weight_of(checkpoint)});
}

// The same with the kernels loaded: where that is impossible, auto takes the CPU.
DeviceChoice ready_device(const LoadOptions& options, const model::Checkpoint& checkpoint, const model::Shape& shape,
                          const Drafting& drafting) {
  DeviceChoice choice = device_of(options, checkpoint);
  if (!choice.on_gpu()) return choice;
  try {
    forward::GpuModel::load_kernels(*choice.gpu, shape, drafting.drafter_shape());
  } catch (const Error& error) {
    if (options.device != "auto" || error.code() != ErrorCode::resource) throw;
    choice.gpu.reset();
    choice.reason = fmt::format("the GPU cannot be used: {}", error.what());
  }
  return choice;
}

// `weights`: bytes on the device that runs the model. `gpu`: nullptr: the CPU.
engine::Plan plan_of(const LoadOptions& options, const model::Shape& shape, const Drafting& drafting, int64_t weights,
                     device::Gpu* gpu) {
  const forward::Ranks ranks = ranks_of(options);
  const int threads = engine::threads_of_rank(checked_threads(options.threads), ranks);
  const bool on_gpu = gpu != nullptr;
  engine::PlanSettings settings;
  settings.kv_cache_memory = options.kv_cache_memory;
  settings.max_model_len = options.max_model_len;
  settings.max_num_batched_tokens = options.max_num_batched_tokens;
  settings.max_num_seqs = options.max_num_seqs;
  settings.kept_states_memory = options.kept_states_memory.value_or(on_gpu ? engine::default_kept_states_memory_of_gpu
                                                                           : engine::default_kept_states_memory);
  settings.ranks = ranks;
  settings.compute = compute_on(on_gpu, options.compute);
  settings.cache_type = cache_type_on(on_gpu, options.kv_cache_dtype, settings.compute);
  settings.mtp = drafting.mtp;
  settings.max_draft_rows = drafting.draft_rows(options.max_num_seqs);
  engine::PlannedBytes bytes;
  if (on_gpu) {
    if (settings.max_num_batched_tokens == 0)
      settings.max_num_batched_tokens = engine::default_max_num_batched_tokens_of_gpu;
    settings.memory_of_each_rank = settings.fill_memory = true;
    settings.machine_memory = gpu_memory_beside(*gpu, options.gpu_memory_utilization, weights);
    bytes = engine::gpu_model_bytes(gpu->properties(), shape, drafting.drafter_shape());
  } else {
    settings.machine_memory = memory_beside(weights);
    bytes = engine::text_model_bytes(shape, ranks, threads, drafting.drafter_shape());
  }
  return engine::make_plan(shape.max_position_embeddings, bytes, settings);
}

engine::Plan with_scales(engine::Plan plan, std::vector<float> latent_scales) {
  plan.capacity.latent_scales = std::move(latent_scales);
  return plan;
}

std::vector<int32_t> stop_ids(const model::JsonObject& config, const model::Shape& shape) {
  if (!config.has("eos_token_id")) return shape.eos_token_ids;
  const model::IntegerRange ids{0, shape.vocab_size - 1};
  if (!config.is_array("eos_token_id")) return {static_cast<int32_t>(config.integer("eos_token_id", ids))};
  std::vector<int32_t> stops;
  for (const int64_t id : config.integers("eos_token_id", ids)) stops.push_back(static_cast<int32_t>(id));
  return stops;
}

// `sampled_tokens`: the tokenizer's size.
engine::BatchEngineOptions engine_options(const LoadOptions& options, const model::Shape& shape,
                                          const engine::Plan& plan, const Drafting& drafting,
                                          const draft::TimingTable& table, int32_t sampled_tokens, bool on_gpu) {
  engine::BatchEngineOptions engine;
  engine.scheduler.vocab_size = static_cast<int32_t>(shape.vocab_size);
  engine.scheduler.sampled_tokens = sampled_tokens;
  engine.scheduler.max_model_len = plan.max_model_len;
  engine.scheduler.capacity = plan.capacity;
  engine.scheduler.page_groups = plan.page_groups;
  engine.scheduler.kept_state_bytes = plan.kept_state_bytes;
  engine.scheduler.max_waiting = options.max_waiting;
  engine.scheduler.prefill_slice_ms = options.prefill_slice_ms;
  engine.scheduler.fill_share = options.fill_share;
  engine.scheduler.draft = draft_options(drafting, table);
  engine.scheduler.samples_in_step = on_gpu;
  engine.watchdog_s = options.watchdog_s;
  engine.check_numerics = options.check_numerics;
  // A thread that hangs cannot be joined: nothing is cleaned up.
  if (options.watchdog_exit) engine.on_stuck = [] { std::_Exit(exit_status(ErrorCode::internal)); };
  return engine;
}

// Of the mapped weights of a DFlash2 drafter.
int64_t drafter_bytes(const Drafting& drafting) {
  return drafting.shape ? model::Checkpoint::open(drafting.folder).total_bytes() : 0;
}

// Processor and so on: tables do not travel.
std::string name_of_machine() {
  std::string name = "unknown";
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (!line.starts_with("model name")) continue;
    name = line.substr(line.find(':') + 1);
    break;
  }
  return fmt::format("{}, {} cores", name, std::thread::hardware_concurrency());
}

// As vLLM's metric spells what both have.
std::string label_of(forward::CacheType type) {
  if (type == forward::CacheType::f32) return "float32";
  return type == forward::CacheType::bf16 ? "bfloat16" : std::string(name_of(type));
}

// A recording inside the model's folder would replace, or be taken for, a part of the model.
void check_recording(const std::filesystem::path& recording, const std::filesystem::path& folder) {
  if (recording.empty()) return;
  std::error_code error;
  const auto whole = std::filesystem::weakly_canonical(recording, error);
  const auto inside = std::filesystem::canonical(folder, error);
  if (!error && std::mismatch(inside.begin(), inside.end(), whole.begin(), whole.end()).first == inside.end())
    throw Error(ErrorCode::usage, "--record-steps", recording.string() + " is in the model folder",
                "a file outside of it");
  engine::check_recording_file(recording);
}

}  // namespace

forward::Compute compute_type(const std::string& name) {
  if (name == "auto" || name == "f32") return forward::Compute::f32;
  if (name == "bf16") return forward::Compute::bf16;
  throw Error(ErrorCode::usage, "--compute", name, "auto, f32 or bf16");
}

std::string name_of(forward::Compute compute) { return compute == forward::Compute::bf16 ? "bf16" : "f32"; }

forward::CacheType cache_type(const std::string& name, forward::Compute compute) {
  if (name != "auto") return model::parse_cache_type(name);
  return compute == forward::Compute::bf16 ? forward::CacheType::bf16 : forward::CacheType::f32;
}

model::WeightOptions weight_options(const std::string& nvfp4_nibble_order) {
  if (nvfp4_nibble_order == "low") return {quant::NibbleOrder::low_first};
  if (nvfp4_nibble_order == "high") return {quant::NibbleOrder::high_first};
  throw Error(ErrorCode::usage, "--nvfp4-nibble-order", nvfp4_nibble_order, "low or high");
}

int64_t memory_beside(int64_t weights) {
  const int64_t machine = memory_of_machine();
  if (machine == 0) return 0;
  if (weights >= machine) {
    throw Error(ErrorCode::does_not_fit, "weights", engine::size_at_least(weights),
                "less than this machine's " + engine::size_at_most(machine));
  }
  return machine - weights;
}

void check_load(const LoadOptions& options) {
  weight_options(options.nvfp4_nibble_order);
  const auto folder = checked_folder(options.model);
  const auto shape = model::read_shape(folder);
  const auto checkpoint = model::Checkpoint::open(folder);
  const auto drafting = resolve_drafting(options.drafting, folder, shape, holds_mtp(checkpoint, shape));
  const DeviceChoice device = device_of(options, checkpoint);
  const int64_t weights = device.on_gpu() ? forward::GpuModel::weight_bytes(
                                                shape, model::load_text_weights(checkpoint, shape), drafting.mtp)
                                          : checkpoint.total_bytes();
  const auto plan = plan_of(options, shape, drafting, weights + drafter_bytes(drafting), device.gpu.get());
  engine::check_options(engine_options(options, shape, plan, drafting, draft::built_in_table(),
                                       static_cast<int32_t>(shape.vocab_size), device.on_gpu()));
  check_recording(options.record_steps, folder);
}

std::filesystem::path checked_folder(const std::filesystem::path& given) {
  auto folder = given.empty() ? default_model() : given;
  std::error_code error;
  const auto status = std::filesystem::status(folder, error);
  if (status.type() == std::filesystem::file_type::not_found)
    throw Error(ErrorCode::bad_file, folder.string(), "does not exist", "a model folder");
  if (error) throw Error(ErrorCode::resource, folder.string(), error.message(), "a readable model folder");
  if (!std::filesystem::is_directory(status))
    throw Error(ErrorCode::bad_file, folder.string(), "is not a folder", "a model folder");
  if (::access(folder.c_str(), R_OK | X_OK) != 0)
    throw Error(ErrorCode::resource, folder.string(), "may not be read", "a readable model folder");
  return folder;
}

int checked_threads(int threads) {
  if (threads < 0 || threads > 1024)
    throw Error(ErrorCode::usage, "--threads", std::to_string(threads), "0 (one for each core) to 1024");
  return threads;
}

std::filesystem::path default_model() {
  if (const char* home = std::getenv("TANDEM_HOME"); home != nullptr && *home != '\0') {
    auto folder = std::filesystem::path(home) / bundled;
    if (is_folder(folder)) return folder;
    throw Error(ErrorCode::bad_file, "TANDEM_HOME", folder.string() + " does not exist", "the bundled model there");
  }
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  const auto installed = program.parent_path() / ".." / "share" / "tandem" / bundled;
  if (!error && is_folder(installed)) return installed.lexically_normal();
  auto source = std::filesystem::path(TANDEM_SOURCE_DIR) / bundled;
  if (is_folder(source)) return source;
  throw Error(ErrorCode::bad_file, "bundled model",
              "is neither at " + installed.lexically_normal().string() + " nor at " + source.string(),
              "MODEL, or TANDEM_HOME set to a folder with " + std::string(bundled));
}

uint32_t config_crc(const std::filesystem::path& folder) {
  return crc32c(MappedFile::open(folder / "config.json").bytes());
}

api::GenerationDefaults read_generation_defaults(const std::filesystem::path& folder, const model::Shape& shape) {
  api::GenerationDefaults defaults;
  defaults.eos_token_ids = shape.eos_token_ids;
  const auto path = folder / "generation_config.json";
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return defaults;

  const auto file = MappedFile::open(path);
  const model::JsonDocument document(file.text(), path.string());
  const auto config = document.root();
  const auto number = [&](const char* key, double& value, double low, double high, const char* expected) {
    if (!config.has(key)) return;
    value = config.number(key);
    if (!(value >= low && value <= high)) config.refuse(key, expected);
  };
  number("temperature", defaults.temperature, 0.0, 1e6, "a number >= 0");
  number("top_p", defaults.top_p, std::numeric_limits<double>::min(), 1.0, "a number in (0, 1]");
  number("min_p", defaults.min_p, 0.0, 1.0, "a number in [0, 1]");
  defaults.top_k =
      static_cast<int32_t>(config.optional_integer("top_k", {0, std::numeric_limits<int32_t>::max()}).value_or(0));
  defaults.eos_token_ids = stop_ids(config, shape);
  return defaults;
}

LoadedModel::LoadedModel(const LoadOptions& options)
    : options_(options),
      folder_(checked_folder(options.model)),
      shape_(model::read_shape(folder_)),
      tokenizer_(checked_tokenizer(folder_, shape_)),
      defaults_(read_generation_defaults(folder_, shape_)),
      checkpoint_(model::Checkpoint::open(folder_)),
      weights_(model::load_text_weights(checkpoint_, shape_, weight_options(options.nvfp4_nibble_order))),
      drafting_(resolve_drafting(options.drafting, folder_, shape_, weights_.mtp.has_value())),
      drafter_files_(drafting_.shape ? std::make_unique<DrafterFiles>(drafting_) : nullptr),
      device_(ready_device(options, checkpoint_, shape_, drafting_)),
      plan_(with_scales(
          plan_of(options, shape_, drafting_, weight_bytes(), device_.gpu.get()),
          stored_kv_scales(
              cache_type_on(device_.on_gpu(), options.kv_cache_dtype, compute_on(device_.on_gpu(), options.compute)),
              options.kv_scales, options.drafting.cache_dir, folder_, checkpoint_, shape_, weights_.mtp.has_value()))),
      threads_(plan_.ranks * engine::threads_of_rank(options.threads, ranks_of(options))),
      table_(stored_table(options.drafting, calibration_key(), unmeasured_table(drafting_, shape_))),
      runner_(make_runner()) {
  if (device_.on_gpu()) {
    const int64_t compared =
        engine::check_sampling(*runner_, plan_.capacity, static_cast<int32_t>(shape_.vocab_size), tokenizer_.size());
    log(LogLevel::debug, "sampling in the step: {} tokens, all of them the host's", compared);
  }
  record_steps(options);
  log(options.announce_device || (device_.has_gpu && !device_.on_gpu()) ? LogLevel::info : LogLevel::debug,
      "device: {}", device_text());
  engine::StepRunner& runner = recorder_ ? *recorder_ : *runner_;
  if (drafting_.choice != draft::Choice::none)
    drafter_ = std::make_unique<draft::ModelDrafter>(
        runner, drafter_options(drafting_, table_, plan_.capacity, shape_.vocab_size));
  engine_ = std::make_unique<engine::BatchEngine>(
      runner, engine_options(options, shape_, plan_, drafting_, table_, tokenizer_.size(), device_.on_gpu()),
      drafter_.get());
}

std::string LoadedModel::calibration_key() const {
  return fmt::format(
      "tandem {}; machine: {}{}; model config {:08x}, {} bytes; drafter {}; mtp {}; threads {}; ranks {} and {}; "
      "compute "
      "{}; cache {}; chunk {}",
      TANDEM_VERSION, name_of_machine(), device_.on_gpu() ? "; " + name_of(device_.gpu->properties()) : "",
      config_crc(folder_), checkpoint_.total_bytes(),
      drafting_.shape ? fmt::format("{:08x}", config_crc(drafting_.folder)) : "none", drafting_.mtp, threads_,
      options_.tensor_parallel_size, options_.decode_context_parallel_size, name_of(plan_.capacity.compute),
      name_of(plan_.capacity.cache_type), plan_.capacity.max_rows);
}

void LoadedModel::record_steps(const LoadOptions& options) {
  if (options.record_steps.empty()) return;
  check_recording(options.record_steps, folder_);
  engine::RecordingHeader header;
  header.capacity = plan_.capacity;
  header.ranks = ranks_of(options);
  header.model = name();
  header.config_crc = config_crc(folder_);
  if (drafting_.shape) header.drafter_crc = config_crc(drafting_.folder);
  recorder_ = std::make_unique<engine::StepRecorder>(*runner_, options.record_steps, header);
}

// On the device that runs the model. A CPU also has copies that the model makes.
int64_t LoadedModel::weight_bytes() const {
  if (device_.on_gpu())
    return forward::GpuModel::weight_bytes(shape_, weights_, drafting_.mtp) + drafter_bytes(drafting_);
  const int64_t rounded =
      compute_type(options_.compute) == forward::Compute::bf16 ? forward::rounded_bytes(shape_, weights_) : 0;
  return checkpoint_.total_bytes() + drafter_bytes(drafting_) + rounded;
}

std::unique_ptr<engine::StepRunner> LoadedModel::make_runner() const {
  const forward::DrafterModel drafter = drafter_files_ ? drafter_files_->model() : forward::DrafterModel{};
  if (device_.on_gpu()) return engine::run_on_gpu(*device_.gpu, shape_, weights_, plan_.capacity, drafter);
  return engine::run_on_cpu(shape_, weights_, plan_.capacity, ranks_of(options_), options_.threads, drafter);
}

std::string LoadedModel::device_text() const {
  if (device_.on_gpu()) return name_of(device_.gpu->properties());
  return device_.reason.empty() ? "cpu" : fmt::format("cpu ({})", device_.reason);
}

LoadedModel::~LoadedModel() = default;

api::ServedModel LoadedModel::served(std::vector<std::string> names) {
  api::ServedModel served;
  served.names = std::move(names);
  if (served.names.empty()) served.names.push_back(name());
  served.engine = engine_.get();
  served.tokenizer = &tokenizer_;
  served.defaults = defaults_;
  served.vocab_size = shape_.vocab_size;
  served.max_model_len = plan_.max_model_len;
  served.max_running = plan_.capacity.slots;
  served.cache_config = {{"block_size", std::to_string(plan_.capacity.page_rows)},
                         {"cache_dtype", label_of(plan_.capacity.cache_type)},
                         {"num_gpu_blocks", std::to_string(plan_.pool_rows / plan_.capacity.page_rows)},
                         {"enable_prefix_caching", plan_.capacity.kept_states > 0 ? "True" : "False"}};
  if (device_.on_gpu()) {
    const device::GpuProperties& gpu = device_.gpu->properties();
    served.gpu = {{"name", gpu.name},
                  {"driver", gpu.driver},
                  {"compute_capability", fmt::format("{}.{}", gpu.target / 10, gpu.target % 10)}};
    served.gpu_memory = gpu.memory;
  }
  return served;
}

std::string LoadedModel::name() const {
  const auto path = std::filesystem::absolute(folder_).lexically_normal();
  return path.has_filename() ? path.filename().string() : path.parent_path().filename().string();
}

}  // namespace tandem::cli
