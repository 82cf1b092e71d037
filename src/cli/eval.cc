// Loads, runs the check, prints its report.
#include "cli/eval.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "base/error.h"
#include "cli/device_choice.h"
#include "cli/progress_line.h"
#include "cli/standard_io.h"
#include "eval/acceptance.h"
#include "eval/parity.h"
#include "eval/skills.h"

namespace tandem::cli {
namespace {

// The reference loop that these settings repeat.
eval::ReferenceLoop reference_of(const Drafting& drafting, const engine::SamplingParams& sampling) {
  const auto& policy = drafting.policy;
  if (sampling.temperature >= 1e-5 || policy.kind != draft::Policy::Kind::fixed || drafting.copy ||
      drafting.verify != engine::DraftVerify::exact)
    return eval::ReferenceLoop::none;
  const auto is_whole = [&](int64_t drafts) { return policy.depth == 0 || policy.depth == drafts; };
  if (drafting.choice == draft::Choice::mtp && is_whole(3)) return eval::ReferenceLoop::mtp;
  if (drafting.choice == draft::Choice::dflash2 && is_whole(drafting.shape->draft_rows()))
    return eval::ReferenceLoop::dflash2;
  return eval::ReferenceLoop::none;
}

// Loads a model, asks it everything, and lets go of it.
eval::ComparedSkills run_skills(const LoadOptions& load, const std::vector<eval::Skill>& skills) {
  LoadedModel model(load);
  ProgressLine line;
  const auto progress = [&](int64_t done, int64_t exact) {
    line.show(model.name() + ": " + std::to_string(done) + " of " + std::to_string(skills.size()) + ", " +
              std::to_string(exact) + " exact");
  };
  return {model.name(),
          eval::run_skills(model.engine(), model.tokenizer(), model.defaults().eos_token_ids, skills, progress)};
}

}  // namespace

int run_eval_skills(const SkillsCommandOptions& options) {
  LoadOptions load = options.load;
  if (load.model.empty()) load.model = default_model();
  const auto skills = eval::read_skills(options.skills.empty() ? load.model / "skills.json" : options.skills);
  const int64_t wanted = options.minimum.value_or(std::max<int64_t>(1, std::ssize(skills) - 1));
  std::optional<eval::ComparedSkills> other;
  if (!options.compare.empty()) {
    LoadOptions compared = load;
    compared.model = options.compare;
    compared.kv_cache_dtype = compared.kv_scales = "auto";  // as the teacher of eval kld
    check_load(compared);
    check_load(load);  // before the first model's time is spent
    other.emplace(run_skills(compared, skills));
  }
  const eval::ComparedSkills own = run_skills(load, skills);
  const eval::SkillsReport& report = own.report;
  const eval::ComparedSkills* beside = other ? &*other : nullptr;
  write_out(options.json ? eval::skills_json(report, wanted, beside) : eval::skills_text(report, beside));
  if (report.exact() >= wanted) return 0;
  throw Error(ErrorCode::failed_check, "skills", std::to_string(report.exact()) + " exact",
              "at least " + std::to_string(wanted) + " of " + std::to_string(skills.size()));
}

int run_eval_acceptance(const AcceptanceCommandOptions& options) {
  LoadOptions load = options.load;
  if (load.model.empty()) load.model = default_model();
  // Copies would take the place of the drafts that are to be looked at.
  load.drafting.copy_beside_model = load.drafting.drafter != "mtp" && load.drafting.drafter != "dflash2";
  load.drafting.taps_in_fp32 = options.sampling.temperature.value_or(0) < 1e-5 && load.drafting.policy == "fixed";
  LoadedModel model(load);
  const auto path = options.prompts.empty() ? load.model / "acceptance_prompts.jsonl" : options.prompts;
  const auto prompts = eval::read_acceptance_prompts(path, model.tokenizer(), model.shape().vocab_size);

  eval::AcceptanceOptions acceptance;
  acceptance.sampling = default_sampling(model.defaults());
  acceptance.sampling.temperature = 0;
  acceptance.sampling = apply(options.sampling, acceptance.sampling);
  acceptance.max_tokens = options.sampling.max_tokens.value_or(acceptance.max_tokens);
  acceptance.stop_ids = model.defaults().eos_token_ids;
  acceptance.is_rounded = compute_on(model.device().on_gpu(), load.compute) == forward::Compute::bf16;
  acceptance.reference = reference_of(model.drafting(), acceptance.sampling);
  eval::AcceptanceReport report;
  {
    ProgressLine line;
    report = eval::run_acceptance(model.engine(), prompts, acceptance, [&](int64_t done) {
      line.show(std::to_string(done) + " of " + std::to_string(prompts.size()));
    });
  }
  report.drafter = draft::name_of(model.drafting().choice);
  report.taps_in_fp32 = load.drafting.taps_in_fp32 && model.drafting().shape.has_value();
  report.policy = draft::text_of(model.drafting().policy);
  write_out(options.json ? eval::acceptance_json(report) : eval::acceptance_text(report));
  if (report.passed()) return 0;
  if (acceptance.is_rounded) {
    throw Error(ErrorCode::failed_check, "acceptance",
                fmt::format("{} prompts whose steps are not the reference's, request mean {:.4f}", report.unexplained(),
                            report.request_mean()),
                fmt::format("in bf16 one prompt in 50, and a mean of at least 99 % of {:.4f}",
                            report.reference_request_mean()));
  }
  throw Error(ErrorCode::failed_check, "acceptance",
              std::to_string(report.unexplained()) + " prompts whose steps are not the reference's",
              "none, or the model's two best logits within " + std::to_string(acceptance.tie) + " there");
}

int run_eval_parity(const ParityCommandOptions& options) {
  eval::ParityOptions parity;
  parity.golden = options.golden;
  parity.bundled_models = options.models.empty() ? default_model().parent_path() : options.models;
  parity.threads = checked_threads(options.threads);
  parity.only = options.only;
  const DeviceChoice device = choose_device({.device = options.device, .compute = options.compute});
  parity.compute = compute_on(device.on_gpu(), options.compute);
  parity.gpu = device.gpu.get();
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
