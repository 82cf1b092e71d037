// How many prompt rows a step may hold while other streams decode, and when: a slice of bounded time, then rounds
// without prompt rows until these have had their share (spec/runtime.md c.2).
#pragma once

#include <cstdint>
#include <span>

#include "engine/scheduler_options.h"

namespace tandem::engine {

class PrefillPacer {
 public:
  // slice_ms 0: slices are bounded by max_rows alone. share: of the time, smallest_fill_share to 1 (what is outside is
  // taken as the nearer of them).
  PrefillPacer(double slice_ms, double share, int32_t max_rows);

  // Rows of a step of about slice_ms, by the steps measured so far: a multiple of 16, at least 16, at most max_rows.
  int32_t slice_rows() const;
  // Whether prompts have credit for a slice. Prompts that fit a slice whole need none.
  bool has_credit(Time now) const { return now >= credit_at_; }

  struct Measured {
    Time began{0}, ended{0};
    int64_t rows = 0;         // all rows of the step
    int64_t prompt_rows = 0;  // rows of prompts among them
    bool on_credit = false;   // others decode, and a prompt that does not fit a slice got rows
  };
  void step_done(const Measured& step);

 private:
  const double slice_ms_, share_;
  const int32_t max_rows_;
  double ms_per_row_ = 0;  // exponentially weighted; 0: nothing was measured
  Time credit_at_{0};
};

// A prompt that wants rows in a step.
struct Fill {
  int64_t remaining = 0;  // rows to the prompt's end
  int64_t limit = 0;      // rows that it can take in this step (to the next kept position), at most `remaining`
  int64_t granted = 0;    // result
};

// Divides `rows` among the fills, given oldest first: shortest remaining first, ties to the older one, but at least a
// quarter (and one row) to the oldest, so that short prompts never keep a long one from its end.
void share_rows(std::span<Fill> fills, int64_t rows);

}  // namespace tandem::engine
