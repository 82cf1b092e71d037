// How many drafts of each stream are verified (spec/speculation.md 5): a pure function of agreed data, so that ranks
// agree and a recorded run repeats. No choice made here changes a token.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "draft/proposal.h"
#include "draft/timing_table.h"

namespace tandem::draft {

struct Policy {
  enum class Kind : uint8_t {
    fixed,       // every draft up to `depth`
    confidence,  // drafts while the product of their confidences is at least `threshold`, the first one always (5.2 fc)
    joint,       // rows go to the streams that gain most by them while a step yields more tokens a millisecond (5.5)
  };
  Kind kind = Kind::joint;
  int32_t depth = 0;       // --num-speculative-tokens: at most so many drafts of a stream; 0: as many as there are
  double threshold = 0.3;  // of confidence
  int32_t most_rows = 0;   // of a step that verifies, over all streams; 0: no bound
};

// --draft-policy: "fixed", "confidence", "confidence:0.3", "joint". Throws Error(usage).
Policy parse_policy(std::string_view text);
std::string text_of(const Policy& policy);

struct Wish {
  const Proposal* proposal = nullptr;
  int32_t most = 0;  // drafts that may be taken (≤ proposal->count)
};

// take[i]: drafts of wishes[i] to verify. `other_rows`: rows of the step that are there anyway, without the one pending
// row of each wish. Ties go to the lower index. A plain step (nothing taken) is always among the candidates of joint.
void allocate(const Policy& policy, const TimingTable& table, std::span<const Wish> wishes, int64_t other_rows,
              std::span<int32_t> take);

}  // namespace tandem::draft
