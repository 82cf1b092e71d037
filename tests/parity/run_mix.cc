// Solo runs, the run together, and the comparison.
#include "run_mix.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/error.h"
#include "draft/model_drafter.h"
#include "engine/sample_on_host.h"
#include "engine/scheduler.h"
#include "forward/text_model.h"
#include "random_drafter.h"

namespace tandem::parity {
namespace {

using engine::Event;
using engine::FinishReason;
using engine::Scheduler;
using engine::Time;

constexpr int64_t most_steps = 200'000;  // a mix that needs more hangs

// Steps that go through bytes before they are run, as they do to other ranks. `spoil`: the first draft of each window
// is run as another token.
class ThroughBytes : public engine::StepRunner {
 public:
  ThroughBytes(engine::StepRunner& model, bool spoil) : model_(model), spoil_(spoil) {}
  void run(const forward::Step& step) override {
    forward::write_step(step, bytes_);
    forward::read_step(bytes_, read_);
    for (const forward::Segment& segment : read_.segments) {
      if (!spoil_ || segment.certain_rows == segment.rows) continue;
      const int32_t row = segment.first_row + segment.certain_rows;
      int32_t& token = read_.tokens[static_cast<size_t>(row)];
      token = token == 0 ? 1 : token - 1;
    }
    model_.run(read_);
  }
  std::span<const float> logits() const override { return model_.logits(); }
  std::span<const ops::Sampled> sampled() const override { return model_.sampled(); }
  forward::DraftLattices lattices() const override { return model_.lattices(); }

