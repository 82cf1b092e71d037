// One engine a drafter and depth, all over the same weights, for bench/speculation: replies timed, steps counted.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "draft/model_drafter.h"
#include "engine/batch_engine.h"
#include "engine/step_runner.h"
#include "forward/text_model.h"
#include "model/checkpoint.h"
#include "model/drafter.h"
#include "model/shape.h"
#include "model/weights.h"

namespace tandem::bench {

// A model and its DFlash2 drafter as they lie in their files.
struct Weights {
  explicit Weights(const std::string& folder)
      : shape(model::read_shape(folder)),
        checkpoint(model::Checkpoint::open(folder)),
        text(model::load_text_weights(checkpoint, shape)),
        drafter_shape(model::read_drafter_shape(folder + "-dflash2")),
        drafter_checkpoint(model::Checkpoint::open(folder + "-dflash2")),
        drafter(model::load_drafter_weights(drafter_checkpoint, drafter_shape)) {}

  model::Shape shape;
  model::Checkpoint checkpoint;
  model::TextWeights text;
  model::DrafterShape drafter_shape;
  model::Checkpoint drafter_checkpoint;
  model::DrafterWeights drafter;
};

// One stream of at most 1,024 tokens, with the layers that `choice` needs.
inline std::unique_ptr<engine::StepRunner> load(const Weights& weights, draft::Choice choice, int threads) {
  forward::Capacity capacity{.slots = 1, .pages = 5, .max_stream_pages = 4, .max_rows = 256, .max_logit_rows = 16};
  const bool all = choice == draft::Choice::automatic;
  capacity.mtp = all || choice == draft::Choice::mtp;
  forward::DrafterModel drafter;
  if (all || choice == draft::Choice::dflash2) drafter = {&weights.drafter_shape, &weights.drafter};
  return engine::run_on_cpu(weights.shape, weights.text, capacity, {}, engine::threads_of_rank(threads, {}), drafter);
}

// The model, and how many steps of each kind it ran.
class CountedModel : public engine::StepRunner {
 public:
  explicit CountedModel(std::unique_ptr<engine::StepRunner> model) : model_(std::move(model)) {}
  void run(const forward::Step& step) override {
    model_->run(step);
    switch (step.kind) {
      case forward::StepKind::text: break;
      case forward::StepKind::mtp_absorb: ++(step.logit_rows.empty() ? absorbs_ : drafted_absorbs_); break;
      case forward::StepKind::mtp_chain: ++chains_; break;
      case forward::StepKind::dflash2: ++blocks_; break;
    }
  }
  std::span<const float> logits() const override { return model_->logits(); }
  forward::DraftLattices lattices() const override { return model_->lattices(); }

  // Of all drafts made so far, by the table. To be asked while the engine is idle.
  double drafting_ms(const draft::TimingTable& table) const {
    return static_cast<double>(blocks_) * table.block_ms + static_cast<double>(drafted_absorbs_) * table.mtp_ms +
           static_cast<double>(chains_) * table.mtp_step_ms + static_cast<double>(absorbs_) * table.mtp_row_ms;
  }

