// Script, run, checks.
#include "engine/simulation.h"

#include <fmt/core.h>

#include <algorithm>
#include <optional>
#include <random>
#include <stdexcept>
#include <vector>

#include "base/error.h"
#include "engine/fake_drafter.h"
#include "engine/scheduler.h"
#include "engine/simulation_script.h"

namespace tandem::engine {
namespace {

// Of the oldest request: rounds without prompts after a slice (share 0.2, 102 ms), or the end of all running prompts
// when it waits for a page.
constexpr Time longest_wait = std::chrono::seconds(3);

void require(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error(what);
}

// What one request saw, judged as it comes.
struct Witness {
  const ScriptedRequest* scripted = nullptr;
  std::vector<int32_t> reply;  // what it gets when it runs alone
  int32_t stop_token = -1;     // that ends the reply; -1: the length does
  uint64_t number = 0;
  Time submitted{0};
  size_t tokens = 0, scored = 0;
  bool admitted = false, finished = false;
  FinishReason reason = FinishReason::stop;
};

class Simulation {
 public:
  Simulation(const Script& script, const SpoilStep& spoil, SimulationResult& result)
      : script_(script),
        spoil_(spoil),
        result_(result),
        drafter_([&script](const auto& view, auto& proposal) { script.propose(view, proposal); }),
        scheduler_(script.options, script.has_drafter ? &drafter_ : nullptr),
        model_(script.model) {
    witnesses_.resize(script.requests.size());
    for (size_t i = 0; i < witnesses_.size(); ++i) {
      witnesses_[i].scripted = &script.requests[i];
      prepare(witnesses_[i]);
    }
  }

  void run() {
    while (true) {
      deliver_arrivals();
      deliver_disconnects();
      const forward::Step* step = scheduler_.schedule(now_);
      scheduler_.check();
      check_order();
      if (step == nullptr) {
        if (!go_to_next_event()) break;
        continue;
      }
      if (!run_step(*step)) return check_end_after_failure();
    }
    check_end();
  }

 private:
  // The request alone on an engine of its own: a loop over known answers.
  void prepare(Witness& witness) {
    const Request& request = witness.scripted->request;
    Sampler sampler(FakeModel::vocabulary);
    auto history = request.prompt_ids;
    const int64_t longest = std::min(request.max_tokens, script_.longest_stream - std::ssize(history));
    for (int64_t i = 0; i < longest; ++i) {
      AllowedTokens allowed{FakeModel::vocabulary, {}};
      if (i < request.min_tokens) allowed.masked = request.stop_token_ids;
      const int32_t token =
          sampler.select(FakeModel::logits_after(history), request.sampling, std::ssize(history), allowed);
      const auto& stops = request.stop_token_ids;
      if (std::find(stops.begin(), stops.end(), token) != stops.end()) {
        witness.stop_token = token;
        return;
      }
      witness.reply.push_back(token);
      history.push_back(token);
    }
  }

  void deliver_arrivals() {
    for (; arrived_ < witnesses_.size() && witnesses_[arrived_].scripted->arrival <= now_; ++arrived_) {
      Witness& witness = witnesses_[arrived_];
      witness.submitted = now_;
      const bool is_full =
          scheduler_.running() + scheduler_.waiting() >= script_.options.capacity.slots + script_.options.max_waiting;
      try {
        witness.number = scheduler_.submit(
            witness.scripted->request, [this, &witness](const Event& event) { observe(witness, event); }, now_);
        require(!is_full, "a request was taken beyond the queue's limit");
        ++result_.requests;
      } catch (const QueueFull&) {
        require(is_full, "a request was refused although the queue had a place");
        witness.finished = true;
        ++result_.refused;
      }
    }
  }

  void deliver_disconnects() {
    for (Witness& witness : witnesses_) {
      if (witness.number == 0 || witness.finished || witness.scripted->disconnect > now_) continue;
      scheduler_.cancel(witness.number, now_);
      require(witness.finished && witness.reason == FinishReason::cancelled, "a cancelled request did not end at once");
    }
  }

  // Sinks must not throw: what they find is told after the call.
  void observe(Witness& witness, const Event& event) {
    const auto wrong = [&](const char* what) {
      if (failure_.empty()) failure_ = fmt::format("request {}: {}", witness.number, what);
    };
    if (witness.finished) wrong("an event after the end");
    switch (event.kind) {
      case Event::Kind::admitted:
        if (witness.admitted) wrong("admitted twice");
        witness.admitted = true;
        if (witness.number != 0 && witness.number < last_admitted_) wrong("admitted before an older one");
        last_admitted_ = witness.number;
        result_.cached_tokens += event.cached_tokens;
        if (event.cached_tokens > std::ssize(witness.scripted->request.prompt_ids)) wrong("more cached than asked");
        if (witness.scripted->request.needs_every_prompt_row && event.cached_tokens > 0) wrong("skipped prompt rows");
        break;
      case Event::Kind::prompt_token: {
        const auto& prompt = witness.scripted->request.prompt_ids;
        if (!witness.admitted || witness.tokens > 0) wrong("a prompt token out of its place");
        if (++witness.scored >= prompt.size() || event.token != prompt[witness.scored])
          wrong("another token of the prompt than the next");
        break;
      }
      case Event::Kind::token:
        if (witness.scripted->request.prompt_logprobs >= 0 &&
            witness.scored + 1 != witness.scripted->request.prompt_ids.size())
          wrong("a token before the prompt's log-probabilities");
        if (!witness.admitted) wrong("a token before admission");
        if (witness.tokens >= witness.reply.size() || event.token != witness.reply[witness.tokens])
          wrong("a token that the request alone does not get");
        ++witness.tokens;
        break;
      case Event::Kind::finished: observe_end(witness, event, wrong); break;
    }
  }

