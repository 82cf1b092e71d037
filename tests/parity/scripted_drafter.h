// The drafter of a mix: the model's, a script that knows the replies, or a script that replaces some of the model's
// proposals. It counts how drafts fare, and a script checks that exactly the right ones were accepted.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "draft/drafter.h"
#include "mix_drafting.h"

namespace tandem::parity {

// A request's reply alone, by the seed of its sampling, which no other request of the mix has.
struct KnownReply {
  int64_t prompt = 0;
  std::vector<int32_t> tokens;  // with the stop token
};
using KnownReplies = std::map<uint64_t, KnownReply>;

struct DraftTally {
  int64_t drafted = 0, accepted = 0;
  std::array<int64_t, draft::most_drafts> rejected_at{};  // [i]: the first wrong draft stood at place i

  void add(const DraftTally& other);
};
using DraftTallies = std::map<std::string, DraftTally>;  // by what the drafts came from

class ScriptedDrafter : public draft::Drafter {
 public:
  // `model`: null, or what proposes where the script does not.
  ScriptedDrafter(const MixDrafting& drafting, uint64_t seed, int32_t vocab_size, KnownReplies replies,
                  std::unique_ptr<draft::Drafter> model);

  void start(int32_t slot, std::span<const int32_t> ids, int64_t length) override;
  void propose(std::span<const draft::StreamView> streams, draft::TokenPicker& picker) override;
  void verified(int32_t slot, const draft::Proposal& proposal, int32_t tried, int32_t accepted) override;

  const DraftTallies& tallies() const { return tallies_; }
  int64_t invalid_proposals() const { return invalid_proposals_; }
  const std::vector<std::string>& failures() const { return failures_; }

 private:
  struct Slot {
    bool by_script = false;
    int64_t right = 0;  // drafts that are the reply's tokens
    int32_t most = 0;   // that may be verified: as many as the reply has room for
    draft::Proposal proposal;
  };

  void script(const draft::StreamView& view);
  int32_t wrong(int32_t right) {
    return static_cast<int32_t>((right + 1 + random_.below(vocab_size_ - 1)) % vocab_size_);
  }

  MixDrafting drafting_;
  Random random_;
  int32_t vocab_size_;
  KnownReplies replies_;
  std::unique_ptr<draft::Drafter> model_;
  std::map<int32_t, Slot> slots_;
  int32_t next_wrong_ = 0;
  int64_t invalid_proposals_ = 0;
  DraftTallies tallies_;
  std::vector<std::string> failures_;
};

}  // namespace tandem::parity
