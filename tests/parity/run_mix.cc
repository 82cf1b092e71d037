// Solo runs, the run together, and the comparison.
#include "run_mix.h"

#include <fmt/core.h>

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "engine/scheduler.h"
#include "forward/text_model.h"

namespace tandem::parity {
namespace {

using engine::Event;
using engine::FinishReason;
using engine::Scheduler;
using engine::Time;

constexpr int64_t most_steps = 200'000;  // a mix that needs more hangs

// Steps that go through bytes before they are run, as they do to other ranks.
class ThroughBytes : public engine::StepRunner {
 public:
  explicit ThroughBytes(engine::StepRunner& model) : model_(model) {}
  void run(const forward::Step& step) override {
    forward::write_step(step, bytes_);
    forward::read_step(bytes_, read_);
    model_.run(read_);
  }
  std::span<const float> logits() const override { return model_.logits(); }

 private:
  engine::StepRunner& model_;
  std::vector<std::byte> bytes_;
  forward::Step read_;
};

// What one request was told.
struct Heard {
  std::optional<uint64_t> number;  // none: refused
  std::string refusal;
  std::vector<int32_t> ids;
  int32_t stop_token = -1;
  FinishReason reason = FinishReason::stop;
  int admitted = 0, finished = 0;
  int64_t cached = 0;
  bool cancelled_by_us = false;
};

class Conversation {
 public:
  Conversation(const engine::SchedulerOptions& options, engine::StepRunner& model, int64_t ms_a_row)
      : scheduler_(options), model_(model), ms_a_row_(ms_a_row) {}

  Heard& submit(engine::Request request) {
    heard_.push_back(std::make_unique<Heard>());
    Heard& heard = *heard_.back();
    try {
      heard.number = scheduler_.submit(
          std::move(request), [&heard](const Event& event) { hear(heard, event); }, now_);
    } catch (const Error& e) {
      heard.refusal = e.what();
    }
    return heard;
  }
  void cancel(Heard& heard) {
    if (!heard.number || heard.finished > 0) return;
    heard.cancelled_by_us = true;
    scheduler_.cancel(*heard.number, now_);
  }
  // One step; false: nothing to do.
  bool step() {
    const forward::Step* step = scheduler_.schedule(now_);
    if (step == nullptr) return false;
    model_.run(*step);
    now_ += std::chrono::milliseconds(1 + ms_a_row_ * std::ssize(step->tokens));
    scheduler_.complete(model_.logits(), now_);
    scheduler_.check();
    if (++steps_ > most_steps) throw Error(ErrorCode::failed_check, "mix", fmt::format("{} steps and no end", steps_));
    return true;
  }
  int64_t steps() const { return steps_; }
  Scheduler& scheduler() { return scheduler_; }

 private:
  static void hear(Heard& heard, const Event& event) {
    switch (event.kind) {
      case Event::Kind::admitted:
        ++heard.admitted;
        heard.cached = event.cached_tokens;
        return;
      case Event::Kind::token: heard.ids.push_back(event.token); return;
      case Event::Kind::finished:
        ++heard.finished;
        heard.reason = event.reason;
        heard.stop_token = event.stop_token;
        return;
    }
  }

  Scheduler scheduler_;
  engine::StepRunner& model_;
  int64_t ms_a_row_, steps_ = 0;
  Time now_{0};
  std::vector<std::unique_ptr<Heard>> heard_;
};

struct Solo {
  std::vector<int32_t> prompt;
  Heard heard;
};

class Runner {
 public:
  Runner(const Mix& mix, const LoadedWeights& weights, forward::Ranks ranks)
      : mix_(mix), weights_(weights), ranks_(ranks) {}

  MixReport run() {
    run_alone();
    run_together();
    return report_;
  }

 private:
  template <typename... Args>
  void fail(fmt::format_string<Args...> format, Args&&... args) {
    report_.failures.push_back(fmt::format(format, std::forward<Args>(args)...));
  }

  std::unique_ptr<engine::StepRunner> make_model(const forward::Capacity& capacity, forward::Ranks ranks) const {
    return engine::run_on_cpu(weights_.shape, weights_.weights, capacity, ranks, 1);
  }

  engine::SchedulerOptions options(const forward::Capacity& capacity) const {
    engine::SchedulerOptions o = mix_.machine.options;
    o.vocab_size = o.sampled_tokens = static_cast<int32_t>(weights_.shape.vocab_size);
    o.capacity = capacity;
    o.page_groups = ranks_.decode_context_parallel_size;
    o.max_model_len = ranks_.decode_context_parallel_size * (capacity.pages - 1) * capacity.page_rows;
    return o;
  }

  // Every request on an engine of its own and one rank: one slot, nothing kept, the prompt in one piece where it fits.
  void run_alone() {
    forward::Capacity capacity = mix_.machine.capacity;
    capacity.pages = 1 + (capacity.pages - 1) * ranks_.decode_context_parallel_size;
    capacity.slots = 1;
    capacity.kept_states = 0;
    capacity.max_rows = 128;
    capacity.max_logit_rows = 1;
    const auto model = make_model(capacity, {});
    std::vector<std::vector<int32_t>> prompts, replies;
    for (size_t i = 0; i < mix_.requests.size(); ++i) {
      Solo solo;
      solo.prompt = resolve_prompt(mix_, i, prompts, replies);
      engine::SchedulerOptions alone = options(capacity);
      alone.page_groups = 1;
      alone.max_model_len = (capacity.pages - 1) * capacity.page_rows;
      Conversation engine(alone, *model, 1);
      Heard& heard = engine.submit(request(i, solo.prompt));
      while (engine.step()) {
      }
      solo.heard = heard;
      prompts.push_back(solo.prompt);
      replies.push_back(heard.ids);
      solos_.push_back(std::move(solo));
    }
  }

