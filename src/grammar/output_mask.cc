// Which tokens OutputRule::step() would take, for all of them at once.
#include <algorithm>

#include "grammar/output_rule.h"

namespace tandem::grammar {

bool OutputRule::masks() const {
  if (state_.phase == Phase::reasoning) return is_constrained();
  return state_.phase != Phase::text;
}

void OutputRule::mask(std::span<uint32_t> bits) {
  if (!masks()) return;
  if (state_.phase == Phase::reasoning || (state_.phase == Phase::name && !is_constrained()))
    return mask_text(state_, bits);
  mask_state(state_, bits);
  for (size_t i = 0; i < bits.size(); ++i) bits[i] &= i < allowed_.size() ? allowed_[i] : 0;
}

// Everything may come but a few tokens.
void OutputRule::mask_text(const State& state, std::span<uint32_t> bits) const {
  const auto forbid = [&](int32_t token) {
    if (token >= 0 && static_cast<size_t>(token) / 32 < bits.size())
      bits[static_cast<size_t>(token) / 32] &= ~(uint32_t{1} << (token % 32));
  };
  if (!may_end(state)) {
    for (const int32_t token : ends_) forbid(token);
  }
  if (state.phase != Phase::name) return;
  for (const int32_t token : {markers_.key_begin, markers_.call_end}) {
    State next = state;
    if (!step(next, token)) forbid(token);
  }
}

void OutputRule::allow(std::span<uint32_t> bits, int32_t token) const {
  if (token >= 0 && token < vocabulary_->size()) bits[static_cast<size_t>(token) / 32] |= uint32_t{1} << (token % 32);
}

// Tokens that are a beginning of what is left of a candidate.
void OutputRule::allow_literals(const State& state, std::span<uint32_t> bits) const {
  for (const std::string& one : candidates(state)) {
    if (!one.starts_with(state.written)) continue;
    const std::string_view rest = std::string_view(one).substr(state.written.size());
    for (size_t size = 1; size <= rest.size(); ++size) allow(bits, vocabulary_->find(rest.substr(0, size)));
  }
}

// Into allowed_.
void OutputRule::mask_state(const State& state, std::span<uint32_t>) const {
  const auto copy_text = [&] { allowed_.assign(vocabulary_->text_mask().begin(), vocabulary_->text_mask().end()); };
  const auto nothing = [&] { allowed_.assign(vocabulary_->words(), 0); };
  const auto allow_if_taken = [&](int32_t token) {
    State next = state;
    const int64_t accepted = state.matcher != nullptr ? state.matcher->accepted() : 0;
    if (token >= 0 && step(next, token)) allow(allowed_, token);
    if (state.matcher != nullptr) state.matcher->roll_back_to(accepted);
  };
  const bool writes = state.phase == Phase::name || state.phase == Phase::key ||
                      (state.phase == Phase::argument && state.matcher == nullptr);
  if (state.matcher != nullptr &&
      (state.phase == Phase::start || state.phase == Phase::value || state.phase == Phase::argument)) {
    copy_text();
    state.matcher->mask(allowed_);
  } else if (writes && candidates(state).empty()) {
    const bool is_free = state.phase == Phase::argument || form_->tools[state.tool].other_keys;
    is_free ? copy_text() : nothing();
  } else {
    nothing();
    if (writes) allow_literals(state, allowed_);
  }
  if (state.phase == Phase::start) {
    for (const int32_t token : vocabulary_->blanks()) allow_if_taken(token);
  }
  for (const int32_t token : {markers_.call_begin, markers_.call_end, markers_.key_begin, markers_.key_end,
                              markers_.value_begin, markers_.value_end})
    allow_if_taken(token);
  if (may_end(state)) {
    for (const int32_t token : ends_) allow(allowed_, token);
  }
}

}  // namespace tandem::grammar
