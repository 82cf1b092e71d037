// The shared options and their words.
#include "cli/command.h"

#include <CLI/CLI.hpp>

#include "base/error.h"
#include "cli/standard_io.h"

namespace tandem::cli {

Command::Command(const std::string& name, const std::string& description, const std::string& examples, bool takes_model)
    : app_(std::make_unique<CLI::App>(description, name)) {
  app_->footer("Examples:\n" + examples);
  app_->option_defaults()->always_capture_default();
  if (takes_model) {
    app_->add_option("model", model_, "Model folder; default: the bundled model")
        ->type_name("MODEL")
        ->check([](const std::string& given) { return given.empty() ? "is empty" : ""; });
  }
}

Command::~Command() = default;

void Command::add_load_options(LoadOptions& load) {
  app_->add_option("--threads", load.threads, "CPU threads; 0: one for each core");
  app_->add_option("--max-model-len", load.max_model_len,
                   "Tokens of prompt and reply together; 0: what the memory allows");
  add_memory_option(load.kv_cache_memory);
  app_->add_option("--max-num-batched-tokens", load.max_num_batched_tokens,
                   "Rows of one prefill chunk; 0: 512, on a GPU 2048");
  app_->add_flag("--check-numerics", load.check_numerics,
                 "After each step look for NaN and infinity in states and hidden rows, and fail there; slow");
  load.device = "auto";
  add_device_options(load.device, load.gpu_memory_utilization);
  add_compute_option(load.compute);
  app_->add_option("--kv-cache-dtype", load.kv_cache_dtype,
                   "How token rows are stored: auto (as --compute), f32, bf16, fp8, fp8_row, nvfp4 or bf16_fp8_index");
  add_kv_scales_option(load.kv_scales);
  add_nibble_order_option(load.nvfp4_nibble_order);
  add_drafting_options(load.drafting);
}

void Command::add_device_options(std::string& device, double& gpu_memory_utilization) {
  app_->add_option("--device", device,
                   "cpu, cuda (GPU 0) or auto: the GPU, if there is one that runs this model with these settings");
  app_->add_option("--gpu-memory-utilization", gpu_memory_utilization, "Share of the GPU's memory that is planned");
}

void Command::add_compute_option(std::string& compute) {
  app_->add_option(
      "--compute", compute,
      "Arithmetic of activations: f32, bf16 (rounded where GPUs round them) or auto (f32 on a CPU, bf16 on a GPU)");
}

void Command::add_kv_scales_option(std::string& kv_scales) {
  app_->add_option("--kv-scales", kv_scales,
                   "Scales of nvfp4 rows: auto (those that tandem calibrate kv stored), none, or its FILE");
}

void Command::add_nibble_order_option(std::string& nvfp4_nibble_order) {
  app_->add_option(
          "--nvfp4-nibble-order", nvfp4_nibble_order,
          "Half of a byte that holds the even one of two NVFP4 weights, which no file says: low (usual) or high")
      ->check(CLI::IsMember({"low", "high"}));
}

void Command::add_drafting_options(DraftingFlags& flags) {
  app_->add_option("--drafter", flags.drafter,
                   "Who proposes tokens for a step to check: none, copy, mtp, dflash2 or auto (what there is)");
  app_->add_option("--drafter-model", flags.drafter_model, "Folder of a DFlash2 drafter; default: <MODEL>-dflash2")
      ->type_name("DIR")
      ->default_str("");
  app_->add_option("--draft-policy", flags.policy,
                   "How many drafts are checked: joint (what pays by the timing table), fixed or confidence:P");
  app_->add_option("--num-speculative-tokens", flags.num_speculative_tokens,
                   "Drafts of a step at most; default: as many as the drafter makes")
      ->default_str("");
  app_->add_option("--draft-verify", flags.verify,
                   "exact: the tokens of a run without drafts; ratio: their distribution only, and more accepted");
  app_->add_option("--cache-dir", flags.cache_dir, "Where measured tables lie; default: ~/.cache/tandem")
      ->type_name("DIR")
      ->default_str("");
}

void Command::add_memory_option(int64_t& bytes) {
  app_->add_option("--kv-cache-memory", bytes,
                   "Memory for the token pool, such as 512MiB; 0: 1GiB, on a GPU what is left")
      ->transform(CLI::AsSizeValue(true))
      ->type_name("SIZE");
}

void Command::add_sampling_options(SamplingOptions& sampling) {
  app_->add_option("--max-tokens", sampling.max_tokens, "Length limit of a reply");
  app_->add_option("--temperature", sampling.temperature, "0: greedy; default: generation_config.json");
  app_->add_option("--top-k", sampling.top_k, "Sample from the K most likely tokens; 0: off");
  app_->add_option("--top-p", sampling.top_p, "Sample from the smallest set of this probability");
  app_->add_option("--min-p", sampling.min_p, "Drop tokens below this share of the most likely one");
  app_->add_option("--seed", sampling.seed, "Same seed, same reply; default: random");
}

void Command::add_json_flag(bool& json) { app_->add_flag("--json", json, "Print one JSON object"); }

bool Command::parse(const Words& words) {
  try {
    app_->parse(Words(words.rbegin(), words.rend()));  // CLI11 takes them from the back
    return true;
  } catch (const CLI::CallForHelp&) {
    write_out(app_->help());
    return false;
  } catch (const CLI::ParseError& e) {
    throw Error(ErrorCode::usage, "command line", e.what(), "what " + app_->get_name() + " --help lists");
  }
}

void Command::apply(const std::vector<Setting>& settings) {
  for (const Setting& setting : settings) {
    CLI::Option* option = app_->get_option_no_throw("--" + setting.name);
    if (option == nullptr) option = app_->get_option_no_throw(setting.name);  // MODEL
    if (option == nullptr || !option->get_configurable())
      throw Error(ErrorCode::usage, setting.where, "\"" + setting.name + "\"",
                  "an option that " + app_->get_name() + " --help lists");
    if (!option->empty()) continue;
    const bool is_flag = option->get_expected_min() == 0;
    if (is_flag && setting.values != Words{"true"} && setting.values != Words{"false"})
      throw Error(ErrorCode::usage, setting.where, "another value of \"" + setting.name + "\"", "true or false");
    try {
      option->add_result(setting.values);
      option->run_callback();
    } catch (const CLI::ParseError& e) {
      throw Error(ErrorCode::usage, setting.where, e.what(), "what " + app_->get_name() + " --help says");
    }
  }
}

}  // namespace tandem::cli
