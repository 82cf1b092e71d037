// The real model behind the engine's interface.
#include "engine/step_runner.h"

#include "forward/text_model.h"

namespace tandem::engine {
namespace {

class TextModelRunner : public StepRunner {
 public:
  explicit TextModelRunner(forward::TextModel& model) : model_(model) {}
  void run(const forward::Step& step) override { model_.run(step); }
  std::span<const float> logits() const override { return model_.logits(); }

 private:
  forward::TextModel& model_;
};

}  // namespace

std::unique_ptr<StepRunner> run_text_model(forward::TextModel& model) {
  return std::make_unique<TextModelRunner>(model);
}

}  // namespace tandem::engine
