// Which command is meant, and what becomes of its errors.
#include "cli/command_line.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "cli/commands.h"
#include "cli/standard_io.h"

namespace tandem::cli {
namespace {

constexpr const char* program_help =
    "tandem - serves GLM-5.3-Flash\n"
    "\n"
    "Usage: tandem COMMAND [MODEL] [options]\n"
    "\n"
    "MODEL is a model folder; without it the small bundled model is used.\n"
    "\n"
    "Commands:\n"
    "  serve            answer the OpenAI chat API over HTTP\n"
    "  chat             talk to the model in the terminal\n"
    "  generate         one prompt, one reply\n"
    "  inspect          what is in a model folder\n"
    "  plan             what a model needs on given devices\n"
    "  quantize         write a model folder with weights in EXL3, FP8 or NVFP4\n"
    "  verify           whether a folder that quantize wrote in EXL3 is as it was written\n"
    "  eval skills      prompts with known answers\n"
    "  eval parity      compare with vectors of the reference implementation\n"
    "  eval acceptance  tokens that a step yields with a drafter\n"
    "  eval kld         how far a model's answers are from another's, position by position\n"
    "  eval ppl         perplexity over a text\n"
    "  calibrate timing measure what a round costs here, by which depths of drafts are chosen\n"
    "  calibrate kv     measure the scales of nvfp4 token rows\n"
    "  bench replay     run a recorded list of steps again\n"
    "  kernels build    compile the GPU kernels ahead of time\n"
    "  kernels list     the GPU kernels, and what of them is compiled\n"
    "  doctor           what this machine has for the program, and what is missing\n"
    "\n"
    "tandem COMMAND --help lists a command's options. tandem --version prints the version.\n"
    "Exit status: 0 ok, 1 failed check, 2 usage, 3 bad file, 4 does not fit, 5 port or device, 70 engine broken.\n";

constexpr const char* bench_help =
    "tandem bench - measurements\n"
    "\n"
    "  bench replay  run a recorded list of steps again\n"
    "\n"
    "tandem bench replay --help lists its options.\n";

constexpr const char* calibrate_help =
    "tandem calibrate - measurements that later starts go by\n"
    "\n"
    "  calibrate timing  what the pieces of a round cost on this machine\n"
    "  calibrate kv      the largest values of token rows, for the scales of nvfp4\n"
    "\n"
    "tandem calibrate timing --help, and so on, lists their options.\n";

constexpr const char* kernels_help =
    "tandem kernels - machine code of the GPU kernels\n"
    "\n"
    "  kernels build  compile them ahead of time; needs no GPU\n"
    "  kernels list   what there is, and what of it is compiled\n"
    "\n"
    "tandem kernels build --help, and so on, lists their options.\n";

constexpr const char* eval_help =
    "tandem eval - checks of a model\n"
    "\n"
    "  eval skills      prompts with known answers\n"
    "  eval parity      compare with vectors of the reference implementation\n"
    "  eval acceptance  tokens that a step yields with a drafter\n"
    "  eval kld         how far a model's answers are from another's, position by position\n"
    "  eval ppl         perplexity over a text\n"
    "\n"
    "tandem eval skills --help, and so on, lists their options.\n";

// Commands of two words, and what is said to the first one alone.
constexpr std::array<std::pair<const char*, const char*>, 4> families = {
    {{"eval", eval_help}, {"bench", bench_help}, {"calibrate", calibrate_help}, {"kernels", kernels_help}}};

struct Entry {
  std::vector<std::string> words;
  int (*run)(const Words&);
};

const std::vector<Entry>& commands() {
  static const std::vector<Entry> list = {{{"serve"}, serve_command},
                                          {{"chat"}, chat_command},
                                          {{"generate"}, generate_command},
                                          {{"inspect"}, inspect_command},
                                          {{"plan"}, plan_command},
                                          {{"quantize"}, quantize_command},
                                          {{"verify"}, verify_command},
                                          {{"eval", "skills"}, eval_skills_command},
                                          {{"eval", "parity"}, eval_parity_command},
                                          {{"eval", "acceptance"}, eval_acceptance_command},
                                          {{"eval", "kld"}, eval_kld_command},
                                          {{"eval", "ppl"}, eval_ppl_command},
                                          {{"calibrate", "timing"}, calibrate_timing_command},
                                          {{"calibrate", "kv"}, calibrate_kv_command},
                                          {{"bench", "replay"}, bench_replay_command},
                                          {{"kernels", "build"}, kernels_build_command},
                                          {{"kernels", "list"}, kernels_list_command},
                                          {{"doctor"}, doctor_command}};
  return list;
}

int dispatch(const Words& words) {
  if (words.empty() || words[0] == "--help" || words[0] == "-h" || words[0] == "help") {
    write_out(program_help);
    return words.empty() ? exit_status(ErrorCode::usage) : 0;
  }
  if (words[0] == "--version") {
    write_out("tandem " TANDEM_VERSION "\n");
    return 0;
  }
  set_log_level(LogLevel::warning);  // serve has its own setting
  for (const auto& command : commands())
    if (words.size() >= command.words.size() && std::equal(command.words.begin(), command.words.end(), words.begin()))
      return command.run(Words(words.begin() + std::ssize(command.words), words.end()));
  std::string found = words[0];
  for (const auto& [family, help] : families) {
    if (words[0] != family) continue;
    if (words.size() == 1 || words[1] == "--help" || words[1] == "-h") {
      write_out(help);
      return words.size() == 1 ? exit_status(ErrorCode::usage) : 0;
    }
    found += " " + words[1];
  }
  throw Error(ErrorCode::usage, "command", "\"" + found + "\"", "one of those that tandem --help lists");
}

int report(const char* message, ErrorCode code) {
  std::string line = message;
  for (char& c : line)
    if (c == '\n') c = ' ';  // one line, whatever was in a file name
  std::fprintf(stderr, "tandem: error: %s\n", line.c_str());
  return exit_status(code);
}

}  // namespace

int run_command_line(int argc, const char* const* argv) {
  try {
    return dispatch(Words(argv + (argc > 0 ? 1 : 0), argv + argc));
  } catch (const Error& e) {
    return report(e.what(), e.code());
  } catch (const std::bad_alloc&) {
    return report("memory: exhausted; expected a smaller --max-model-len or --kv-cache-memory",
                  ErrorCode::does_not_fit);
  } catch (const std::exception& e) {
    return report(e.what(), ErrorCode::internal);
  }
}

}  // namespace tandem::cli
