// Words to options of the commands that write models.
#include <CLI/CLI.hpp>
#include <string>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/quantize.h"

namespace tandem::cli {

int quantize_command(const Words& words) {
  Command command("tandem quantize",
                  "Writes a model folder with weights of a BF16 or F32 model in FP8 or NVFP4, rounded to nearest.",
                  "  tandem quantize --out nano-fp8 --experts fp8 --dense fp8\n"
                  "  tandem quantize path/to/model --out path/to/model-nvfp4 --experts nvfp4 --dense keep --json\n");
  QuantizeCommandOptions options;
  std::string out;
  auto& app = command.app();
  app.add_option("--out", out, "Folder to write, which must not be there")->type_name("DIR")->default_str("");
  app.add_option("--experts", options.experts,
                 "Routed and shared experts: fp8 (128x128 blocks), nvfp4 (groups of 16) or keep");
  app.add_option("--dense", options.dense,
                 "Dense MLP and the q_a, q_b, kv_a and o projections of sparse attention: fp8 or keep");
  app.add_option("--threads", options.threads, "CPU threads; 0: one for each core");
  command.add_json_flag(options.json);
  if (!command.parse(words)) return 0;
  options.model = command.model();
  options.out = out;
  return run_quantize(options);
}

}  // namespace tandem::cli