 private:
  engine::StepRunner& model_;
  bool spoil_;
  std::vector<std::byte> bytes_;
  forward::Step read_;
};

// What one request was told.
struct Heard {
  std::optional<uint64_t> number;  // none: refused
  std::string refusal;
  std::vector<int32_t> ids;
  std::vector<float> logprobs;  // of each token: the chosen one, then (id, value) of the best
  engine::DraftStats drafts;
  int32_t stop_token = -1;
  FinishReason reason = FinishReason::stop;
  int admitted = 0, finished = 0;
  int64_t cached = 0;
  bool cancelled_by_us = false;
};

class Conversation {
 public:
  Conversation(const engine::SchedulerOptions& options, engine::StepRunner& model, int64_t ms_a_row,
               draft::Drafter* drafter = nullptr)
      : scheduler_(options, drafter), model_(model), ms_a_row_(ms_a_row) {}

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
    scheduler_.complete(model_.logits(), model_.sampled(), now_);
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
      case Event::Kind::prompt_token:
        if (event.logprobs != nullptr) hear_logprobs(heard, *event.logprobs);
        return;
      case Event::Kind::token:
        heard.ids.push_back(event.token);
        if (event.logprobs != nullptr) hear_logprobs(heard, *event.logprobs);
        return;
      case Event::Kind::finished:
        ++heard.finished;
        heard.reason = event.reason;
        heard.stop_token = event.stop_token;
        heard.drafts = event.drafts;
        return;
    }
  }
  static void hear_logprobs(Heard& heard, const engine::TokenLogprobs& logprobs) {
    heard.logprobs.push_back(logprobs.chosen);
    for (const auto& [id, value] : std::span(logprobs.best).first(static_cast<size_t>(logprobs.size)))
      heard.logprobs.insert(heard.logprobs.end(), {static_cast<float>(id), value});
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
  Runner(const Mix& mix, const LoadedWeights& weights, const ModelFactory& make, forward::Ranks ranks, bool spoil,
         MixSampling sampling)
      : mix_(mix), weights_(weights), make_(make), ranks_(ranks), spoil_(spoil), sampling_(sampling) {}

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

  std::unique_ptr<engine::StepRunner> make_model(const forward::Capacity& capacity, forward::Ranks ranks,
                                                 forward::DrafterModel drafter = {}) const {
    return make_(weights_, capacity, ranks, drafter);
  }

  engine::SchedulerOptions options(const forward::Capacity& capacity) const {
    engine::SchedulerOptions o = mix_.machine.options;
    o.vocab_size = o.sampled_tokens = static_cast<int32_t>(weights_.shape.vocab_size);
    o.capacity = capacity;
    o.page_groups = ranks_.decode_context_parallel_size;
    o.max_model_len = ranks_.decode_context_parallel_size * (capacity.pages - 1) * capacity.page_rows;
    limit(o);
    return o;
  }
  void limit(engine::SchedulerOptions& o) const {
    if (const int64_t rows = mix_.machine.longest_stream; rows > 0) o.max_model_len = std::min(o.max_model_len, rows);
  }

  // Every request on an engine of its own and one rank: one slot, nothing kept, the prompt in one piece where it fits.
  void run_alone() {
    forward::Capacity capacity = mix_.machine.capacity;
    capacity.pages = 1 + (capacity.pages - 1) * ranks_.decode_context_parallel_size;
    capacity.slots = 1;
    capacity.kept_states = 0;
    capacity.max_rows = 128;
    capacity.max_logit_rows = 1;
    capacity.mtp = false;
    const auto model = make_model(capacity, {});
    std::vector<std::vector<int32_t>> prompts, replies;
    for (size_t i = 0; i < mix_.requests.size(); ++i) {
      Solo solo;
      solo.prompt = resolve_prompt(mix_, i, prompts, replies);
      engine::SchedulerOptions alone = options(capacity);
      alone.page_groups = 1;
      alone.max_model_len = (capacity.pages - 1) * capacity.page_rows;
      limit(alone);
      Conversation engine(alone, *model, 1);
      engine::Request plain = request(i, solo.prompt);
      plain.drafter.reset();
      Heard& heard = engine.submit(std::move(plain));
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
    r.rule = make_rule(mix_.requests[i], static_cast<int32_t>(weights_.shape.vocab_size));
    if (const int32_t modulus = mix_.requests[i].ends_modulus; modulus > 0)
      r.ends_after = [modulus](int32_t token) { return token % modulus == 0; };
    return r;
  }

  // The model's DFlash2 drafter, or a random one.
  forward::DrafterModel dflash2() {
    const MixDrafting& drafting = mix_.drafting;
    if (!drafting.options.has_dflash2) return {};
    if (weights_.drafter == nullptr) {
      random_drafter_ = std::make_unique<RandomDrafter>(drafting.drafter_seed, weights_.shape);
      return {&random_drafter_->shape(), &random_drafter_->weights()};
    }
    Random random(drafting.drafter_seed);
    drafter_shape_ = weights_.drafter->shape;
    drafter_shape_.sliding_window = random.between(2, random.chance(50) ? 64 : drafter_shape_.sliding_window);
    return {&drafter_shape_, &weights_.drafter->weights};
  }

  std::unique_ptr<ScriptedDrafter> make_drafter(engine::StepRunner& runner, const forward::Capacity& capacity,
                                                const forward::DrafterModel& dflash2) const {
    const MixDrafting& drafting = mix_.drafting;
    if (!drafting.is_on()) return nullptr;
    KnownReplies replies;
    for (size_t i = 0; i < solos_.size(); ++i) {
      KnownReply& reply = replies[mix_.requests[i].request.sampling.seed];
      reply = {std::ssize(solos_[i].prompt), solos_[i].heard.ids};
      if (solos_[i].heard.stop_token >= 0) reply.tokens.push_back(solos_[i].heard.stop_token);
    }
    std::unique_ptr<draft::Drafter> model;
    if (drafting.model) {
      draft::ModelDrafterOptions o;
      o.slots = capacity.slots;
      o.max_rows = capacity.max_rows;
      o.page_rows = capacity.page_rows;
      o.max_stream_pages = ranks_.decode_context_parallel_size * (capacity.pages - 1);
      o.vocab_size = weights_.shape.vocab_size;
      o.copy = drafting.options.has_copy;
      o.mtp = drafting.options.has_mtp;
      o.dflash2 = drafting.options.has_dflash2;
      o.mtp_depth = drafting.mtp_depth;
      if (dflash2.shape != nullptr) o.block_rows = static_cast<int32_t>(dflash2.shape->block_size);
      o.policy = drafting.options.policy;
      o.table = drafting.options.table;
      o.copies = drafting.copies;
      model = std::make_unique<draft::ModelDrafter>(runner, o);
    }
    return std::make_unique<ScriptedDrafter>(drafting, mix_.seed, static_cast<int32_t>(weights_.shape.vocab_size),
                                             std::move(replies), std::move(model));
  }

  void run_together() {
    const MixMachine& machine = mix_.machine;
    const forward::DrafterModel dflash2_model = dflash2();
    const auto model = make_model(machine.capacity, ranks_, dflash2_model);
    engine::SampleOnHost on_host(*model, static_cast<int32_t>(weights_.shape.vocab_size),
                                 machine.capacity.max_logit_rows);
    engine::StepRunner& sampled = sampling_ == MixSampling::on_host ? on_host : *model;
    ThroughBytes through_bytes(sampled, spoil_);
    engine::StepRunner& runner = machine.through_bytes || spoil_ ? through_bytes : sampled;
    const auto drafter = make_drafter(runner, machine.capacity, dflash2_model);
    engine::SchedulerOptions together = options(machine.capacity);
    together.draft = mix_.drafting.options;
    together.samples_in_step = sampling_ != MixSampling::scheduler;
    if (dflash2_model.shape != nullptr) together.draft.context_rows = dflash2_model.shape->kept_rows();
    Conversation engine(together, runner, machine.step_ms_a_row, drafter.get());
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
    report_.invalid_proposals = status.invalid_proposals;
    report_.drafts = mix_.drafting.is_on();
    if (drafter) check_drafts(*drafter, status, heard);
  }

  // The engine's counts are the drafter's, and a script found no fault.
  void check_drafts(const ScriptedDrafter& drafter, const engine::Status& status, const std::vector<Heard*>& heard) {
    for (const std::string& failure : drafter.failures()) fail("{}", failure);
    report_.tallies = drafter.tallies();
    report_.steps_with_drafters = status.drafts;
    int64_t drafted = 0, accepted = 0, of_requests = 0;
    for (const auto& [name, tally] : report_.tallies) drafted += tally.drafted, accepted += tally.accepted;
    for (const Heard* one : heard) of_requests += one->drafts.accepted;
    if (drafted != status.drafts.drafted || accepted != status.drafts.accepted || of_requests != accepted)
      fail("{} of {} drafts accepted, by the drafter {} of {}, of requests {}", status.drafts.accepted,
           status.drafts.drafted, accepted, drafted, of_requests);
    if (drafter.invalid_proposals() != status.invalid_proposals)
      fail("{} proposals outside of the vocabulary, {} counted", drafter.invalid_proposals(), status.invalid_proposals);
    if (!mix_.drafting.roomy || mix_.drafting.script != Script::perfect) return;
    for (size_t i = 0; i < heard.size(); ++i) check_full_steps(i, heard[i]->drafts);
  }

  // A perfect drafter with room: every step but a reply's last yields all its drafts and one token more.
  void check_full_steps(size_t i, const engine::DraftStats& drafts) {
    const size_t tokens = static_cast<size_t>(mix_.drafting.script_width) + 1;
    if (mix_.requests[i].request.drafter == draft::Choice::none || drafts.tokens_of_step[tokens] >= drafts.steps - 1)
      return;
    fail("request {}: a perfect drafter, and {} of {} steps yield {} tokens", i, drafts.tokens_of_step[tokens],
         drafts.steps, tokens);
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
    if (together.logprobs != alone.logprobs) fail("request {}: other logprobs than alone", i);
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
  const ModelFactory& make_;
  forward::Ranks ranks_;
  bool spoil_;
  MixSampling sampling_;
  std::vector<Solo> solos_;
  std::unique_ptr<RandomDrafter> random_drafter_;
  model::DrafterShape drafter_shape_;
  MixReport report_;
};

}  // namespace

LoadedWeights::Drafter::Drafter(const std::string& folder)
    : shape(model::read_drafter_shape(folder)),
      checkpoint(model::Checkpoint::open(folder)),
      weights(model::load_drafter_weights(checkpoint, shape)) {}

LoadedWeights::LoadedWeights(const MixModel& model)
    : shape(model::read_shape(model.folder)),
      checkpoint(model::Checkpoint::open(model.folder)),
      weights(model::load_text_weights(checkpoint, shape)) {
  if (!model.drafter.empty()) drafter = std::make_unique<Drafter>(model.drafter);
  if (model.text.empty()) return;
  const auto file = model::Checkpoint::open(model.text);
  const model::Tensor& ids = file.at("ids");
  text.resize(static_cast<size_t>(ids.elements()));
  std::memcpy(text.data(), ids.data.data(), ids.data.size());
}

ModelFacts LoadedWeights::facts() const {
  const int64_t dsa = std::count(shape.layer_types.begin(), shape.layer_types.end(), model::AttentionKind::dsa);
  return {static_cast<int32_t>(shape.vocab_size), static_cast<int32_t>(shape.index_kpool), weights.mtp.has_value(),
          dsa + shape.num_nextn_predict_layers, text};
}

void MixReport::add(const MixReport& report) {
  requests += report.requests;
  tokens += report.tokens;
  steps += report.steps;
  cached_tokens += report.cached_tokens;
  preemptions += report.preemptions;
  evictions += report.evictions;
  engine::DraftStats& sum = steps_with_drafters;
  const engine::DraftStats& more = report.steps_with_drafters;
  sum.drafted += more.drafted;
  sum.accepted += more.accepted;
  for (size_t n = 0; n < sum.tokens_of_step.size(); ++n) sum.tokens_of_step[n] += more.tokens_of_step[n];
  invalid_proposals += report.invalid_proposals;
  for (const auto& [name, tally] : report.tallies) tallies[name].add(tally);
}

MixRunner::MixRunner(std::map<std::string, MixModel> models, ModelFactory make)
    : models_(std::move(models)), make_(std::move(make)) {
  if (make_) return;
  make_ = [](const LoadedWeights& w, const forward::Capacity& capacity, forward::Ranks ranks,
             forward::DrafterModel drafter) {
    return engine::run_on_cpu(w.shape, w.weights, capacity, ranks, 1, drafter);
  };
}

const LoadedWeights& MixRunner::weights(const std::string& model) {
  auto& loaded = weights_[model];
  if (!loaded) loaded = std::make_unique<LoadedWeights>(models_.at(model));
  return *loaded;
}

MixReport MixRunner::run(uint64_t seed, forward::Ranks ranks, bool spoil, const MixSetting& setting) {
  try {
    std::string model = model_of_mix(seed);
    if (models_.count(model) == 0) model = models_.begin()->first;
    const LoadedWeights& loaded = weights(model);
    const Mix mix = make_mix(seed, model, loaded.facts(), setting);
    return Runner(mix, loaded, make_, ranks, spoil, setting.sampling).run();
  } catch (const std::exception& e) {
    MixReport report;
    report.failures.emplace_back(e.what());
    return report;
  }
}

}  // namespace tandem::parity
