// Words to options to run_…(), of all commands but those of commands_quality.cc. CLI11 costs six seconds of compile
// time, so few files see it.
#include "cli/commands.h"

#include <CLI/CLI.hpp>
#include <array>
#include <cstdio>
#include <functional>
#include <new>
#include <optional>
#include <regex>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "cli/bench_replay.h"
#include "cli/calibrate.h"
#include "cli/chat.h"
#include "cli/command.h"
#include "cli/config_file.h"
#include "cli/eval.h"
#include "cli/generate.h"
#include "cli/inspect.h"
#include "cli/plan.h"
#include "cli/serve.h"
#include "cli/standard_io.h"

namespace tandem::cli {
namespace {

void add_plan_options(Command& command, PlanOptions& options) {
  auto& app = command.app();
  const auto size = [&app](const char* name, auto& bytes, const char* help) {
    app.add_option(name, bytes, help)->transform(CLI::AsSizeValue(true))->type_name("SIZE");
  };
  app.add_option("--gpus", options.gpus, "GPUs and the memory of each, such as 2x96GiB")->default_str("");
  app.add_option("--host-memory", options.host_memory, "Memory of a host without GPUs; default: this machine's")
      ->default_str("");
  app.add_option("--gpu-memory-utilization", options.gpu_memory_utilization, "Share of a GPU's memory that is planned");
  app.add_option("--kv-cache-dtype", options.kv_cache_dtype,
                 "f32, bf16, fp8, fp8_row, nvfp4 or bf16_fp8_index; auto: f32 in host memory, bf16 on GPUs");
  app.add_option("--max-num-seqs", options.max_num_seqs, "Streams at a time");
  app.add_option("--max-model-len", options.max_model_len,
                 "Tokens of prompt and reply together; 0: what the memory allows");
  app.add_option("--max-num-batched-tokens", options.max_num_batched_tokens, "Rows of one prefill chunk; 0: 512");
  size("--kv-cache-memory", options.kv_cache_memory,
       "Memory for the token pool of a rank; 0: 1GiB, on GPUs what is left");
  size("--kept-states-memory", options.kept_states_memory,
       "Memory of a rank for kept prefixes; default: 256MiB, on GPUs 1GiB");
  app.add_option("--tensor-parallel-size", options.tensor_parallel_size, "1 or 2 ranks; 0: one a GPU, at most two");
  app.add_option("--decode-context-parallel-size", options.decode_context_parallel_size,
                 "2: each of two ranks has half of a stream's rows");
  app.add_option("--drafter", options.drafter, "none, mtp or dflash2; auto: mtp where the model has it");
  app.add_option("--vision", options.vision, "on: the vision tower on rank 0");
  app.add_option("--weights", options.weights, "Weights of a bare config.json: bf16, fp8, nvfp4 or exl3:N")
      ->default_str("");
  app.add_option("--weights-bytes-per-parameter", options.bytes_per_parameter, "The same as a plain factor");
  app.add_option("--threads", options.threads, "CPU threads of a rank; 0: one for each core");
  command.add_json_flag(options.json);
}

// Settings of serve that are not the server's own.
struct LogOptions {
  std::string level = "info";
  bool json = false;
  void apply() const {
    static const std::array<std::pair<const char*, LogLevel>, 4> levels = {{{"error", LogLevel::error},
                                                                            {"warning", LogLevel::warning},
                                                                            {"info", LogLevel::info},
                                                                            {"debug", LogLevel::debug}}};
    for (const auto& [name, value] : levels)
      if (level == name) set_log_level(value);
    set_log_json(json);
  }
};

void add_stream_options(Command& command, ServeOptions& options) {
  auto& app = command.app();
  app.add_option("--max-num-seqs", options.max_num_seqs, "Requests that run at a time, 1 to 8");
  app.add_option("--kept-states-memory", options.kept_states_memory,
                 "Memory for states that later prompts resume from; 0: none are kept; default: 256MiB, on a GPU 1GiB")
      ->transform(CLI::AsSizeValue(true))
      ->type_name("SIZE")
      ->default_str("");
  command.add_device_options(options.device, options.gpu_memory_utilization);
  command.add_compute_option(options.compute);
  app.add_option("--kv-cache-dtype", options.kv_cache_dtype,
                 "auto (as --compute), f32, bf16, fp8, fp8_row, nvfp4 or bf16_fp8_index");
  command.add_kv_scales_option(options.kv_scales);
  command.add_nibble_order_option(options.nvfp4_nibble_order);
  app.add_option("--tensor-parallel-size", options.tensor_parallel_size, "1, or 2: two ranks in this process");
  app.add_option("--decode-context-parallel-size", options.decode_context_parallel_size,
                 "1, or 2: each rank holds half of the token rows");
  app.add_option("--prefill-slice-ms", options.prefill_slice_ms,
                 "Longest step with prompt rows while others decode; 0: no bound");
  app.add_option("--fill-share", options.fill_share, "Share of the time that prompts get while others decode");
  app.add_option("--watchdog-s", options.watchdog_s,
                 "Seconds without a finished step after which /health fails; 0: off");
  app.add_flag("--check-numerics", options.check_numerics,
               "After each step look for NaN and infinity in states and hidden rows, and fail there; slow");
  app.add_flag("--watchdog-exit", options.watchdog_exit, "End with status 70 then");
  app.add_option("--record-steps", options.record_steps, "Write every step to FILE, for tandem bench replay")
      ->type_name("FILE");
}

void add_serve_options(Command& command, ServeOptions& options, LogOptions& log) {
  auto& app = command.app();
  app.add_option("--host", options.host, "Address to listen on");
  app.add_option("--port", options.port, "Port to listen on; 0: any free one");
  app.add_option("--served-model-name", options.served_model_name,
                 "Name in the API (repeatable); default: the folder's name")
      ->allow_extra_args(false)
      ->default_str("");
  app.add_flag("--strict-model-name", options.strict_model_name, "Answer 404 to requests for other names");
  app.add_option("--schema-unsupported", options.schema_unsupported,
                 "refuse: schemas with keywords that are not enforced get 400; warn: these keywords are logged")
      ->capture_default_str();
  app.add_flag("--turns-may-end-in-reasoning", options.turns_may_end_in_reasoning,
               "Do not mask <|user|>, <|observation|> and <|assistant|> while reasoning is open");
  app.add_option("--api-key", options.api_keys, "Key that clients must send (repeatable); also TANDEM_API_KEY")
      ->allow_extra_args(false)
      ->default_str("");
  app.add_flag("--insecure", options.insecure, "Allow listening beyond this machine without a key");
  app.add_option("--tls-cert", options.tls_cert, "Certificates in PEM, the server's first: speak HTTPS")
      ->type_name("FILE");
  app.add_option("--tls-key", options.tls_key, "The private key of the first one, PEM")->type_name("FILE");
  app.add_option("--default-seed", options.default_seed, "Seed of requests without one")
      ->check(CLI::IsMember({"random", "prompt"}));
  app.add_option("--reasoning-hold", options.reasoning_hold,
                 "Tokens of streamed reasoning that wait until they are known not to be the answer");
  app.add_option("--threads", options.threads, "CPU threads; 0: one for each core");
  app.add_option("--max-model-len", options.max_model_len,
                 "Tokens of prompt and reply together; 0: what the memory allows");
  command.add_memory_option(options.kv_cache_memory);
  app.add_option("--max-num-batched-tokens", options.max_num_batched_tokens,
                 "Rows of one prefill chunk; 0: 512, on a GPU 2048");
  add_stream_options(command, options);
  command.add_drafting_options(options.drafting);
  app.add_option("--request-timeout-s", options.request_timeout_s, "Longest life of a request; 0: no limit");
  app.add_option("--open-metrics", options.open_metrics,
                 "true: /metrics needs no key; false: it does; default: true when listening on this machine only")
      ->default_str("");
  app.add_option("--max-queued-requests", options.max_queued_requests, "More waiting requests are answered with 429");
  app.add_option("--sse-keepalive-s", options.sse_keepalive_s,
                 "Seconds of silence before a stream gets a comment; 0: off");
  app.add_option("--drain-timeout-s", options.drain_timeout_s,
                 "Seconds that running requests get to finish on SIGTERM");
  app.add_option("--log-level", log.level, "error, warning, info or debug")
      ->check(CLI::IsMember({"error", "warning", "info", "debug"}));
  app.add_flag("--log-json", log.json, "Log lines as JSON");
}

}  // namespace

int generate_command(const Words& words) {
  Command command(
      "tandem generate", "Writes the reply to one prompt.",
      "  tandem generate --prompt '<|user|>What is 12 + 30?<|assistant|><think>' --temperature 0\n"
      "  tandem generate --prompt-ids 1990,1992,1995 --max-tokens 16 --json\n"
      "  echo '{\"messages\":[{\"role\":\"user\",\"content\":\"Who are you?\"}]}' | tandem generate --messages -\n");
  GenerateOptions options;
  auto& app = command.app();
  app.add_option("--prompt", options.prompt, "Prompt text; <|user|> and the like become tokens; -: standard input");
  app.add_option("--prompt-ids", options.prompt_ids, "Prompt as token ids, such as 1,2,3");
  app.add_option("--messages", options.messages, "File with one chat body (JSON); -: standard input");
  command.add_sampling_options(options.sampling);
  app.add_option("--min-tokens", options.min_tokens, "No stop token before that many tokens");
  app.add_option("--stop", options.stop, "End the reply before this text (repeatable)")
      ->allow_extra_args(false)
      ->default_str("");
  app.add_flag("--ignore-eos", options.ignore_eos, "Do not end at a stop token");
  app.add_flag("--add-special-tokens,!--no-add-special-tokens", options.add_special_tokens,
               "Begin a text prompt with [gMASK]<sop> (default)");
  command.add_load_options(options.load);
  command.add_json_flag(options.json);
  if (!command.parse(words)) return 0;
  options.load.model = command.model();
  return run_generate(options);
}

int chat_command(const Words& words) {
  Command command("tandem chat",
                  "A conversation in the terminal. Ctrl-C ends a reply, Ctrl-D leaves, /help lists the commands.",
                  "  tandem chat\n"
                  "  tandem chat --system 'Answer briefly.' --temperature 0\n"
                  "  echo 'What is the capital of Norway?' | tandem chat\n");
  ChatOptions options;
  auto& app = command.app();
  app.add_option("--system", options.system, "System message");
  app.add_option("--effort", options.effort, "How much the model thinks first: low, high or max");
  app.add_flag("--show-reasoning", options.show_reasoning, "Write the reasoning also when the output is no terminal");
  command.add_sampling_options(options.sampling);
  command.add_load_options(options.load);
  if (!command.parse(words)) return 0;
  options.load.model = command.model();
  options.load.kept_states_memory = std::nullopt;  // a turn resumes after the one before
  return run_chat(options);
}

int inspect_command(const Words& words) {
  Command command(
      "tandem inspect",
      "Prints shape, layers, parameters, cache bytes, formats of weights, missing and unknown tensors. MODEL may be a "
      "config.json.",
      "  tandem inspect\n  tandem inspect path/to/model --bandwidth 4400 --context 32768\n"
      "  tandem inspect path/to/config.json --json\n");
  InspectOptions options;
  auto& app = command.app();
  app.add_option("--bandwidth", options.bandwidth, "Rate of the memory in GB/s: how fast a step can be at best");
  app.add_option("--context", options.context, "Tokens before that step");
  app.add_option("--kv-cache-dtype", options.kv_cache_dtype,
                 "How they are stored: auto (bf16), f32, bf16, fp8, fp8_row, nvfp4 or bf16_fp8_index");
  command.add_nibble_order_option(options.nvfp4_nibble_order);
  command.add_json_flag(options.json);
  if (!command.parse(words)) return 0;
  options.model = command.model();
  return run_inspect(options);
}

int plan_command(const Words& words) {
  Command command(
      "tandem plan",
      "Prints what a model needs on given devices, and how many tokens it then serves. MODEL may be a config.json.",
      "  tandem plan\n"
      "  tandem plan path/to/model --gpus 2x96GiB --kv-cache-dtype fp8 --decode-context-parallel-size 2\n"
      "  tandem plan path/to/config.json --weights exl3:4 --gpus 2x96GiB --json\n");
  PlanOptions options;
  std::string drafter_model;
  command.app()
      .add_option("--drafter-model", drafter_model, "Folder of a DFlash2 drafter; default: <MODEL>-dflash2")
      ->type_name("DIR");
  add_plan_options(command, options);
  if (!command.parse(words)) return 0;
  options.model = command.model();
  options.drafter_model = drafter_model;
  return run_plan(options);
}

int eval_skills_command(const Words& words) {
  Command command(
      "tandem eval skills", "Runs prompts with known answers, greedily; fails if too few replies are exact.",
      "  tandem eval skills\n  tandem eval skills path/to/model --skills path/to/skills.json --min 100 --json\n"
      "  tandem eval skills path/to/exl3 --compare path/to/bf16\n");
  SkillsCommandOptions options;
  std::string skills, compare;
  command.app().add_option("--skills", skills, "File of prompts and answers; default: skills.json of the model");
  command.app().add_option("--min", options.minimum, "Exact answers needed; default: all but one");
  command.app()
      .add_option("--compare", compare, "Another model, with an f32 cache, that gets the same prompts")
      ->type_name("MODEL")
      ->default_str("");
  command.add_load_options(options.load);
  command.add_json_flag(options.json);
  if (!command.parse(words)) return 0;
  options.load.model = command.model();
  options.skills = skills;
  options.compare = compare;
  return run_eval_skills(options);
}

int eval_acceptance_command(const Words& words) {
  Command command(
      "tandem eval acceptance",
      "Tokens that a step yields with a drafter, over a file of prompts; greedy unless --temperature says otherwise. "
      "Where the file has the steps of the reference loop, they are compared; fails if they are not the same.",
      "  tandem eval acceptance --drafter dflash2\n"
      "  tandem eval acceptance --drafter mtp --num-speculative-tokens 2 --prompts chats.jsonl --json\n"
      "  tandem eval acceptance --drafter dflash2 --temperature 1 --top-p 0.95 --seed 1 --max-tokens 512\n");
  AcceptanceCommandOptions options;
  std::string prompts;
  command.app()
      .add_option("--prompts", prompts,
                  "JSONL: a chat body in each line, or prompt_ids with a reference's output_ids and tokens per step; "
                  "default: acceptance_prompts.jsonl of the model")
      ->type_name("FILE")
      ->default_str("");
  command.add_sampling_options(options.sampling);
  options.load.drafting.policy = "fixed";  // all drafts that there are, unless a flag says otherwise
  command.add_load_options(options.load);
  command.add_json_flag(options.json);
  if (!command.parse(words)) return 0;
  options.load.model = command.model();
  options.prompts = prompts;
  return run_eval_acceptance(options);
}

int eval_parity_command(const Words& words) {
  Command command(
      "tandem eval parity",
      "Compares the forward pass, tokenizer and chat template with vectors of the reference implementation.",
      "  tandem eval parity --golden tests/golden\n  tandem eval parity --golden tests/golden --only nano/case_T40 "
      "--json\n",
      false);
  ParityCommandOptions options;
  std::string golden, models;
  auto& app = command.app();
  app.add_option("--golden", golden, "Folder with one folder of vectors for each model")->required()->type_name("DIR");
  app.add_option("--models", models, "Where models without weights of their own lie; default: beside the bundled model")
      ->type_name("DIR");
  app.add_option("--only", options.only, "One model or one case, such as nano/case_T40");
  app.add_option("--device", options.device,
                 "cpu (default), cuda, auto. On a GPU logits are judged as a whole: median relative L2, mean KL");
  app.add_option("--compute", options.compute, "auto, f32 or bf16: on the CPU the roundings of a GPU, judged as there");
  app.add_option("--threads", options.threads, "CPU threads; 0: one for each core");
  command.add_json_flag(options.json);
  if (!command.parse(words)) return 0;
  options.golden = golden;
  options.models = models;
  return run_eval_parity(options);
}

int calibrate_timing_command(const Words& words) {
  Command command(
      "tandem calibrate timing",
      "Measures what the pieces of a round cost on this machine and stores the table, by which later starts "
      "with the same settings choose how many drafts are checked. Replies do not depend on it.",
      "  tandem calibrate timing\n  tandem calibrate timing path/to/model --threads 8 --json\n");
  CalibrateOptions options;
  command.add_load_options(options.load);
  command.app().add_option("--max-num-seqs", options.load.max_num_seqs, "Streams at a time");
  command.app().add_option("--tensor-parallel-size", options.load.tensor_parallel_size,
                           "1, or 2: two ranks in this process");
  command.app().add_option("--decode-context-parallel-size", options.load.decode_context_parallel_size,
                           "1, or 2: each rank holds half of the token rows");
  command.add_json_flag(options.json);
  if (!command.parse(words)) return 0;
  options.load.model = command.model();
  return run_calibrate_timing(options);
}

int bench_replay_command(const Words& words) {
  Command command("tandem bench replay",
                  "Runs steps that serve --record-steps wrote, without engine and HTTP, and compares their results.",
                  "  tandem serve --record-steps steps.bin\n  tandem bench replay steps.bin\n"
                  "  tandem bench replay steps.bin path/to/model --threads 1 --json\n",
                  false);
  BenchReplayOptions options;
  std::string file, model;
  auto& app = command.app();
  app.add_option("file", file, "Recording")->required()->type_name("FILE");
  app.add_option("model", model, "The model folder that it was made with; default: the bundled model")
      ->type_name("MODEL");
  app.add_option("--drafter-model", options.drafter_model, "The DFlash2 drafter's folder; default: <MODEL>-dflash2")
      ->type_name("DIR")
      ->default_str("");
  app.add_option("--threads", options.threads, "CPU threads of each rank; 0: the cores divided among the ranks");
  command.add_nibble_order_option(options.nvfp4_nibble_order);
  command.add_json_flag(options.json);
  if (!command.parse(words)) return 0;
  options.file = file;
  options.model = model;
  return run_bench_replay(options);
}

int serve_command(const Words& words) {
  Command command("tandem serve", "Serves the model on http://127.0.0.1:8012 until SIGTERM or Ctrl-C.",
                  "  tandem serve\n"
                  "  tandem serve path/to/model --port 8080 --served-model-name glm\n"
                  "  tandem serve --config tandem.toml --print-config\n");
  ServeOptions options;
  LogOptions log;
  bool print_config = false;
  std::string config;
  add_serve_options(command, options, log);
  command.app()
      .add_option("--config", config,
                  "File with settings of the same names, such as port = 8013; the command line wins")
      ->type_name("FILE")
      ->default_str("")
      ->configurable(false);
  command.app()
      .add_flag("--print-config", print_config, "Print the settings as a --config file and leave")
      ->configurable(false);
  if (!command.parse(words)) return 0;
  if (command.app().count("--config") > 0) command.apply(read_settings(config));
  options.model = command.model();
  if (print_config) {
    check_serve(options);
    static const std::regex keys("(^|\n)api-key=[^\"\n][^\n]*"),
        not_given("(^|\n)(model|api-key|served-model-name|kept-states-memory)=\"\"");
    std::string text = command.app().config_to_str(true, false);
    text = std::regex_replace(text, not_given, "$1# $2 is not set");
    write_out(std::regex_replace(text, keys, "$1# api-key is set, and not shown"));
    return 0;
  }
  log.apply();
  return run_serve(options);
}

}  // namespace tandem::cli
