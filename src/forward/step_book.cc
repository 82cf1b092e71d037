// What a step may say, checked before anything runs.
#include "forward/step_book.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"

namespace tandem::forward {

void bad_step(const std::string& what) { throw Error(ErrorCode::internal, "step", what); }

void check_samples(const Step& step, int64_t vocab_size, int32_t max_logit_rows) {
  const auto wanted = static_cast<int64_t>(step.logit_rows.size() + step.head_slots.size());
  const auto listed = std::ssize(step.masked_tokens), most = int64_t{max_logit_rows} * RowSample::most_masked;
  if (listed > most) bad_step(fmt::format("{} masked ids, at most {}", listed, most));
  int64_t last = -1;
  for (const RowSample& s : step.samples) {
    if (s.row <= last || s.row >= wanted)
      bad_step(fmt::format("a sample of row {} after that of {}, of {} logit rows", s.row, last, wanted));
    last = s.row;
    if (s.size < 1 || s.size > vocab_size)
      bad_step(fmt::format("a sample of {} ids with a vocabulary of {}", s.size, vocab_size));
    const int64_t end = int64_t{s.first_masked} + s.masked;
    if (s.masked < 0 || s.masked > RowSample::most_masked || s.first_masked < 0 || end > listed)
      bad_step(fmt::format("a sample with the masked ids {} to {} of {}", s.first_masked, end, listed));
    if (!(s.temperature >= 0 && std::isfinite(s.temperature) && s.top_p > 0 && s.min_p >= 0 && s.min_p <= 1) ||
        s.top_k < 0)
      bad_step(fmt::format("a sample with temperature {}, top_k {}, top_p {}, min_p {}", s.temperature, s.top_k,
                           s.top_p, s.min_p));
  }
}

StepBook::StepBook(const Capacity& of_model, int64_t vocabulary)
    : capacity(of_model),
      vocab_size(vocabulary),
      end(static_cast<size_t>(of_model.slots)),
      certain_end(static_cast<size_t>(of_model.slots)),
      in_step(static_cast<size_t>(of_model.slots)),
      mtp_slots(static_cast<size_t>(of_model.slots)) {}

void StepBook::check_slot(int32_t slot) const {
  if (slot < 0 || slot >= capacity.slots) bad_step(fmt::format("slot {} of {}", slot, capacity.slots));
}

void StepBook::check_record(int32_t record) const {
  if (record < 0 || record >= capacity.kept_states)
    bad_step(fmt::format("record {} of {}", record, capacity.kept_states));
}

void StepBook::check_segment(const Segment& segment, const Step& step, bool text) const {
  check_slot(segment.slot);
  const auto step_rows = static_cast<int64_t>(step.tokens.size());
  if (segment.rows < 1 || segment.first_row < 0 || int64_t{segment.first_row} + segment.rows > step_rows) {
    bad_step(fmt::format("segment of {} rows at row {}", segment.rows, segment.first_row));
  }
  if (segment.certain_rows < 0 || segment.certain_rows > segment.rows ||
      segment.rows - segment.certain_rows > cache::max_window) {
    bad_step(fmt::format("{} certain rows of {}, at most {} may be uncertain", segment.certain_rows, segment.rows,
                         cache::max_window));
  }
  constexpr int64_t largest_position = int64_t{1} << 40;  // sums below do not overflow
  if (segment.position < 0 || segment.position > largest_position)
    bad_step(fmt::format("position {}", segment.position));
  for (int64_t i = 0; i < segment.rows; ++i) {
    const int64_t position = step.positions[static_cast<size_t>(segment.first_row + i)];
    if (position != segment.position + i)
      bad_step(fmt::format("row {} of a segment at {} has position {}", i, segment.position, position));
  }
  const int64_t pages = (segment.position + segment.rows + capacity.page_rows - 1) / capacity.page_rows;
  if (segment.page_table < 0 || segment.pages < pages ||
      (capacity.max_stream_pages > 0 && segment.pages > capacity.max_stream_pages) ||
      int64_t{segment.page_table} + segment.pages > static_cast<int64_t>(step.page_tables.size())) {
    bad_step(fmt::format("page table of {} pages for {} tokens", segment.pages, segment.position + segment.rows));
  }
  for (int64_t i = 0; i < pages; ++i) {
    const int32_t page = step.page_tables[static_cast<size_t>(segment.page_table + i)];
    if (page < 1 || page >= capacity.pages) bad_step(fmt::format("page {} of {}", page, capacity.pages));
  }
  const auto slot = static_cast<size_t>(segment.slot);
  if (text && segment.position != 0 && (segment.position < certain_end[slot] || segment.position > end[slot])) {
    bad_step(fmt::format("position {} does not continue the stream of {} to {} rows", segment.position,
                         certain_end[slot], end[slot]));
  }
}

void StepBook::check(const Step& step, bool text) {
  const auto step_rows = static_cast<int64_t>(step.tokens.size());
  const auto wanted = static_cast<int64_t>(step.logit_rows.size() + step.head_slots.size());
  if (!text && (has_moves(step) || !step.head_slots.empty())) bad_step("moves or head slots of a drafter's step");
  const bool only_moves = step_rows == 0 && text && (wanted > 0 || has_moves(step));
  if ((step_rows < 1 && !only_moves) || step_rows > capacity.max_rows)
    bad_step(fmt::format("{} rows, at most {}", step_rows, capacity.max_rows));
  if (step.positions.size() != step.tokens.size()) bad_step("positions and tokens differ in number");
  if (wanted > capacity.max_logit_rows)
    bad_step(fmt::format("{} logit rows, at most {}", wanted, capacity.max_logit_rows));
  for (const int32_t row : step.logit_rows) {
    if (row < 0 || row >= step_rows) bad_step(fmt::format("logit row {}", row));
  }
  for (const int32_t token : step.tokens) {
    if (token < 0 || token >= vocab_size)
      bad_step(fmt::format("token id {} with a vocabulary of {}", token, vocab_size));
  }
  check_samples(step, vocab_size, capacity.max_logit_rows);
  int64_t covered = 0;
  std::fill(in_step.begin(), in_step.end(), uint8_t{0});
  for (const Segment& segment : step.segments) {
    check_segment(segment, step, text);
    if (segment.first_row != covered) bad_step("segments do not cover the rows in order");
    covered += segment.rows;
    if (std::exchange(in_step[static_cast<size_t>(segment.slot)], uint8_t{1}) != 0)
      bad_step(fmt::format("two segments of slot {}", segment.slot));
  }
  if (covered != step_rows) bad_step("segments do not cover the rows");
  for (const int32_t slot : step.head_slots) {
    check_slot(slot);
    if (in_step[static_cast<size_t>(slot)] != 0) bad_step(fmt::format("head of slot {}, which has rows", slot));
    if (end[static_cast<size_t>(slot)] == 0) bad_step(fmt::format("head of slot {}, which is empty", slot));
  }
}

bool StepBook::has_moves(const Step& step) {
  return !step.keeps.empty() || !step.restores.empty() || !step.page_copies.empty();
}

void StepBook::check_keep(const StateMove& move) const {
  check_slot(move.slot);
  check_record(move.record);
  const auto slot = static_cast<size_t>(move.slot);
  if (move.length < 1 || move.length < certain_end[slot] || move.length > end[slot]) {
    bad_step(
        fmt::format("slot {} kept at {} rows, it has {} to {}", move.slot, move.length, certain_end[slot], end[slot]));
  }
}

void StepBook::check_restore(const StateMove& move, int64_t kept_length) const {
  check_slot(move.slot);
  check_record(move.record);
  if (move.length < 1 || kept_length != move.length)
    bad_step(fmt::format("record {} restored at {} rows, it has {}", move.record, move.length, kept_length));
}

void StepBook::check_copy(const PageCopy& copy, int32_t groups) const {
  if (copy.group < 0 || copy.group >= groups) bad_step(fmt::format("page group {} of {}", copy.group, groups));
  const auto is_page = [this](int32_t page) { return page >= 1 && page < capacity.pages; };
  if (!is_page(copy.from) || !is_page(copy.to) || copy.rows < 1 || copy.rows > capacity.page_rows)
    bad_step(fmt::format("{} rows of page {} copied to page {}", copy.rows, copy.from, copy.to));
}

void StepBook::check_dflash2(const Step& step, bool has_drafter) {
  if (!has_drafter) bad_step("a dflash2 step without a drafter");
  const auto rows_of_step = std::ssize(step.tokens);
  if (rows_of_step < 1 || rows_of_step > capacity.slots || std::ssize(step.positions) != rows_of_step ||
      std::ssize(step.segments) != rows_of_step) {
    bad_step(fmt::format("{} tokens, {} positions, {} segments of a dflash2 step", step.tokens.size(),
                         step.positions.size(), step.segments.size()));
  }
  if (has_moves(step) || !step.head_slots.empty() || !step.logit_rows.empty() || !step.samples.empty())
    bad_step("moves, logit rows or samples of a dflash2 step");
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
    if (step.tokens[i] < 0 || step.tokens[i] >= vocab_size)
      bad_step(fmt::format("token id {} with a vocabulary of {}", step.tokens[i], vocab_size));
    if (std::exchange(in_step[slot], uint8_t{1}) != 0) bad_step(fmt::format("two segments of slot {}", segment.slot));
  }
}

