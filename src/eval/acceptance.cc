// Runs the prompts and counts; where a reply's steps part from the reference's, asks the model how sure it was.
#include "eval/acceptance.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <memory>
#include <mutex>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "engine/run_request.h"

namespace tandem::eval {
namespace {

// What the events of one request say. Written on the engine's thread, read after the last event.
struct Trace {
  std::vector<int32_t> ids;
  std::vector<int64_t> taus;
  engine::DraftStats drafts;
  double margin = std::numeric_limits<double>::infinity();  // of the last token that was reported with logprobs

  void add(const engine::Event& event) {
    if (event.kind == engine::Event::Kind::token) {
      if (!ids.empty()) add_token(event.begins_step);  // the first token is the prompt's
      ids.push_back(event.token);
      if (event.logprobs != nullptr && event.logprobs->size >= 2)
        margin = static_cast<double>(event.logprobs->best[0].second) - event.logprobs->best[1].second;
    } else if (event.kind == engine::Event::Kind::finished) {
      drafts = event.drafts;
      if (event.stop_token < 0) return;
      if (!ids.empty()) add_token(std::ssize(taus) < drafts.steps);
      ids.push_back(event.stop_token);
    }
  }

 private:
  void add_token(bool begins_step) {
    if (begins_step || taus.empty()) taus.push_back(0);
    ++taus.back();
  }
};

// run_request() with a look at every event.
class TracedEngine : public engine::Engine {
 public:
  TracedEngine(engine::Engine& engine, std::shared_ptr<Trace> trace) : engine_(engine), trace_(std::move(trace)) {}
  uint64_t submit(engine::Request request, Sink sink) override {
    return engine_.submit(std::move(request), [trace = trace_, sink = std::move(sink)](const engine::Event& event) {
      trace->add(event);
      sink(event);
    });
  }
  void cancel(uint64_t number) override { engine_.cancel(number); }
  engine::Status status() const override { return engine_.status(); }

 private:
  engine::Engine& engine_;
  std::shared_ptr<Trace> trace_;  // the sink may outlive this object when submit throws
};

// The first step that yields another number of tokens than the reference's, as far as the replies are the same.
void compare_steps(const std::vector<int64_t>& taus, const std::vector<int64_t>& reference, int64_t same_tokens,
                   Difference& difference) {
  int64_t place = 1;
  for (size_t step = 0; step < std::min(taus.size(), reference.size()); ++step) {
    const int64_t least = std::min(taus[step], reference[step]);
    if (place + least > same_tokens) return;  // beyond, the replies are of different texts
    if (taus[step] != reference[step]) {
      difference.step = static_cast<int64_t>(step);
      difference.token = place + least - 1;  // one of the two had no draft here that was right
      return;
    }
    place += least;
  }
}

class AcceptanceRunner {
 public:
  AcceptanceRunner(engine::Engine& engine, const AcceptanceOptions& options) : engine_(engine), options_(options) {}

  AcceptanceResult run(const AcceptancePrompt& prompt) {
    const Trace trace = traced(request_of(prompt));
    AcceptanceResult result;
    result.name = prompt.name;
    result.prompt_tokens = std::ssize(prompt.ids);
    result.reply_tokens = std::ssize(trace.ids);
    result.taus = trace.taus;
    result.drafts = trace.drafts;
    if (const auto* reference = reference_of(prompt)) result.difference = compared(prompt, trace, *reference);
    return result;
  }

  // The reference's steps, if they are asked for and the file has them.
  const std::vector<int64_t>* reference_of(const AcceptancePrompt& prompt) const {
    if (options_.reference == ReferenceLoop::none || prompt.output.empty()) return nullptr;
    const auto& taus = options_.reference == ReferenceLoop::mtp ? prompt.mtp_taus : prompt.dflash2_taus;
    return taus.empty() && prompt.output.size() > 1 ? nullptr : &taus;
  }

 private:
  Trace traced(engine::Request request) {
    const auto trace = std::make_shared<Trace>();
    TracedEngine engine(engine_, trace);
    (void)engine::run_request(engine, std::move(request));
    return std::move(*trace);
  }

  engine::Request request_of(const AcceptancePrompt& prompt) const {
    engine::Request request;
    request.id = prompt.name;
    request.prompt_ids = prompt.ids;
    request.sampling = options_.sampling;
    request.stop_token_ids = options_.stop_ids;
    request.max_tokens = options_.max_tokens;
    if (reference_of(prompt) != nullptr) {
      // As far as the reference went. Where it stopped by itself the limit must not bound the last step's drafts.
      request.max_tokens = std::ssize(prompt.output);
      if (std::ranges::find(options_.stop_ids, prompt.output.back()) != options_.stop_ids.end())
        request.max_tokens += draft::most_drafts + 1;
    }
    const int64_t room = engine_.status().max_model_len - std::ssize(prompt.ids);
    request.max_tokens = std::max<int64_t>(1, std::min(request.max_tokens, room));
    return request;
  }