 private:
  std::unique_ptr<engine::StepRunner> model_;
  int64_t absorbs_ = 0, drafted_absorbs_ = 0, chains_ = 0, blocks_ = 0;
};

struct ArmSpec {
  std::string name;
  draft::Choice choice = draft::Choice::none;
  draft::Policy::Kind policy = draft::Policy::Kind::fixed;
  int32_t depth = 0;  // 0: all
};

// What a reply took from its first token to its end.
struct Timed {
  int64_t tokens = 0, steps = 0;
  double seconds = 0, table_ms = 0;  // table_ms: by the timing table
};

class Arm {
 public:
  Arm(const Weights& weights, ArmSpec spec, const draft::TimingTable& table, int threads)
      : spec_(std::move(spec)), table_(table), model_(load(weights, spec_.choice, threads)) {
    draft::ModelDrafterOptions drafts;
    drafts.max_rows = 256;
    drafts.max_stream_pages = 4;
    drafts.vocab_size = weights.shape.vocab_size;
    const bool all = spec_.choice == draft::Choice::automatic;
    drafts.copy = all || spec_.choice == draft::Choice::copy;
    drafts.mtp = all || spec_.choice == draft::Choice::mtp;
    drafts.dflash2 = all || spec_.choice == draft::Choice::dflash2;
    drafts.block_rows = static_cast<int32_t>(weights.drafter_shape.block_size);
    drafts.policy.kind = spec_.policy;
    drafts.policy.depth = spec_.depth;
    drafts.table = table;
    if (spec_.choice != draft::Choice::none) drafter_ = std::make_unique<draft::ModelDrafter>(model_, drafts);

    engine::BatchEngineOptions options;
    options.scheduler.vocab_size = options.scheduler.sampled_tokens = static_cast<int32_t>(weights.shape.vocab_size);
    options.scheduler.max_model_len = 4 * int64_t{drafts.page_rows};
    options.scheduler.capacity = {
        .slots = 1, .pages = 5, .max_stream_pages = 4, .max_rows = 256, .max_logit_rows = 16, .mtp = drafts.mtp};
    engine::DraftOptions& draft = options.scheduler.draft;
    draft.choice = spec_.choice;
    draft.has_copy = drafts.copy;
    draft.has_mtp = drafts.mtp;
    draft.has_dflash2 = drafts.dflash2;
    draft.policy = drafts.policy;
    draft.table = table;
    draft.context_rows = drafts.dflash2 ? weights.drafter_shape.kept_rows() : 0;
    engine_ = std::make_unique<engine::BatchEngine>(model_, options, drafter_.get());
  }

  const ArmSpec& spec() const { return spec_; }

  Timed run(const std::vector<int32_t>& prompt, int64_t tokens, const std::vector<int32_t>& stops) {
    using Clock = std::chrono::steady_clock;
    struct Reply {
      Clock::time_point first{}, last{};
      int64_t tokens = 0;
      double drafting_ms = 0;
      engine::DraftStats drafts;
      std::promise<void> end;
    };
    const auto reply = std::make_shared<Reply>();
    engine::Request request;
    request.prompt_ids = prompt;
    request.sampling.temperature = 0;
    request.max_tokens = tokens;
    request.stop_token_ids = stops;
    const double drafting_before = model_.drafting_ms(table_);
    engine_->submit(std::move(request), [reply](const engine::Event& event) {
      if (event.kind == engine::Event::Kind::admitted) return;
      reply->last = Clock::now();
      if (event.kind == engine::Event::Kind::token) {
        if (reply->tokens++ == 0) reply->first = reply->last;
        return;
      }
      if (event.stop_token >= 0) ++reply->tokens;
      reply->drafts = event.drafts;
      reply->end.set_value();
    });
    reply->end.get_future().wait();
    while (engine_->status().running > 0) std::this_thread::yield();  // its drafter is done, too
    Timed timed;
    timed.steps = reply->drafts.steps;
    timed.tokens = std::max<int64_t>(0, reply->tokens - 1);
    timed.seconds = std::chrono::duration<double>(reply->last - reply->first).count();
    timed.table_ms = model_.drafting_ms(table_) - drafting_before + verify_ms(reply->drafts);
    return timed;
  }

 private:
  double verify_ms(const engine::DraftStats& drafts) const {
    double ms = static_cast<double>(drafts.steps) * table_.overhead_ms;
    int64_t longer = drafts.steps;  // steps with at least so many drafts
    for (size_t tried = 0; tried <= drafts.drafted_at.size(); ++tried) {
      const int64_t next = tried < drafts.drafted_at.size() ? drafts.drafted_at[tried] : 0;
      ms += static_cast<double>(longer - next) * table_.verify(static_cast<int64_t>(tried) + 1);
      longer = next;
    }
    return ms;
  }

  ArmSpec spec_;
  draft::TimingTable table_;
  CountedModel model_;
  std::unique_ptr<draft::ModelDrafter> drafter_;
  std::unique_ptr<engine::BatchEngine> engine_;
};

}  // namespace tandem::bench