  template <typename Wrong>
  void observe_end(Witness& witness, const Event& event, const Wrong& wrong) {
    witness.finished = true;
    witness.reason = event.reason;
    const auto& scripted = *witness.scripted;
    switch (event.reason) {
      case FinishReason::stop:
        if (event.stop_token != witness.stop_token) wrong("another stop token");
        [[fallthrough]];
      case FinishReason::length:
        if ((event.reason == FinishReason::stop) != (witness.stop_token >= 0)) wrong("another reason to end");
        if (witness.tokens != witness.reply.size()) wrong("an incomplete reply");
        break;
      case FinishReason::cancelled:
        ++result_.cancelled;
        if (scripted.disconnect > now_) wrong("cancelled although the client is there");
        break;
      case FinishReason::repetition: wrong("a repetition that nobody asked for"); break;
      case FinishReason::deadline:
        ++result_.overdue;
        if (!scripted.request.deadline_s ||
            std::chrono::duration<double>(now_ - witness.submitted).count() < *scripted.request.deadline_s - 1e-6)
          wrong("ended before its deadline");
        break;
      case FinishReason::error:
        ++result_.failed;
        if (!has_failed_) wrong("an error without a failed step");
        break;
    }
  }

  // False: the step fails.
  bool run_step(const forward::Step& given) {
    require(++result_.steps < 200'000, "no end in sight");
    result_.moves_only_steps += static_cast<int64_t>(given.tokens.empty() && given.head_slots.empty());
    result_.head_only_steps += static_cast<int64_t>(given.tokens.empty() && !given.head_slots.empty());
    require(std::ssize(given.tokens) <= script_.options.capacity.max_rows, "more rows than a step may hold");
    require(std::ssize(given.logit_rows) + std::ssize(given.head_slots) <= script_.options.capacity.max_logit_rows,
            "more logit rows than a step may hold");
    if (result_.steps == script_.failing_step) {
      has_failed_ = true;
      scheduler_.end_all(FinishReason::error, "a scripted failure", now_);
      return false;
    }
    forward::Step step = given;
    if (spoil_) spoil_(step);
    model_.run(step);
    now_ += script_.duration_of_step(result_.steps);
    scheduler_.complete(model_.logits(), now_);
    scheduler_.check();
    if (!failure_.empty()) throw std::runtime_error(failure_);
    return true;
  }

  // The oldest running request is never given back, and gets on.
  void check_order() {
    if (!failure_.empty()) throw std::runtime_error(failure_);
    scheduler_.describe(snapshot_, now_);
    uint64_t oldest = 0;
    bool former_runs = former_oldest_ == 0;
    for (const StreamSnapshot& stream : snapshot_.streams) {
      if (stream.is_ended) continue;
      if (oldest == 0 || stream.number < oldest) oldest = stream.number;
      former_runs = former_runs || stream.number == former_oldest_;
    }
    for (const Witness& witness : witnesses_)
      former_runs = former_runs || (witness.number == former_oldest_ && witness.finished);
    require(former_runs, "the oldest request was given back");
    int64_t rows = 0;
    for (const StreamSnapshot& stream : snapshot_.streams)
      if (stream.number == oldest) rows = stream.length + stream.emitted;
    if (oldest != former_oldest_ || rows != former_rows_) moved_on_ = now_;
    former_oldest_ = oldest;
    former_rows_ = rows;
    result_.longest_wait = std::max(result_.longest_wait, now_ - moved_on_);
    require(oldest == 0 || now_ - moved_on_ < longest_wait, "the oldest request does not get on");
  }

  bool go_to_next_event() {
    Time next = never;
    if (arrived_ < witnesses_.size()) next = witnesses_[arrived_].scripted->arrival;
    require(scheduler_.running() == 0 && scheduler_.waiting() == 0, "idle, although requests are there");
    if (next == never) return false;
    now_ = std::max(now_, next);
    return true;
  }

  void check_all_ended() {
    if (!failure_.empty()) throw std::runtime_error(failure_);
    for (const Witness& witness : witnesses_)
      require(witness.finished || witness.number == 0, fmt::format("request {} was lost", witness.number));
    require(scheduler_.running() == 0 && scheduler_.waiting() == 0, "requests are counted after their end");
  }

  void check_end() {
    check_all_ended();
    const Status status = scheduler_.status();
    require(status.free_rows + status.reclaimable_rows == status.pool_rows, "pages were lost");
    result_.drafted = status.drafts.drafted;
    result_.accepted = status.drafts.accepted;
    result_.invalid_proposals = status.invalid_proposals;
    result_.preemptions = status.preemptions;
    result_.evictions = status.evictions;
  }

  void check_end_after_failure() {
    check_all_ended();
    scheduler_.check();
  }

  const Script& script_;
  const SpoilStep& spoil_;
  SimulationResult& result_;
  FakeDrafter drafter_;
  Scheduler scheduler_;
  FakeModel model_;
  std::vector<Witness> witnesses_;
  Snapshot snapshot_;
  std::string failure_;
  size_t arrived_ = 0;
  Time now_{0}, moved_on_{0};
  uint64_t last_admitted_ = 0, former_oldest_ = 0;
  int64_t former_rows_ = 0;
  bool has_failed_ = false;
};

}  // namespace

SimulationResult simulate(uint64_t seed, const SpoilStep& spoil) {
  SimulationResult result;
  try {
    const Script script = make_script(seed);
    Simulation(script, spoil, result).run();
  } catch (const std::exception& e) {
    result.failure = e.what();
  }
  return result;
}

}  // namespace tandem::engine
