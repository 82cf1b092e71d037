// A command's options: an App of CLI11 with the settings that all commands share. Every command is an App of its own,
// so that a --config file has the flags' plain names.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/config_file.h"
#include "cli/loaded_model.h"
#include "cli/sampling_options.h"

namespace CLI {
class App;
}

namespace tandem::cli {

class Command {
 public:
  // `name` as it is typed; `examples`: lines of --help's end.
  Command(const std::string& name, const std::string& description, const std::string& examples,
          bool takes_model = true);
  ~Command();
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;

  CLI::App& app() { return *app_; }  // strings in, strings out: CLI11's paths and nested names are not used
  const std::string& model() const { return model_; }

  void add_load_options(LoadOptions& load);
  void add_device_options(std::string& device, double& gpu_memory_utilization);
  void add_compute_option(std::string& compute);
  void add_kv_scales_option(std::string& kv_scales);
  void add_nibble_order_option(std::string& nvfp4_nibble_order);
  void add_drafting_options(DraftingFlags& flags);
  void add_memory_option(int64_t& bytes);
  void add_sampling_options(SamplingOptions& sampling);
  void add_json_flag(bool& json);

  // False: help was asked for and printed. Throws Error(usage).
  bool parse(const Words& words);

  // Settings of a file, for options that the command line left alone. Throws Error(usage).
  void apply(const std::vector<Setting>& settings);

 private:
  std::unique_ptr<CLI::App> app_;
  std::string model_;
};

}  // namespace tandem::cli