HiddenSource StepBook::hidden_source(const Step& step, const Segment& segment, int64_t row) const {
  const MtpSlot& slot = mtp_slots[static_cast<size_t>(segment.slot)];
  const int64_t position = segment.position + row;
  if (step.kind == StepKind::mtp_chain) {
    const bool continues =
        slot.last_row >= 0 && position == slot.last_row + 1 && position - slot.last_absorbed <= cache::max_window;
    return {continues && row == 0 ? HiddenPlace::chain : HiddenPlace::none, 0};
  }
  if (position >= end[static_cast<size_t>(segment.slot)]) return {};
  if (slot.in_text_step(position)) return {HiddenPlace::text_row, slot.text_first_row + position - slot.text_position};
  if (!slot.in_head_ring(position)) return {};
  return {HiddenPlace::head_ring, position};
}

void StepBook::check_hidden_rows(const Step& step) const {
  for (const Segment& segment : step.segments) {
    for (int64_t row = 0; row < segment.rows; ++row) {
      if (hidden_source(step, segment, row).place != HiddenPlace::none) continue;
      const int64_t position = segment.position + row;
      bad_step(step.kind == StepKind::mtp_chain
                   ? fmt::format("position {} does not continue the MTP rows of slot {}", position, segment.slot)
                   : fmt::format("the hidden row of position {} of slot {} is gone", position, segment.slot));
    }
  }
}

void StepBook::restored(const StateMove& move) {
  const auto slot = static_cast<size_t>(move.slot);
  end[slot] = certain_end[slot] = move.length;
  mtp_slots[slot].restored(move.length);
}

void StepBook::ran(const Segment& segment) {
  const auto slot = static_cast<size_t>(segment.slot);
  end[slot] = segment.position + segment.rows;
  certain_end[slot] = segment.position + segment.certain_rows;
  mtp_slots[slot].ran(segment);
}

void StepBook::ran_mtp(const Segment& segment, StepKind kind) {
  MtpSlot& slot = mtp_slots[static_cast<size_t>(segment.slot)];
  slot.last_row = segment.position + segment.rows - 1;
  if (kind != StepKind::mtp_chain) slot.last_absorbed = slot.last_row;
}

}  // namespace tandem::forward
