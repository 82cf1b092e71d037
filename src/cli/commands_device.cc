// Words to options of the commands about the machine and its GPUs.
#include <CLI/CLI.hpp>
#include <string>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/doctor.h"
#include "cli/kernels.h"

namespace tandem::cli {
namespace {

void add_nvrtc_option(Command& command, std::string& nvrtc) {
  command.app()
      .add_option("--nvrtc", nvrtc, "NVIDIA's run-time compiler (libnvrtc.so.13 or .12); default: it is looked for")
      ->type_name("FILE")
      ->default_str("");
}

}  // namespace

int kernels_build_command(const Words& words) {
  Command command("tandem kernels build",
                  "Compiles the GPU kernels for a model's dimensions, so that a start need not. Needs no GPU.",
                  "  tandem kernels build\n"
                  "  tandem kernels build path/to/model --arch sm_90a,sm_120a\n"
                  "  tandem kernels build --arch all --out share/tandem/kernels --json\n");
  KernelsOptions options;
  std::string out;
  auto& app = command.app();
  app.add_option("--arch", options.arch, "Targets such as sm_90a,sm_120a, or all; default: the GPUs of this machine")
      ->default_str("");
  app.add_option("--out", out, "Where compiled kernels are written; default: ~/.cache/tandem/kernels")
      ->type_name("DIR")
      ->default_str("");
  app.add_option("--threads", options.threads, "Compilations at a time; 0: one for each core");
  add_nvrtc_option(command, options.nvrtc);
  command.add_json_flag(options.json);
  if (!command.parse(words)) return 0;
  options.threads = checked_threads(options.threads);
  options.model = command.model();
  options.out = out;
  return run_kernels_build(options);
}

int kernels_list_command(const Words& words) {
  Command command("tandem kernels list",
                  "The program's GPU kernels, and the targets that the kernel cache has them for.",
                  "  tandem kernels list\n  tandem kernels list path/to/model --json\n");
  KernelsOptions options;
  std::string folder;
  command.app()
      .add_option("--cache-dir", folder, "Where compiled kernels lie; default: ~/.cache/tandem/kernels")
      ->type_name("DIR")
      ->default_str("");
  add_nvrtc_option(command, options.nvrtc);
  command.add_json_flag(options.json);
  if (!command.parse(words)) return 0;
  options.model = command.model();
  options.out = folder;
  return run_kernels_list(options);
}

int doctor_command(const Words& words) {
  Command command("tandem doctor",
                  "What this machine has for the program: driver, compiler, GPUs, processor, memory; and what to do "
                  "where something is missing.",
                  "  tandem doctor\n  tandem doctor --json\n", false);
  DoctorOptions options;
  add_nvrtc_option(command, options.nvrtc);
  command.add_json_flag(options.json);
  if (!command.parse(words)) return 0;
  return run_doctor(options);
}

}  // namespace tandem::cli
