// dflash2 steps of the text model: what they may say, and the target's embedding and head around the drafter's blocks.
#include <algorithm>

#include "forward/text_model_state.h"

namespace tandem::forward {

void TextModel::State::run_dflash2(const Step& step) {
  check_dflash2(step, drafter != nullptr);
  logit_rows = 0;
  const int64_t width = shape.hidden_size, most = capacity.max_rows;
  for (int64_t first = 0; first < std::ssize(step.tokens); first += most) {  // what ranks exchange is a step's rows
    const int64_t count = std::min(most, std::ssize(step.tokens) - first);
    embed(std::span(step.tokens).subspan(static_cast<size_t>(first), static_cast<size_t>(count)), 1,
          drafter->block_input() + first * drafter->block_stride(), drafter->block_stride());
  }
  embed({&drafter->shape().mask_token_id, 1}, 1, drafter->mask_input(), width);
  drafter->run_blocks(step);
  for (int64_t row = 0; row < drafter->draft_rows(); row += capacity.max_logit_rows) {
    const int64_t count = std::min<int64_t>(capacity.max_logit_rows, drafter->draft_rows() - row);
    std::copy_n(drafter->draft_hidden() + row * width, count * width, scratch.logit_hidden);
    head_rows(count, scratch.logits);
    drafter->candidates(row, count, scratch.logits);
  }
  drafter->finish(step);
}

}  // namespace tandem::forward
