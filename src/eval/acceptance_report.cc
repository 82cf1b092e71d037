// Prints the acceptance check.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "eval/acceptance.h"

namespace tandem::eval {
namespace {

using Json = nlohmann::ordered_json;

struct Group {
  int64_t prompts = 0, steps = 0, tokens = 0;
  double sum_of_means = 0;
  int64_t with_steps = 0;
};

// In the order of first appearance; chat bodies, which have no skill, would be a group each: they are one.
std::vector<std::pair<std::string, Group>> by_skill(const AcceptanceReport& report) {
  std::vector<std::pair<std::string, Group>> groups;
  for (const auto& result : report.results) {
    const std::string name = result.name.starts_with("line ") ? "chats" : result.name;
    auto found = std::ranges::find(groups, name, &std::pair<std::string, Group>::first);
    if (found == groups.end()) found = groups.insert(groups.end(), {name, {}});
    Group& group = found->second;
    ++group.prompts;
    group.steps += std::ssize(result.taus);
    for (const int64_t tau : result.taus) group.tokens += tau;
    group.with_steps += result.taus.empty() ? 0 : 1;
    group.sum_of_means += result.mean();
  }
  return groups;
}

double over(double numerator, int64_t denominator) {
  return denominator == 0 ? 0 : numerator / static_cast<double>(denominator);
}

const char* name_of(ReferenceLoop reference) {
  switch (reference) {
    case ReferenceLoop::none: return "none";
    case ReferenceLoop::mtp: return "mtp3";
    case ReferenceLoop::dflash2: return "dflash2";
  }
  return "unknown";
}

std::string differences_text(const AcceptanceReport& report) {
  std::string out;
  for (size_t i = 0; i < report.results.size(); ++i) {
    const auto& result = report.results[i];
    if (!result.difference) continue;
    const Difference& difference = *result.difference;
    out += fmt::format("  prompt {} ({}): ", i, result.name);
    out += difference.step >= 0 ? fmt::format("step {} yields another number of tokens", difference.step)
                                : std::string("another reply");
    out += fmt::format("; token {} of the reply, the model's best two logits are {:.2g} apart\n", difference.token,
                       difference.margin);
  }
  return out;
}

std::string reference_text(const AcceptanceReport& report) {
  if (report.compared == 0) return "";
  return fmt::format(
             "\nreference loop ({}): {} prompts, request mean {:.4f}, token-weighted mean {:.4f}; {} prompts differ, "
             "{} of "
             "them by no tie of the model's logits\n",
             name_of(report.options.reference), report.compared, report.reference_request_mean(),
             report.reference_token_weighted_mean(), report.different(), report.unexplained()) +
         differences_text(report);
}

Json sampling_json(const AcceptanceOptions& options) {
  const auto& sampling = options.sampling;
  return {{"temperature", sampling.temperature},
          {"top_k", sampling.top_k},
          {"top_p", sampling.top_p},
          {"min_p", sampling.min_p},
          {"seed", sampling.seed},
          {"max_tokens", options.max_tokens}};
}

Json difference_json(const AcceptanceResult& result) {
  if (!result.difference) return nullptr;
  const Difference& difference = *result.difference;
  // An infinite margin (the model could not be asked) becomes null.
  return {{"in_tokens", difference.in_tokens},
          {"step", difference.step},
          {"token", difference.token},
          {"margin", difference.margin}};
}

Json reference_json(const AcceptanceReport& report) {
  if (report.compared == 0) return nullptr;
  return {{"loop", name_of(report.options.reference)},
          {"prompts", report.compared},
          {"steps", report.reference_steps},
          {"request_mean", report.reference_request_mean()},
          {"token_weighted_mean", report.reference_token_weighted_mean()},
          {"different", report.different()},
          {"unexplained", report.unexplained()},
          {"tie", report.options.tie}};
}

}  // namespace

std::string acceptance_text(const AcceptanceReport& report) {
  std::string out = fmt::format("drafter {}, policy {}, temperature {}\n\n{:<24} {:>7} {:>6} {:>7} {:>8} {:>8}\n",
                                report.drafter, report.policy, report.options.sampling.temperature, "skill", "prompts",
                                "steps", "tokens", "mean", "weighted");
  const auto row = [&](const std::string& name, int64_t prompts, int64_t steps, int64_t tokens, double mean) {
    out += fmt::format("{:<24} {:>7} {:>6} {:>7} {:>8.4f} {:>8.4f}\n", name, prompts, steps, tokens, mean,
                       over(static_cast<double>(tokens), steps));
  };
  for (const auto& [name, group] : by_skill(report))
    row(name, group.prompts, group.steps, group.tokens, over(group.sum_of_means, group.with_steps));
  row("all", std::ssize(report.results), report.steps(), report.tokens(), report.request_mean());

  out += "\ntokens of a step: steps\n";
  const auto histogram = report.histogram();
  for (size_t tau = 1; tau < histogram.size(); ++tau)
    out += fmt::format("  {:>2} {:>6}  {:>5.1f} %\n", tau, histogram[tau],
                       100 * over(static_cast<double>(histogram[tau]), report.steps()));
  out += "\naccepted at draft 1, 2, …, of all steps:";
  for (const double rate : report.accepted_rates()) out += fmt::format(" {:.3f}", rate);
  out += fmt::format("\ndrafted {}, accepted {} ({:.1f} %); {:.1f} s\n", report.drafts.drafted, report.drafts.accepted,
                     100 * over(static_cast<double>(report.drafts.accepted), report.drafts.drafted), report.seconds);
  return out + reference_text(report);
}

std::string acceptance_json(const AcceptanceReport& report) {
  Json json;
  json["schema"] = "tandem.eval_acceptance/1";
  json["drafter"] = report.drafter;
  json["policy"] = report.policy;
  json["taps_in_fp32"] = report.taps_in_fp32;
  json["sampling"] = sampling_json(report.options);
  json["prompts"] = report.results.size();
  json["steps"] = report.steps();
  json["tokens"] = report.tokens();
  json["request_mean"] = report.request_mean();
  json["token_weighted_mean"] = report.token_weighted_mean();
  const auto histogram = report.histogram();
  json["histogram"] = Json::object();
  for (size_t tau = 1; tau < histogram.size(); ++tau) json["histogram"][std::to_string(tau)] = histogram[tau];
  json["accepted_rates"] = report.accepted_rates();
  json["drafted"] = report.drafts.drafted;
  json["accepted"] = report.drafts.accepted;
  json["seconds"] = report.seconds;
  json["reference"] = reference_json(report);
  json["passed"] = report.passed();
  json["results"] = Json::array();
  for (const auto& result : report.results)
    json["results"].push_back({{"name", result.name},
                               {"prompt_tokens", result.prompt_tokens},
                               {"reply_tokens", result.reply_tokens},
                               {"mean", result.mean()},
                               {"tokens_per_step", result.taus},
                               {"drafted", result.drafts.drafted},
                               {"accepted", result.drafts.accepted},
                               {"difference", difference_json(result)}});
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace tandem::eval
