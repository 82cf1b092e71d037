// Words to options of the commands that write models and check what was written.
#include <CLI/CLI.hpp>
#include <string>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/quantize.h"

namespace tandem::cli {
namespace {

void add_calibration_options(CLI::App& app, CalibrationText& text) {
  app.add_option("--calibration", text.files,
                 "UTF-8 texts, or JSONL with a text in each line's \"text\", that EXL3 is encoded for, or none; "
                 "default: calibration_text.jsonl of the model")
      ->type_name("FILE...")
      ->default_str("");
  app.add_option("--calibration-tokens", text.tokens, "Use the first texts that have so many tokens; 0: all");
}

}  // namespace

int quantize_command(const Words& words) {
  Command command(
      "tandem quantize",
      "Writes a model folder with weights of a BF16 or F32 model in FP8 or NVFP4, rounded to nearest, or in "
      "EXL3, encoded for the inputs that calibration text gives every layer. An EXL3 run that was stopped "
      "goes on where it was when it is started again.",
      "  tandem quantize path/to/model path/to/exl3 --experts exl3:4 --calibration texts.jsonl\n"
      "  tandem quantize --out nano-4 --experts exl3 --dense exl3 --bits-target 4 --head exl3:6\n"
      "  tandem quantize --out nano-fp8 --experts fp8 --dense fp8\n"
      "  tandem quantize path/to/model --out path/to/model-nvfp4 --experts nvfp4 --dense keep --json\n");
  QuantizeCommandOptions options;
  std::string out;
  auto& app = command.app();
  app.add_option("out,--out", out, "Folder to write, which must not be there")->type_name("DIR")->default_str("");
  app.add_option("--experts", options.experts,
                 "Routed and shared experts: exl3:N (N bits, 1 to 8), fp8 (128x128 blocks), nvfp4 (groups of 16) or "
                 "keep (bf16)");
  app.add_option(
      "--dense", options.dense,
      "Dense MLP and the q_a, q_b, kv_a and o projections of sparse attention: exl3:N (then also q, k, v and "
      "o of KDA), fp8 or keep (bf16)");
  app.add_option("--head", options.head, "The output head: exl3:N or keep (bf16)");
  app.add_option(
      "--bits-target", options.bits_target,
      "Average bits over what of experts and dense is exl3, whose N may then be left out: widths are chosen by "
      "measured error; 0: every matrix has its N");
  app.add_option("--codebook", options.codebook, "Of EXL3: mul1, mcg or 3inst");
  app.add_option("--layout", options.layout,
                 "exl3, or tr3: routed experts only, which share their input scales within a layer");
  app.add_option("--out-scales", options.out_scales, "Scales of outputs: always, never or auto (by the inputs' skew)");
  app.add_option("--scale-search", options.scale_search,
                 "How a matrix's scale is found: full, small or none (a table)");
  app.add_option("--seed", options.seed, "Of the random signs");
  app.add_option("--window", options.window, "Tokens of calibration text that are read together");
  add_calibration_options(app, options.calibration);
  app.add_option("--threads", options.threads, "CPU threads; 0: one for each core");
  command.add_json_flag(options.json);
  if (!command.parse(words)) return 0;
  options.model = command.model();
  options.out = out;
  return run_quantize(options);
}

int verify_command(const Words& words) {
  Command command(
      "tandem verify",
      "Whether a folder that tandem quantize wrote in EXL3 is as it was written: every file's SHA-256 against "
      "its manifest.json and, with --recheck, some matrices against a new encoding.",
      "  tandem verify path/to/exl3\n"
      "  tandem verify path/to/exl3 --recheck 4 --model path/to/model --calibration texts.jsonl\n");
  VerifyOptions options;
  std::string model;
  auto& app = command.app();
  app.add_option("--recheck", options.recheck, "Matrices, chosen at random, to encode again");
  app.add_option("--recheck-seed", options.seed, "Which are chosen");
  app.add_option("--model", model, "The model that was encoded, for --recheck")->type_name("DIR")->default_str("");
  add_calibration_options(app, options.calibration);
  app.add_option("--threads", options.threads, "CPU threads; 0: one for each core");
  command.add_json_flag(options.json);
  if (!command.parse(words)) return 0;
  options.folder = command.model();
  options.model = model;
  return run_verify(options);
}

}  // namespace tandem::cli
