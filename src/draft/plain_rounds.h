// When a model's drafts do not pay: a plain step is always a candidate (spec/speculation.md 5.1), and a round that
// makes drafts for nothing costs more than one that makes none. Per stream; a pure function of what the rounds yielded.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

namespace tandem::draft {

class PlainRounds {
 public:
  static constexpr int32_t judged = 3;         // rounds with drafts before they are judged at first
  static constexpr int32_t remembered = 6;     // the last ones, by which they are
  static constexpr int32_t first_rest = 8;     // plain rounds after drafts that did not pay
  static constexpr int32_t longest_rest = 64;  // each rest is twice the one before, until a trial pays

  // Asked once before each round: whether to make drafts.
  bool drafts() {
    if (rest_ == 0) return true;
    --rest_;
    return false;
  }
  // A round with drafts yielded `tokens` in `ms`; a plain one yields a token in `plain_ms`.
  void add(double tokens, double ms, double plain_ms);

 private:
  void rest();

  std::array<double, remembered> gains_{};  // tokens · plain_ms − ms: what the round was ahead of plain ones
  int32_t rounds_ = 0, rest_ = 0, next_rest_ = first_rest;
  bool trial_ = false;  // the round is one after a rest
};

}  // namespace tandem::draft
