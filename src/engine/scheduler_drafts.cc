// Drafting after a step: what the drafter is told, and what it may propose (spec/speculation.md 1.8, 2.3, 4.5).
#include <algorithm>

#include "base/log.h"
#include "engine/scheduler.h"

namespace tandem::engine {

// The request's sampling rule for a drafter's logits.
class Scheduler::Picker : public draft::TokenPicker {
 public:
  explicit Picker(Scheduler& scheduler) : scheduler_(scheduler) {}
  Pick pick(int32_t slot, std::span<const float> logits, int64_t position,
            draft::DraftDistribution* drawn_from) override {
    const Job& job = *scheduler_.streams_[static_cast<size_t>(slot)].job;
    const SamplingParams& params = job.request.sampling;
    const AllowedTokens allowed = scheduler_.allowed_at(job, position);
    const Picked picked = drawn_from == nullptr
                              ? scheduler_.sampler_.pick(logits, params, position, allowed)
                              : scheduler_.sampler_.draw_draft(logits, params, position, allowed, *drawn_from);
    return {picked.token, picked.probability};
  }
  bool add_sample(int32_t slot, int64_t position, forward::Step& step) override {
    const Job& job = *scheduler_.streams_[static_cast<size_t>(slot)].job;
    if (!scheduler_.add_sample(job, position, step)) return false;
    step.samples.back().wants_probability = 1;
    return true;
  }

 private:
  Scheduler& scheduler_;
};

draft::Choice Scheduler::choice_of(const Job& job) const { return job.request.drafter.value_or(options_.draft.choice); }

// Drafts that the next step could verify, for which pages are taken if any are free: no kept state leaves for rows that
// may turn out wrong.
int32_t Scheduler::room_for_drafts(Stream& stream) {
  const Job& job = *stream.job;
  const int32_t depth = options_.draft.policy.depth;
  const int64_t most = depth > 0 ? depth : draft::most_drafts;
  const int64_t wanted = std::min(most, job.request.max_tokens - job.emitted - 1);
  if (wanted <= 0) return 0;
  const int64_t entries = book_.entries_of(stream.length + 1 + wanted);
  while (std::ssize(stream.page_table) < entries) {
    const int64_t entry = std::ssize(stream.page_table);
    if (book_.pages().free(book_.group_of(entry)) <= running()) break;  // the streams' pending rows come first
    stream.page_table.push_back(book_.take(entry));
  }
  const int64_t paged = std::ssize(stream.page_table) * book_.page_rows() - stream.length - 1;
  return static_cast<int32_t>(std::clamp<int64_t>(paged, 0, wanted));
}

draft::StreamView Scheduler::view_of(Stream& stream, bool ran) {
  const Job& job = *stream.job;
  draft::StreamView view;
  view.slot = stream.slot;
  view.ids = job.ids;
  view.prompt = job.prompt;
  view.length = stream.length;
  view.ran = ran;
  view.settle = stream.phase == Stream::Phase::ended ||
                (stream.next_keep.length != 0 && stream.next_keep.length == stream.length);
  view.choice = choice_of(job);
  view.temperature = job.request.sampling.temperature;
  view.seed = job.request.sampling.seed;
  view.draws = options_.draft.verify == DraftVerify::ratio && view.temperature >= greedy_temperature;
  if (stream.phase == Stream::Phase::decoding && view.choice != draft::Choice::none)
    view.most = room_for_drafts(stream);
  view.page_table = stream.page_table;
  stream.proposal.clear();
  view.proposal = &stream.proposal;
  return view;
}

// Streams that had no part in the step keep the proposals that they have.
void Scheduler::propose() {
  if (drafter_ == nullptr) return;
  views_.clear();
  for (Stream& stream : streams_) {
    const auto is_own = [&stream](const Running& ran) { return ran.stream == &stream; };
    const bool ran = std::any_of(ran_.begin(), ran_.end(), is_own);
    const auto is_wanted = [&stream](const Wanted& wanted) { return wanted.stream == &stream; };
    const bool moved = ran || std::any_of(wanted_.begin(), wanted_.end(), is_wanted);
    if (stream.phase != Stream::Phase::free && moved) views_.push_back(view_of(stream, ran));
  }
  Picker picker(*this);
  drafter_->propose(views_, picker);
  for (const draft::StreamView& view : views_) check_proposal(streams_[static_cast<size_t>(view.slot)]);
}

// A drafter may be wrong, but not outside of the vocabulary: such a proposal is dropped and the step is a plain one.
void Scheduler::check_proposal(Stream& stream) {
  draft::Proposal& proposal = stream.proposal;
  const bool is_valid = proposal.count >= 0 && proposal.count <= draft::most_drafts &&
                        std::all_of(proposal.tokens.begin(), proposal.tokens.begin() + proposal.count,
                                    [this](int32_t token) { return token >= 0 && token < options_.vocab_size; });
  if (is_valid) return;
  if (counts_.invalid_proposals++ == 0)
    log(LogLevel::warning, "a drafter ({}) proposed a token outside of the vocabulary; it is not used",
        draft::name_of(proposal.source));
  proposal.clear();
}

}  // namespace tandem::engine
