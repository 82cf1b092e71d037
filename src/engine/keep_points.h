// Where along a prompt its state is kept, so that later prompts resume there (spec/runtime.md b.4, b.5; design.md 5).
#pragma once

#include <cstdint>
#include <span>

namespace tandem::engine {

struct KeepRules {
  // Along long prompts: every stride(position) tokens with stride = position / stride_divisor rounded down to a power
  // of two, between smallest and largest. 0 as smallest: none.
  int64_t smallest_stride = 1024, largest_stride = 16384, stride_divisor = 8;
  // A prompt that parts from stored text is kept at that point if it lies at least so far behind the resumed length.
  int64_t shortest_fork = 16;
};

struct KeepPoint {
  int64_t length = 0;  // tokens of the state; 0: there is none
  bool fork = false;   // other conversations part here

  bool operator==(const KeepPoint&) const = default;
};

// What is known of a prompt when it is admitted.
struct PromptToKeep {
  int64_t length = 0;                  // tokens of the prompt
  int64_t fork = 0;                    // where it parts from stored text; 0: nowhere worth keeping
  std::span<const int64_t> positions;  // Request::keep_positions, ascending
};

// Where to keep a prompt that resumes at `resumed` and parts from stored text after `common` tokens; 0: nowhere.
int64_t fork_point(const KeepRules& rules, int64_t resumed, int64_t common);

// The first point beyond `after`: the prompt's end, its fork, its positions and the points of the stride, which are the
// same absolute positions for every prompt. {0} if there is none.
KeepPoint next_keep_point(const KeepRules& rules, const PromptToKeep& prompt, int64_t after);

}  // namespace tandem::engine
