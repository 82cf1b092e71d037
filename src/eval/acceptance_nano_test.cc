// The check on the bundled model, over a part of its prompts: every step yields what the reference loop's yielded.
#include <filesystem>
#include <memory>

#include "draft/model_drafter.h"
#include "engine/batch_engine.h"
#include "engine/step_runner.h"
#include "eval/acceptance.h"
#include "forward/test_models.h"
#include "model/drafter.h"

namespace tandem::eval::acceptance_nano_test {
namespace {

const std::filesystem::path source = TANDEM_SOURCE_DIR;

// An engine of one stream over nano with one drafter, all of whose drafts are verified.
class Nano {
 public:
  explicit Nano(draft::Choice choice) {
    forward::Capacity capacity{.slots = 1, .pages = 5, .max_stream_pages = 4, .max_rows = 256, .max_logit_rows = 16};
    capacity.mtp = choice == draft::Choice::mtp;
    const bool dflash2 = choice == draft::Choice::dflash2;
    runner_ = engine::run_on_cpu(
        nano_.shape, nano_.weights, capacity, {}, 2,
        dflash2 ? forward::DrafterModel{&drafter_shape_, &drafter_weights_, true} : forward::DrafterModel{});

    draft::ModelDrafterOptions drafts;
    drafts.max_rows = capacity.max_rows;
    drafts.max_stream_pages = capacity.max_stream_pages;
    drafts.vocab_size = nano_.shape.vocab_size;
    drafts.copy = false;
    drafts.mtp = capacity.mtp;
    drafts.dflash2 = dflash2;
    drafts.policy.kind = draft::Policy::Kind::fixed;
    drafter_ = std::make_unique<draft::ModelDrafter>(*runner_, drafts);

    engine::BatchEngineOptions options;
    options.scheduler.vocab_size = static_cast<int32_t>(nano_.shape.vocab_size);
    options.scheduler.sampled_tokens = tokenizer_.size();
    options.scheduler.max_model_len = 4 * capacity.page_rows;
    options.scheduler.capacity = capacity;
    engine::DraftOptions& draft = options.scheduler.draft;
    draft.choice = choice;
    draft.has_mtp = drafts.mtp;
    draft.has_dflash2 = dflash2;
    draft.policy = drafts.policy;
    draft.context_rows = dflash2 ? drafter_shape_.kept_rows() : 0;
    engine_ = std::make_unique<engine::BatchEngine>(*runner_, options, drafter_.get());
  }

  AcceptanceReport run(ReferenceLoop reference) {
    const auto all =
        read_acceptance_prompts(source / "models/nano/acceptance_prompts.jsonl", tokenizer_, nano_.shape.vocab_size);
    std::vector<AcceptancePrompt> part;
    for (size_t i = 1; i < all.size(); i += 7) part.push_back(all[i]);  // prompt 49 (count) is known to hang on little
    part.push_back(all[49]);
    AcceptanceOptions options;
    options.sampling.temperature = 0;
    options.stop_ids = nano_.shape.eos_token_ids;
    options.reference = reference;
    return run_acceptance(*engine_, part, options, {});
  }

 private:
  const forward::Loaded& nano_ = forward::loaded("nano");
  const text::Tokenizer tokenizer_ = text::Tokenizer::load(source / "models/nano");
  const std::filesystem::path folder_ = source / "models/nano-dflash2";
  model::DrafterShape drafter_shape_ = model::read_drafter_shape(folder_);
  model::Checkpoint checkpoint_ = model::Checkpoint::open(folder_);
  model::DrafterWeights drafter_weights_ = model::load_drafter_weights(checkpoint_, drafter_shape_);
  std::unique_ptr<engine::StepRunner> runner_;
  std::unique_ptr<draft::ModelDrafter> drafter_;
  std::unique_ptr<engine::Engine> engine_;
};

TEST(AcceptanceOfNano, MtpYieldsWhatTheReferenceYields) {
  const auto report = Nano(draft::Choice::mtp).run(ReferenceLoop::mtp);
  EXPECT_EQ(report.compared, 13);
  EXPECT_EQ(report.different(), 0) << acceptance_text(report);
  EXPECT_EQ(report.steps(), report.reference_steps);
  EXPECT_GT(report.token_weighted_mean(), 3.4);
}

TEST(AcceptanceOfNano, DFlash2YieldsWhatTheReferenceYields) {
  const auto report = Nano(draft::Choice::dflash2).run(ReferenceLoop::dflash2);
  EXPECT_EQ(report.compared, 13);
  EXPECT_EQ(report.different(), 0) << acceptance_text(report);
  EXPECT_EQ(report.steps(), report.reference_steps);
  EXPECT_GT(report.token_weighted_mean(), 4.5);
}

}  // namespace
}  // namespace tandem::eval::acceptance_nano_test
