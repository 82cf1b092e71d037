// Loads, runs the check, prints its report.
#include "cli/eval.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "base/error.h"
#include "cli/standard_io.h"
#include "eval/parity.h"
#include "eval/skills.h"

namespace tandem::cli {
namespace {

constexpr double progress_after_seconds = 2;

}  // namespace

int run_eval_skills(const SkillsCommandOptions& options) {
  LoadOptions load = options.load;
  if (load.model.empty()) load.model = default_model();
  const auto skills = eval::read_skills(options.skills.empty() ? load.model / "skills.json" : options.skills);
  const int64_t wanted = options.minimum.value_or(std::max<int64_t>(1, std::ssize(skills) - 1));
  LoadedModel model(load);

  const bool show = ::isatty(STDERR_FILENO) != 0;
  const auto start = std::chrono::steady_clock::now();
  bool shown = false;
  const auto progress = [&](int64_t done, int64_t exact) {
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    if (!show || elapsed.count() < progress_after_seconds) return;
    shown = true;
    std::fprintf(stderr, "\r%lld of %zu, %lld exact", static_cast<long long>(done), skills.size(),
                 static_cast<long long>(exact));
  };
  const auto report =
      eval::run_skills(model.engine(), model.tokenizer(), model.defaults().eos_token_ids, skills, progress);
  if (shown) std::fputs("\r\x1b[K", stderr);
  write_out(options.json ? eval::skills_json(report, wanted) : eval::skills_text(report));
  if (report.exact() >= wanted) return 0;
  throw Error(ErrorCode::failed_check, "skills", std::to_string(report.exact()) + " exact",
              "at least " + std::to_string(wanted) + " of " + std::to_string(skills.size()));
}

int run_eval_parity(const ParityCommandOptions& options) {
  eval::ParityOptions parity;
  parity.golden = options.golden;
  parity.bundled_models = options.models.empty() ? default_model().parent_path() : options.models;
  parity.threads = checked_threads(options.threads);
  parity.only = options.only;
  const bool show = ::isatty(STDERR_FILENO) != 0;
  if (show) parity.progress = [](const std::string& what) { std::fprintf(stderr, "\r\x1b[K%s", what.c_str()); };
  const auto report = eval::run_parity(parity);
  if (show) std::fputs("\r\x1b[K", stderr);
  write_out(options.json ? eval::parity_json(report) : eval::parity_text(report));
  if (report.ok()) return 0;
  const auto failed = std::count_if(report.cases.begin(), report.cases.end(), [](const auto& c) { return !c.ok(); });
  throw Error(ErrorCode::failed_check, "parity",
              std::to_string(failed) + " cases outside their tolerance or too many near-ties",
              "all " + std::to_string(report.cases.size()) + " inside");
}

}  // namespace tandem::cli
