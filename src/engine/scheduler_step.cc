// The step: moves, then one row of every decoding stream, then prompt rows as time allows.
#include <algorithm>

#include "base/error.h"
#include "engine/scheduler.h"

namespace tandem::engine {

const forward::Step* Scheduler::schedule(Time now) {
  step_.clear();
  sampled_.clear();
  ran_.clear();
  measured_ = {};
  measured_.began = now;
  end_overdue(now);
  end_lost_receivers(now);
  while (true) {
    keep_due_states();
    admit(now);
    const bool has_rows = build_rows(now);
    const bool has_moves = !step_.keeps.empty() || !step_.restores.empty() || !step_.page_copies.empty();
    if (has_rows || has_moves) return &step_;
    if (!book_.has_pins()) return nullptr;
    unpin();  // states that were kept already: there is nothing to copy
  }
}

void Scheduler::unpin() {
  if (!book_.has_pins()) return;
  book_.step_done();
  admission_waits_ = false;
}

bool Scheduler::build_rows(Time now) {
  while (true) {
    grow_decoding_streams();
    add_decode_rows();
    add_prompt_rows(now);
    add_head_slots();
    if (!ran_.empty() || !step_.head_slots.empty()) return true;
    // Pages of states that this step moves are free to be evicted after it.
    if (by_age_.empty() || book_.has_pins()) return false;
    if (by_age_.size() == 1)
      throw Error(ErrorCode::internal, "scheduler", "one stream alone cannot go on", "pages for its next row");
    give_back_youngest();
  }
}

void Scheduler::add_segment(Stream& stream, int64_t rows) {
  const auto first_row = static_cast<int32_t>(step_.tokens.size());
  const auto pages = static_cast<int32_t>(book_.entries_of(stream.length + rows));
  step_.segments.push_back({.slot = stream.slot,
                            .page_table = static_cast<int32_t>(step_.page_tables.size()),
                            .pages = pages,
                            .first_row = first_row,
                            .rows = static_cast<int32_t>(rows),
                            .certain_rows = static_cast<int32_t>(rows),
                            .position = stream.length});
  const auto& ids = stream.job->ids;
  for (int64_t position = stream.length; position < stream.length + rows; ++position) {
    step_.tokens.push_back(ids[static_cast<size_t>(position)]);
    step_.positions.push_back(position);
  }
  step_.page_tables.insert(step_.page_tables.end(), stream.page_table.begin(), stream.page_table.begin() + pages);
  ran_.push_back({&stream, rows});
  if (stream.length + rows < std::ssize(ids)) return;
  step_.logit_rows.push_back(first_row + static_cast<int32_t>(rows) - 1);
  sampled_.push_back(&stream);
}

void Scheduler::add_decode_rows() {
  for (Stream* stream : by_age_) {
    if (stream->phase == Stream::Phase::decoding && !stream->waits) add_segment(*stream, 1);
  }
}

void Scheduler::add_prompt_rows(Time now) {
  const bool others_decode = !ran_.empty();
  const int64_t decode_rows = std::ssize(step_.tokens);
  const int64_t most = options_.capacity.max_rows - decode_rows;
  const int64_t slice = std::min<int64_t>(most, others_decode ? pacer_.slice_rows() : options_.capacity.max_rows);
  const bool has_credit = !others_decode || pacer_.has_credit(now);
  fills_.clear();
  filling_.clear();
  for (Stream* stream : by_age_) {
    const int64_t remaining = stream->fill_end - stream->length;
    if (stream->phase != Stream::Phase::filling || remaining == 0) continue;
    if (!has_credit && remaining > slice) continue;
    const int64_t to_keep = stream->next_keep.length - stream->length;
    fills_.push_back({.remaining = remaining, .limit = to_keep > 0 ? std::min(remaining, to_keep) : remaining});
    filling_.push_back(stream);
  }
  share_rows(fills_, slice);
  for (size_t i = 0; i < fills_.size(); ++i) {
    if (fills_[i].granted == 0) continue;
    measured_.on_credit = measured_.on_credit || (others_decode && fills_[i].remaining > slice);
    add_segment(*filling_[i], fills_[i].granted);
  }
  measured_.rows = std::ssize(step_.tokens);
  measured_.prompt_rows = measured_.rows - decode_rows;
}

// Prompts whose every row was kept: the head row alone gives the first token.
void Scheduler::add_head_slots() {
  for (Stream* stream : by_age_) {
    if (stream->phase != Stream::Phase::filling || stream->length < stream->fill_end) continue;
    step_.head_slots.push_back(stream->slot);
    sampled_.push_back(stream);
  }
}

}  // namespace tandem::engine
