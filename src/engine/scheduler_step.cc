// The step: moves, then one row of every decoding stream, then prompt rows as time allows.
#include <algorithm>

#include "base/error.h"
#include "engine/scheduler.h"

namespace tandem::engine {

const forward::Step* Scheduler::schedule(Time now) {
  step_.clear();
  wanted_.clear();
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

// The rows of a prompt that DFlash2 can still see from the point at which its ring must be complete next: where the
// state is kept, or the prompt's end.
int64_t Scheduler::context_from(const Stream& stream, int64_t rows) const {
  const int64_t point = stream.next_keep.length != 0 ? stream.next_keep.length : stream.fill_end;
  const int64_t from = point - options_.draft.context_rows;
  return std::clamp(from, stream.length, stream.length + rows);
}

// `rows` that are kept, and drafts behind them.
void Scheduler::add_segment(Stream& stream, int64_t rows, int32_t drafts) {
  const auto first_row = static_cast<int32_t>(step_.tokens.size());
  const auto pages = static_cast<int32_t>(book_.entries_of(stream.length + rows + drafts));
  step_.segments.push_back({.slot = stream.slot,
                            .page_table = static_cast<int32_t>(step_.page_tables.size()),
                            .pages = pages,
                            .first_row = first_row,
                            .rows = static_cast<int32_t>(rows) + drafts,
                            .certain_rows = static_cast<int32_t>(rows),
                            .position = stream.length,
                            .context_from = stream.phase == Stream::Phase::filling ? context_from(stream, rows) : 0});
  const auto& ids = stream.job->ids;
  for (int64_t i = 0; i < rows + drafts; ++i) {
    step_.tokens.push_back(i < rows ? ids[static_cast<size_t>(stream.length + i)]
                                    : stream.proposal.tokens[static_cast<size_t>(i - rows)]);
    step_.positions.push_back(stream.length + i);
  }
  step_.page_tables.insert(step_.page_tables.end(), stream.page_table.begin(), stream.page_table.begin() + pages);
  ran_.push_back({&stream, rows});
  stream.tried = drafts;
  const Job& job = *stream.job;
  const int64_t first = std::max(stream.length, job.scored), end = stream.length + rows;
  const int64_t scored = job.wants_scores() ? std::max<int64_t>(0, std::min(end, job.prompt - 1) - first) : 0;
  for (int64_t i = 0; i < scored; ++i) {
    step_.logit_rows.push_back(first_row + static_cast<int32_t>(first - stream.length + i));
  }
  const bool samples = end == std::ssize(ids);
  for (int32_t i = -1; samples && i < drafts; ++i) {
    step_.logit_rows.push_back(first_row + static_cast<int32_t>(rows) + i);
    const auto before = static_cast<size_t>(i + 1);  // drafts that the row's token comes after
    add_text_sample(job, end + i + 1, std::span(stream.proposal.tokens).first(before), i + 1 < drafts);
  }
  if (samples || scored > 0) wanted_.push_back({&stream, scored, samples});
}

// Drafts that a step could use: no row past the reply's end is run, and every row has a page.
int32_t Scheduler::usable_drafts(const Stream& stream) const {
  const Job& job = *stream.job;
  const int64_t room = job.request.max_tokens - job.emitted;
  const int64_t paged = std::ssize(stream.page_table) * book_.page_rows() - stream.length;
  const int64_t usable = std::min<int64_t>({stream.proposal.count, room - 1, paged - 1});
  const auto count = static_cast<int32_t>(std::max<int64_t>(0, usable));
  if (count == 0 || job.request.rule == nullptr) return count;
  // A drawn draft that the rule refuses has to be rejected, or the token in its place would not come from the row's
  // distribution (spec/speculation.md 3.4).
  if (options_.draft.verify == DraftVerify::ratio && job.request.sampling.temperature >= greedy_temperature)
    return count;
  return std::min(
      count, job.request.rule->allowed_drafts(std::span(stream.proposal.tokens).first(static_cast<size_t>(count))));
}

// stream.tried of every stream that decodes. Prompts keep half of a step's rows, and a logit row for each of them.
void Scheduler::choose_depths() {
  wishes_.clear();
  wishing_.clear();
  int64_t decoding = 0, others = 0;
  for (Stream* stream : by_age_) {
    const bool decodes = stream->phase == Stream::Phase::decoding && !stream->waits;
    decoding += decodes ? 1 : 0;
    others += decodes ? 0 : 1;
    stream->tried = 0;
    if (!decodes) continue;
    const int32_t usable = usable_drafts(*stream);
    if (usable == 0) continue;
    wishes_.push_back({.proposal = &stream->proposal, .most = usable});
    wishing_.push_back(stream);
  }
  if (wishes_.empty()) return;
  const forward::Capacity& capacity = options_.capacity;
  const int64_t rows = others > 0 ? std::max<int64_t>(decoding, capacity.max_rows / 2) : capacity.max_rows;
  draft::Policy policy = options_.draft.policy;
  const int64_t most = std::min<int64_t>(rows, capacity.max_logit_rows - others);
  policy.most_rows = static_cast<int32_t>(policy.most_rows > 0 ? std::min<int64_t>(policy.most_rows, most) : most);
  takes_.assign(wishes_.size(), 0);
  draft::allocate(policy, options_.draft.table, wishes_, decoding - std::ssize(wishes_), takes_);
  for (size_t i = 0; i < wishing_.size(); ++i) wishing_[i]->tried = takes_[i];
}

void Scheduler::add_decode_rows() {
  choose_depths();
  for (Stream* stream : by_age_) {
    if (stream->phase == Stream::Phase::decoding && !stream->waits) add_segment(*stream, 1, stream->tried);
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
  // Rows whose log-probabilities are wanted need logits: each stream has one row of them, and the oldest what is left.
  int64_t spare = options_.capacity.max_logit_rows - std::ssize(step_.logit_rows);
  for (const Stream* stream : by_age_) spare -= stream->phase == Stream::Phase::filling ? 1 : 0;
  for (Stream* stream : by_age_) {
    const int64_t remaining = stream->fill_end - stream->length;
    if (stream->phase != Stream::Phase::filling || remaining == 0) continue;
    if (!has_credit && remaining > slice) continue;
    const int64_t to_keep = stream->next_keep.length - stream->length;
    int64_t limit = to_keep > 0 ? std::min(remaining, to_keep) : remaining;
    if (stream->job->wants_scores()) {
      const int64_t scored_before = std::max<int64_t>(0, stream->job->scored - stream->length);
      limit = std::min(limit, scored_before + 1 + std::max<int64_t>(0, spare));
      spare -= std::max<int64_t>(0, limit - scored_before - 1);
    }
    fills_.push_back({.remaining = remaining, .limit = limit});
    filling_.push_back(stream);
  }
  share_rows(fills_, slice);
  for (size_t i = 0; i < fills_.size(); ++i) {
    if (fills_[i].granted == 0) continue;
    measured_.on_credit = measured_.on_credit || (others_decode && fills_[i].remaining > slice);
    add_segment(*filling_[i], fills_[i].granted, 0);
  }
  measured_.rows = std::ssize(step_.tokens);
  measured_.prompt_rows = measured_.rows - decode_rows;
}

// Prompts whose every row was kept: the head row alone gives the first token.
void Scheduler::add_head_slots() {
  for (Stream* stream : by_age_) {
    if (stream->phase != Stream::Phase::filling || stream->length < stream->fill_end) continue;
    step_.head_slots.push_back(stream->slot);
    stream->tried = 0;
    add_text_sample(*stream->job, stream->length, {}, false);
    wanted_.push_back({stream, 0, true});
  }
}

}  // namespace tandem::engine
