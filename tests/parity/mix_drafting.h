// Who proposes drafts in a mix, and by which rules they are verified: drawn from the seed. None of it may change a
// reply.
#pragma once

#include <cstdint>
#include <optional>
#include <random>
#include <string_view>
#include <vector>

#include "draft/copy_drafts.h"
#include "engine/scheduler_options.h"

namespace tandem::parity {

// Numbers from a seed; the same on every standard library.
class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  int64_t below(int64_t n) { return static_cast<int64_t>(engine_() % static_cast<uint64_t>(n)); }
  int64_t between(int64_t first, int64_t last) { return first + below(last - first + 1); }
  bool chance(int percent) { return below(100) < percent; }
  double share() { return static_cast<double>(below(1001)) / 1000; }  // 0 to 1
  uint64_t bits() { return engine_(); }
  template <typename T>
  const T& of(const std::vector<T>& values) {
    return values[static_cast<size_t>(below(std::ssize(values)))];
  }

 private:
  std::mt19937_64 engine_;
};

// Proposals that are made from what the replies are known to be.
enum class Script {
  none,
  perfect,      // the reply as it will come
  adversarial,  // right up to place i, then wrong; i = 0 … 14 in turn
  invalid,      // an id outside of the vocabulary somewhere
  random,       // any tokens
};
std::string_view name_of(Script script);

struct MixDrafting {
  bool model = false;  // draft::ModelDrafter with copies, the MTP layer, a DFlash2 drafter, as options.has_… say
  int32_t mtp_depth = 3;
  draft::CopyOptions copies;
  uint64_t drafter_seed = 0;  // of a DFlash2 drafter's shape, and of its weights where the model has none of its own

  Script script = Script::none;  // alone, or in place of a part of the model drafter's proposals
  int32_t script_width = 15;     // drafts of a proposal
  int script_percent = 100;      // of the proposals
  bool roomy = false;            // nothing cuts a proposal but the reply's end

  engine::DraftOptions options;  // without context_rows

  bool is_on() const { return model || script != Script::none; }
};

MixDrafting draw_drafting(Random& random, bool has_mtp);
// A request's own choice among what there is; none: the engine's default.
std::optional<draft::Choice> draw_choice(Random& random, const MixDrafting& drafting);

}  // namespace tandem::parity
