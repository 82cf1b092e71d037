// The rule of two arms.
#include "draft/arms.h"

#include <algorithm>

namespace tandem::draft {

double Arms::History::rate() const {
  double all_tokens = 0, all_ms = 0;
  for (int32_t i = 0; i < std::min(rounds, remembered); ++i)
    all_tokens += tokens[static_cast<size_t>(i)], all_ms += ms[static_cast<size_t>(i)];
  return all_ms > 0 ? all_tokens / all_ms : 0;
}

Source Arms::next() const {
  if (current_ == Source::none) return of(Source::dflash2).rounds < explored ? Source::dflash2 : Source::mtp;
  return until_probe_ == 0 ? other(current_) : current_;
}

void Arms::add(Source arm, double tokens, double ms) {
  if (arm != Source::mtp && arm != Source::dflash2) return;
  History& history = of(arm);
  const auto place = static_cast<size_t>(history.rounds++ % remembered);
  history.tokens[place] = tokens;
  history.ms[place] = ms;
  if (current_ == Source::none) {
    if (of(Source::dflash2).rounds < explored || of(Source::mtp).rounds < explored) return;
    current_ = of(Source::mtp).rate() > of(Source::dflash2).rate() ? Source::mtp : Source::dflash2;
    return;
  }
  until_probe_ = arm == current_ ? std::max(0, until_probe_ - 1) : probe_every;
  const Source rival = other(current_);
  if (of(rival).rate() <= of(current_).rate() * (1 + margin)) return;
  of(current_) = {};
  current_ = rival;
  until_probe_ = probe_after_switch;
}

}  // namespace tandem::draft