  std::optional<Difference> compared(const AcceptancePrompt& prompt, const Trace& trace,
                                     const std::vector<int64_t>& reference) {
    Difference difference;
    const auto parted = std::ranges::mismatch(trace.ids, prompt.output);
    const int64_t same = parted.in1 - trace.ids.begin();
    difference.in_tokens = same < std::max(std::ssize(trace.ids), std::ssize(prompt.output));
    difference.token = same;
    compare_steps(trace.taus, reference, same, difference);
    if (!difference.in_tokens && difference.step < 0) return std::nullopt;
    difference.margin = margin_at(prompt, difference.token);
    return difference;
  }

  // Between the two best logits for the reply's token at this place, drafts and stops left aside.
  double margin_at(const AcceptancePrompt& prompt, int64_t token) {
    engine::Request request = request_of(prompt);
    request.stop_token_ids.clear();
    request.max_tokens = token + 1;
    request.drafter = draft::Choice::none;
    request.logprobs = 2;
    if (std::ssize(prompt.ids) + request.max_tokens > engine_.status().max_model_len)
      return std::numeric_limits<double>::infinity();
    return traced(std::move(request)).margin;
  }

  engine::Engine& engine_;
  const AcceptanceOptions& options_;
};

void add(engine::DraftStats& sum, const engine::DraftStats& one) {
  sum.steps += one.steps;
  sum.steps_with_drafts += one.steps_with_drafts;
  sum.drafted += one.drafted;
  sum.accepted += one.accepted;
  for (size_t i = 0; i < sum.tokens_of_step.size(); ++i) sum.tokens_of_step[i] += one.tokens_of_step[i];
  for (size_t i = 0; i < sum.drafted_at.size(); ++i) {
    sum.drafted_at[i] += one.drafted_at[i];
    sum.accepted_at[i] += one.accepted_at[i];
  }
}

double mean_of(const std::vector<double>& values) {
  return values.empty() ? 0 : std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double mean_of(const std::vector<int64_t>& values) {
  return mean_of(std::vector<double>(values.begin(), values.end()));
}

double ratio(int64_t numerator, int64_t denominator) {
  return denominator == 0 ? 0 : static_cast<double>(numerator) / static_cast<double>(denominator);
}

}  // namespace

double AcceptanceResult::mean() const { return mean_of(taus); }

int64_t AcceptanceReport::steps() const {
  int64_t steps = 0;
  for (const auto& result : results) steps += std::ssize(result.taus);
  return steps;
}

int64_t AcceptanceReport::tokens() const {
  int64_t tokens = 0;
  for (const auto& result : results) tokens = std::accumulate(result.taus.begin(), result.taus.end(), tokens);
  return tokens;
}

double AcceptanceReport::request_mean() const {
  std::vector<double> means;
  for (const auto& result : results)
    if (!result.taus.empty()) means.push_back(result.mean());
  return mean_of(means);
}

double AcceptanceReport::token_weighted_mean() const { return ratio(tokens(), steps()); }

std::vector<int64_t> AcceptanceReport::histogram() const {
  std::vector<int64_t> counts(draft::most_drafts + 2);
  for (const auto& result : results)
    for (const int64_t tau : result.taus) ++counts[static_cast<size_t>(std::min<int64_t>(tau, draft::most_drafts + 1))];
  while (counts.size() > 1 && counts.back() == 0) counts.pop_back();
  return counts;
}

std::vector<double> AcceptanceReport::accepted_rates() const {
  std::vector<double> rates;
  for (size_t i = 0; i < drafts.drafted_at.size() && drafts.drafted_at[i] > 0; ++i)
    rates.push_back(ratio(drafts.accepted_at[i], drafts.steps));
  return rates;
}

double AcceptanceReport::reference_request_mean() const { return mean_of(reference_means); }
double AcceptanceReport::reference_token_weighted_mean() const { return ratio(reference_tokens, reference_steps); }

int64_t AcceptanceReport::different() const {
  return std::ranges::count_if(results, [](const auto& result) { return result.difference.has_value(); });
}

int64_t AcceptanceReport::unexplained() const {
  return std::ranges::count_if(results, [&](const auto& result) {
    return result.difference.has_value() && !(result.difference->margin < options.tie);
  });
}

bool AcceptanceReport::passed() const {
  if (!options.is_rounded) return unexplained() == 0;
  return unexplained() <= std::max<int64_t>(1, compared / 50) && request_mean() >= 0.99 * reference_request_mean();
}

AcceptanceReport run_acceptance(engine::Engine& engine, const std::vector<AcceptancePrompt>& prompts,
                                const AcceptanceOptions& options, const std::function<void(int64_t)>& progress) {
  if (options.reference != ReferenceLoop::none && options.sampling.temperature >= 1e-5)
    throw Error(ErrorCode::usage, "reference", "a temperature above 0", "greedy replies, as the reference's are");
  const auto start = std::chrono::steady_clock::now();
  AcceptanceReport report;
  report.options = options;
  AcceptanceRunner runner(engine, options);
  for (const auto& prompt : prompts) {
    report.results.push_back(runner.run(prompt));
    add(report.drafts, report.results.back().drafts);
    if (const auto* taus = runner.reference_of(prompt)) {
      ++report.compared;
      if (!taus->empty()) report.reference_means.push_back(mean_of(*taus));
      report.reference_tokens += std::ssize(prompt.output) - 1;
      report.reference_steps += std::ssize(*taus);
    }
    if (progress) progress(std::ssize(report.results));
  }
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

}  // namespace tandem::eval
