// The equality suite: random request mixes, together and alone, must give the same token ids (design.md 1;
// spec/runtime.md i.2). A failing mix prints the command that runs it again.
//   equality_suite [--mixes N] [--first-seed N] [--seed N] [--spoil 1] [--tensor-parallel-size N]
//                  [--decode-context-parallel-size N] [--kv-cache-dtype NAME] [--compute f32|bf16]
// Every second mix is sampled in the step, by the host's sampler, where its requests allow it.
// --kv-cache-dtype: all mixes with these caches; without it each draws its own.
// --spoil 1: drafts are run as other tokens than those that are verified, and it is an error if no mix notices.
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "base/log.h"
#include "run_mix.h"

namespace {

struct Options {
  uint64_t first_seed = 0, mixes = 200;
  bool spoil = false;
  tandem::forward::Ranks ranks;
  std::string cache_type;  // empty: drawn
  std::string compute = "f32";
};

[[noreturn]] void usage(const char* argument) {
  fmt::print(stderr, "equality_suite: '{}' is no argument of this program, or its value is missing\n", argument);
  std::exit(2);
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    if (i + 1 >= argc) usage(argv[i]);
    const std::string name = argv[i];
    if (name == "--kv-cache-dtype") {
      options.cache_type = argv[++i];
      continue;
    }
    if (name == "--compute") {
      options.compute = argv[++i];
      if (options.compute != "f32" && options.compute != "bf16") usage(argv[i - 1]);
      continue;
    }
    char* end = nullptr;
    const uint64_t value = std::strtoull(argv[++i], &end, 10);
    if (*end != '\0' || end == argv[i]) usage(argv[i]);
    if (name == "--mixes") {
      options.mixes = value;
    } else if (name == "--first-seed") {
      options.first_seed = value;
    } else if (name == "--seed") {
      options.first_seed = value;
      options.mixes = 1;
    } else if (name == "--spoil") {
      options.spoil = value != 0;
    } else if (name == "--tensor-parallel-size") {
      options.ranks.tensor_parallel_size = static_cast<int32_t>(value);
    } else if (name == "--decode-context-parallel-size") {
      options.ranks.decode_context_parallel_size = static_cast<int32_t>(value);
    } else {
      usage(argv[i - 1]);
    }
  }
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  tandem::set_log_level(tandem::LogLevel::error);  // drafts outside of the vocabulary are meant
  const std::string source = TANDEM_SOURCE_DIR;
  tandem::parity::MixRunner runner({{"tinyA", {source + "/tests/golden/tinyA"}},
                                    {"tinyB", {source + "/tests/golden/tinyB"}},
                                    {"nano",
                                     {source + "/models/nano", source + "/models/nano-dflash2",
                                      source + "/tests/golden/nano/case_T1500.safetensors"}}});
  tandem::parity::MixSetting setting;
  if (!options.cache_type.empty()) setting.cache_type = tandem::model::parse_cache_type(options.cache_type);
  if (options.compute == "bf16") setting.compute = tandem::forward::Compute::bf16;
  tandem::parity::MixReport sum;
  uint64_t failed = 0, with_drafts = 0;
  for (uint64_t seed = options.first_seed; seed < options.first_seed + options.mixes; ++seed) {
    setting.sampling = seed % 2 == 0 ? tandem::parity::MixSampling::scheduler : tandem::parity::MixSampling::on_host;
    const tandem::parity::MixReport report = runner.run(seed, options.ranks, options.spoil, setting);
    sum.add(report);
    with_drafts += report.drafts ? 1 : 0;
    if (report.failures.empty()) continue;
    ++failed;
    if (options.spoil) continue;
    constexpr size_t most_lines = 8;
    for (size_t i = 0; i < std::min(report.failures.size(), most_lines); ++i)
      fmt::print("mix {}: {}\n", seed, report.failures[i]);
    if (report.failures.size() > most_lines) fmt::print("mix {}: {} failures in all\n", seed, report.failures.size());
    fmt::print("again: {} --seed {} --tensor-parallel-size {} --decode-context-parallel-size {}{}{} --compute {}\n",
               argv[0], seed, options.ranks.tensor_parallel_size, options.ranks.decode_context_parallel_size,
               setting.cache_type ? " --kv-cache-dtype " : "", options.cache_type, options.compute);
  }
  fmt::print(
      "{} mixes, {} failed: {} requests, {} tokens, {} steps, {} prompt tokens reused, {} given back, {} evicted\n",
      options.mixes, failed, sum.requests, sum.tokens, sum.steps, sum.cached_tokens, sum.preemptions, sum.evictions);
  const tandem::engine::DraftStats& drafts = sum.steps_with_drafters;
  fmt::print("{} mixes with drafters: {} drafted, {} accepted, {} proposals outside of the vocabulary\n", with_drafts,
             drafts.drafted, drafts.accepted, sum.invalid_proposals);
  fmt::print("  steps that yielded 0 to 16 tokens: {}\n", fmt::join(drafts.tokens_of_step, " "));
  for (const auto& [name, tally] : sum.tallies)
    fmt::print("  {}: {} drafted, {} accepted, the first wrong one at place 0 to 14: {}\n", name, tally.drafted,
               tally.accepted, fmt::join(tally.rejected_at, " "));
  return (failed == 0) != options.spoil ? 0 : 1;
}
