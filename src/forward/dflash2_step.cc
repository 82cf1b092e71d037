// dflash2 steps of the text model: what they may say, and the target's embedding and head around the drafter's blocks.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "forward/text_model_state.h"

namespace tandem::forward {

void TextModel::State::check_dflash2(const Step& step) {
  if (drafter == nullptr) bad_step("a dflash2 step without a drafter");
  const auto rows_of_step = std::ssize(step.tokens);
  if (rows_of_step < 1 || rows_of_step > capacity.slots || std::ssize(step.positions) != rows_of_step ||
      std::ssize(step.segments) != rows_of_step) {
    bad_step(fmt::format("{} tokens, {} positions, {} segments of a dflash2 step", step.tokens.size(),
                         step.positions.size(), step.segments.size()));
  }
  if (has_moves(step) || !step.head_slots.empty() || !step.logit_rows.empty())
    bad_step("moves or logit rows of a dflash2 step");
  std::fill(in_step.begin(), in_step.end(), uint8_t{0});
  for (size_t i = 0; i < step.segments.size(); ++i) {
    const Segment& segment = step.segments[i];
    check_slot(segment.slot);
    const auto slot = static_cast<size_t>(segment.slot);
    if (segment.rows != 1 || segment.first_row != static_cast<int64_t>(i) || step.positions[i] != segment.position)
      bad_step(fmt::format("segment {} of a dflash2 step is not row {}", i, i));
    if (segment.position < certain_end[slot] || segment.position > end[slot]) {
      bad_step(fmt::format("block at {}, slot {} has {} to {} rows", segment.position, segment.slot, certain_end[slot],
                           end[slot]));
    }
    if (step.tokens[i] < 0 || step.tokens[i] >= shape.vocab_size)
      bad_step(fmt::format("token id {} with a vocabulary of {}", step.tokens[i], shape.vocab_size));
    if (std::exchange(in_step[slot], uint8_t{1}) != 0) bad_step(fmt::format("two segments of slot {}", segment.slot));
  }
}

void TextModel::State::run_dflash2(const Step& step) {
  check_dflash2(step);
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
