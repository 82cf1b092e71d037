// Scripts, counts and checks.
#include "scripted_drafter.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>

namespace tandem::parity {

void DraftTally::add(const DraftTally& other) {
  drafted += other.drafted;
  accepted += other.accepted;
  for (size_t place = 0; place < rejected_at.size(); ++place) rejected_at[place] += other.rejected_at[place];
}

ScriptedDrafter::ScriptedDrafter(const MixDrafting& drafting, uint64_t seed, int32_t vocab_size, KnownReplies replies,
                                 std::unique_ptr<draft::Drafter> model)
    : drafting_(drafting),
      random_(seed),
      vocab_size_(vocab_size),
      replies_(std::move(replies)),
      model_(std::move(model)) {}

void ScriptedDrafter::start(int32_t slot, std::span<const int32_t> ids, int64_t length) {
  slots_[slot] = {};
  if (model_) model_->start(slot, ids, length);
}

void ScriptedDrafter::propose(std::span<const draft::StreamView> streams, draft::TokenPicker& picker) {
  if (model_) model_->propose(streams, picker);
  for (const draft::StreamView& view : streams) {
    Slot& slot = slots_.at(view.slot);
    slot.by_script = drafting_.script != Script::none && view.most > 0 && random_.chance(drafting_.script_percent);
    if (slot.by_script) script(view);
    slot.proposal = *view.proposal;
    slot.most = view.most;
  }
}

void ScriptedDrafter::script(const draft::StreamView& view) {
  const KnownReply& reply = replies_.at(view.seed);
  const int64_t emitted = std::ssize(view.ids) - view.prompt, known = std::ssize(reply.tokens) - emitted;
  if (view.prompt != reply.prompt || known < 1 ||
      !std::equal(view.ids.begin() + view.prompt, view.ids.end(), reply.tokens.begin()))
    failures_.push_back(
        fmt::format("slot {}: a drafter is shown {} tokens that are not those of the reply alone", view.slot, emitted));
  draft::Proposal& proposal = *view.proposal;
  proposal.clear();
  proposal.source = draft::Source::copy;
  proposal.count = drafting_.script == Script::random ? static_cast<int32_t>(random_.between(0, drafting_.script_width))
                                                      : drafting_.script_width;
  for (int32_t i = 0; i < proposal.count; ++i) {
    const auto place = static_cast<size_t>(i);
    const bool is_known = i < known && drafting_.script != Script::random;
    proposal.tokens[place] =
        is_known ? reply.tokens[static_cast<size_t>(emitted + i)] : static_cast<int32_t>(random_.below(vocab_size_));
    proposal.confidence[place] = drafting_.script == Script::perfect ? 1 : std::max(random_.share(), 1e-6);
    proposal.drawn_from[place].size = 0;
  }
  if (drafting_.script == Script::adversarial) {
    auto& token = proposal.tokens[static_cast<size_t>(next_wrong_)];
    token = wrong(token);
    next_wrong_ = (next_wrong_ + 1) % draft::most_drafts;
  }
  if (drafting_.script == Script::invalid) {
    const std::vector<int32_t> outside = {-1, vocab_size_, std::numeric_limits<int32_t>::max(),
                                          std::numeric_limits<int32_t>::min()};
    proposal.tokens[static_cast<size_t>(random_.below(proposal.count))] = random_.of(outside);
    ++invalid_proposals_;
  }
  int64_t right = 0;
  while (right < std::min<int64_t>(known, proposal.count) &&
         proposal.tokens[static_cast<size_t>(right)] == reply.tokens[static_cast<size_t>(emitted + right)])
    ++right;
  slots_.at(view.slot).right = right;
}

void ScriptedDrafter::verified(int32_t slot, const draft::Proposal& proposal, int32_t tried, int32_t accepted) {
  const Slot& mine = slots_.at(slot);
  const auto& proposed = mine.proposal.tokens;
  if (tried < 0 || tried > std::min(mine.proposal.count, mine.most) ||
      !std::equal(proposed.begin(), proposed.begin() + tried, proposal.tokens.begin()))
    failures_.push_back(
        fmt::format("slot {}: {} drafts were tried, not those that were proposed or more than have room", slot, tried));
  if (tried > 0 && mine.by_script && drafting_.script == Script::invalid)
    failures_.push_back(fmt::format("slot {}: drafts outside of the vocabulary were tried", slot));
  if (mine.by_script && accepted != std::min<int64_t>(mine.right, tried))
    failures_.push_back(
        fmt::format("slot {}: {} of {} drafts accepted, {} were right", slot, accepted, tried, mine.right));
  DraftTally& tally =
      tallies_[std::string(mine.by_script ? name_of(drafting_.script) : draft::name_of(proposal.source))];
  tally.drafted += tried;
  tally.accepted += accepted;
  if (accepted < tried) ++tally.rejected_at[static_cast<size_t>(accepted)];
  if (model_) model_->verified(slot, proposal, tried, accepted);
}

}  // namespace tandem::parity
