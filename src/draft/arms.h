// Which of two model drafters a stream uses, by what they yielded (spec/speculation.md 5.2 `auto`): two rounds of each,
// then the one with more tokens a millisecond of the agreed table; the other is tried again now and then.
#pragma once

#include <array>
#include <cstdint>

#include "draft/proposal.h"

namespace tandem::draft {

class Arms {
 public:
  static constexpr int32_t explored = 2;     // rounds of each arm at first
  static constexpr int32_t remembered = 6;   // rounds of an arm that its rate is taken over
  static constexpr int32_t probe_every = 8;  // rounds between two trials of the other arm
  static constexpr int32_t probe_after_switch = 3;
  static constexpr double margin = 0.03;  // by which the other arm must be better

  void reset() { *this = Arms(); }
  Source next() const;  // dflash2 or mtp
  // A round that the arm drafted for gave `tokens` and took `ms` by the table.
  void add(Source arm, double tokens, double ms);

 private:
  struct History {
    std::array<double, remembered> tokens{}, ms{};
    int32_t rounds = 0;  // since it was reset
    double rate() const;
  };
  static Source other(Source arm) { return arm == Source::mtp ? Source::dflash2 : Source::mtp; }
  History& of(Source arm) { return histories_[arm == Source::mtp ? 1 : 0]; }
  const History& of(Source arm) const { return histories_[arm == Source::mtp ? 1 : 0]; }

  std::array<History, 2> histories_{};  // dflash2, mtp
  Source current_ = Source::none;       // none: still exploring
  int32_t until_probe_ = probe_every;
};

}  // namespace tandem::draft
