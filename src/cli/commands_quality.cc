// Words to options of the commands that measure quality.
#include <CLI/CLI.hpp>
#include <string>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/eval_quality.h"
#include "cli/kv_scales.h"

namespace tandem::cli {
namespace {

// Options of both.
template <typename Options>
void add_quality_options(Command& command, Options& options, const char* device_help, const char* compute_help,
                         const char* cache_help) {
  auto& app = command.app();
  app.add_option("--text", options.text,
                 "UTF-8 text, or JSONL with a text in each line's \"text\"; -: standard input; default: "
                 "eval_text.jsonl of the model")
      ->type_name("FILE")
      ->default_str("");
  app.add_option("--window", options.window, "Tokens that are read together; each window starts afresh");
  app.add_option("--device", options.device, device_help);
  app.add_option("--compute", options.compute, compute_help);
  app.add_option("--kv-cache-dtype", options.kv_cache_dtype, cache_help);
  command.add_kv_scales_option(options.kv_scales);
  command.add_nibble_order_option(options.nvfp4_nibble_order);
  app.add_option("--tensor-parallel-size", options.tensor_parallel_size, "1, or 2: two ranks in this process");
  app.add_option("--decode-context-parallel-size", options.decode_context_parallel_size,
                 "1, or 2: each rank holds half of the token rows");
  app.add_option("--threads", options.threads, "CPU threads of a rank; 0: the cores divided among the ranks");
  command.add_json_flag(options.json);
}

}  // namespace

int eval_kld_command(const Words& words) {
  Command command(
      "tandem eval kld",
      "How far the student's next-token distributions are from the teacher's, over every position of a text. Without "
      "--student the teacher is its own student, or, with --capture, only the capture is written.",
      "  tandem eval kld --kv-cache-dtype bf16 --json\n"
      "  tandem eval kld --compute bf16\n"
      "  tandem eval kld --teacher path/to/bf16 --student path/to/exl3 --text texts.jsonl --svg kld.svg\n"
      "  tandem eval kld --teacher path/to/bf16 --text texts.jsonl --capture teacher.logits\n"
      "  tandem eval kld --teacher teacher.logits --student path/to/exl3 --text texts.jsonl --runs 5\n",
      false);
  KldCommandOptions options;
  std::string teacher, student, capture, svg;
  auto& app = command.app();
  app.add_option("--teacher", teacher, "Model folder or a file that --capture wrote; default: the bundled model")
      ->type_name("MODEL|CAPTURE")
      ->default_str("");
  app.add_option("--student", student, "Model folder")->type_name("MODEL")->default_str("");
  add_quality_options(
      command, options,
      "Where the student runs: cpu, cuda (GPU 0) or auto (the GPU, if there is one that runs it); the teacher: the CPU",
      "Arithmetic of the student's activations: f32, bf16 (rounded where GPUs round them) or auto (f32 on a CPU, bf16 "
      "on a GPU); "
      "the "
      "teacher's is f32",
      "The student's: auto (as --compute), f32, bf16, fp8, fp8_row, nvfp4 or bf16_fp8_index; the teacher's is f32");
  app.add_option("--runs", options.runs, "Cold runs, each with models loaded anew");
  app.add_option("--capture", capture, "Keep the teacher's logits (four bytes for each position and token id) in FILE")
      ->type_name("FILE")
      ->default_str("");
  app.add_option("--svg", svg, "Draw the curve over positions and the histogram into FILE")
      ->type_name("FILE")
      ->default_str("");
  if (!command.parse(words)) return 0;
  options.teacher = teacher;
  options.student = student;
  options.capture = capture;
  options.svg = svg;
  return run_eval_kld(options);
}

int eval_ppl_command(const Words& words) {
  Command command("tandem eval ppl", "Perplexity of every token of a text but the first of each window.",
                  "  tandem eval ppl\n  tandem eval ppl path/to/model --text book.txt --window 4096 --json\n");
  PplCommandOptions options;
  add_quality_options(command, options, "cpu, cuda (GPU 0) or auto: the GPU, if there is one that runs this model",
                      "Arithmetic of activations: f32, bf16 or auto (f32 on a CPU, bf16 on a GPU)",
                      "auto (as --compute), f32, bf16, fp8, fp8_row, nvfp4 or bf16_fp8_index");
  if (!command.parse(words)) return 0;
  options.model = command.model();
  return run_eval_ppl(options);
}

int calibrate_kv_command(const Words& words) {
  Command command("tandem calibrate kv",
                  "Measures the largest values of every layer's token rows over a text and stores the scales, which "
                  "--kv-cache-dtype nvfp4 of this model then uses.",
                  "  tandem calibrate kv\n  tandem calibrate kv path/to/model --calibration wikitext.txt --json\n");
  CalibrateKvOptions options;
  std::string cache_dir;
  auto& app = command.app();
  app.add_option("--calibration", options.text,
                 "UTF-8 text, or JSONL with a text in each line's \"text\"; -: standard input; default: "
                 "calibration_text.jsonl of the model")
      ->type_name("FILE")
      ->default_str("");
  app.add_option("--window", options.window, "Tokens that are read together; each window starts afresh");
  app.add_option("--threads", options.threads, "CPU threads; 0: one for each core");
  app.add_option("--cache-dir", cache_dir, "Where the scales are stored; default: ~/.cache/tandem")
      ->type_name("DIR")
      ->default_str("");
  command.add_nibble_order_option(options.nvfp4_nibble_order);
  command.add_json_flag(options.json);
  if (!command.parse(words)) return 0;
  options.model = command.model();
  options.cache_dir = cache_dir;
  return run_calibrate_kv(options);
}

}  // namespace tandem::cli