  engine::Request request(size_t i, const std::vector<int32_t>& prompt) const {
    engine::Request r = mix_.requests[i].request;
    r.prompt_ids = prompt;
    std::erase_if(r.keep_positions, [&](int64_t position) { return position > std::ssize(prompt); });
    return r;
  }

  void run_together() {
    const MixMachine& machine = mix_.machine;
    const auto model = make_model(machine.capacity, ranks_);
    ThroughBytes through_bytes(*model);
    engine::StepRunner& runner = machine.through_bytes ? through_bytes : *model;
    Conversation engine(options(machine.capacity), runner, machine.step_ms_a_row);
    std::vector<Heard*> heard(mix_.requests.size(), nullptr);
    bool more = true;
    int64_t last_arrival = 0;
    for (const MixRequest& r : mix_.requests) last_arrival = std::max(last_arrival, r.arrival + 1);
    for (int64_t tick = 0; more || tick < last_arrival; ++tick) {
      for (size_t i = 0; i < heard.size(); ++i) {
        const MixRequest& r = mix_.requests[i];
        if (r.arrival == tick) heard[i] = &engine.submit(request(i, solos_[i].prompt));
        if (heard[i] == nullptr) continue;
        const bool enough = r.cancel_after_tokens >= 0 && std::ssize(heard[i]->ids) >= r.cancel_after_tokens;
        if (r.cancel_at == tick || enough) engine.cancel(*heard[i]);
      }
      more = engine.step();
    }
    for (size_t i = 0; i < heard.size(); ++i) compare(i, *heard[i]);
    check_pool(engine.scheduler());
    const engine::Status status = engine.scheduler().status();
    report_.requests = std::ssize(heard);
    report_.steps = engine.steps();
    report_.cached_tokens = status.cached_tokens;
    report_.preemptions = status.preemptions;
    report_.evictions = status.evictions;
  }

  void compare(size_t i, const Heard& together) {
    const Heard& alone = solos_[i].heard;
    report_.tokens += std::ssize(together.ids);
    if (alone.number.has_value() != together.number.has_value())
      return fail("request {}: alone '{}', together '{}'", i, alone.refusal, together.refusal);
    if (!alone.number) return;
    if (together.finished != 1 || alone.finished != 1)
      return fail("request {}: ended {} times, alone {} times", i, together.finished, alone.finished);
    if (together.reason == FinishReason::cancelled && together.cancelled_by_us) {
      const bool is_beginning = together.ids.size() <= alone.ids.size() &&
                                std::equal(together.ids.begin(), together.ids.end(), alone.ids.begin());
      if (!is_beginning) fail("request {}: what came before the cancel differs from the reply alone", i);
      return;
    }
    if (together.ids != alone.ids) {
      const auto at = std::mismatch(together.ids.begin(), together.ids.end(), alone.ids.begin(), alone.ids.end());
      return fail("request {}: token {} of {} differs from the {} alone", i, at.first - together.ids.begin(),
                  together.ids.size(), alone.ids.size());
    }
    if (together.reason != alone.reason || together.stop_token != alone.stop_token)
      fail("request {}: ended for another reason than alone", i);
    if (together.admitted != 1) fail("request {}: admitted {} times", i, together.admitted);
    const auto prompt = std::ssize(solos_[i].prompt);
    if (together.cached > prompt || (mix_.requests[i].request.needs_every_prompt_row && together.cached > 0))
      fail("request {}: {} cached tokens of {}", i, together.cached, prompt);
  }

  void check_pool(const Scheduler& scheduler) {
    const engine::Status s = scheduler.status();
    if (s.running != 0 || s.waiting != 0) fail("{} streams and {} requests are left", s.running, s.waiting);
    if (s.free_rows + s.reclaimable_rows != s.pool_rows)
      fail("pages leaked: {} rows free, {} held by kept states, of {}", s.free_rows, s.reclaimable_rows, s.pool_rows);
  }

  const Mix& mix_;
  const LoadedWeights& weights_;
  forward::Ranks ranks_;
  std::vector<Solo> solos_;
  MixReport report_;
};

}  // namespace

LoadedWeights::LoadedWeights(const std::string& folder)
    : shape(model::read_shape(folder)),
      checkpoint(model::Checkpoint::open(folder)),
      weights(model::load_text_weights(checkpoint, shape)) {}

ModelFacts LoadedWeights::facts() const {
  return {static_cast<int32_t>(shape.vocab_size), static_cast<int32_t>(shape.index_kpool)};
}

MixRunner::MixRunner(std::map<std::string, std::string> folders) : folders_(std::move(folders)) {}

const LoadedWeights& MixRunner::weights(const std::string& model) {
  auto& loaded = weights_[model];
  if (!loaded) loaded = std::make_unique<LoadedWeights>(folders_.at(model));
  return *loaded;
}

MixReport MixRunner::run(uint64_t seed, forward::Ranks ranks) {
  try {
    const std::string model = model_of_mix(seed);
    const LoadedWeights& loaded = weights(model);
    const Mix mix = make_mix(seed, model, loaded.facts());
    return Runner(mix, loaded, ranks).run();
  } catch (const std::exception& e) {
    MixReport report;
    report.failures.emplace_back(e.what());
    return report;
  }
}

}  // namespace tandem::parity
