// Drafts of one stream for its next step. Drafts decide how many tokens a step yields and never which
// (spec/speculation.md 3.2), so everything here may be wrong without harm.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace tandem::draft {

// Drafts of a window beside its pending token, at most (cache::max_window − 1).
inline constexpr int32_t most_drafts = 15;

// What a proposal came from.
enum class Source : uint8_t { none, copy, mtp, dflash2 };
inline constexpr int32_t sources = 4;
std::string_view name_of(Source source);  // "none", "copy", …

// --drafter and a request's "drafter".
enum class Choice : uint8_t { none, copy, mtp, dflash2, automatic };
std::string_view name_of(Choice choice);  // "none", "copy", "mtp", "dflash2", "auto"
// Throws Error(usage) naming `where` for another name.
Choice parse_choice(std::string_view name, std::string_view where);

// The distribution that a draft was drawn from, for ratio verification (3.4): at most 16 ids with their probabilities.
struct DraftDistribution {
  static constexpr int32_t most = 16;
  int32_t size = 0;  // 0: the draft was no draw (all its mass is on it)
  std::array<int32_t, most> ids{};
  std::array<double, most> probabilities{};
};

struct Proposal {
  Source source = Source::none;
  int32_t count = 0;                             // 0 to most_drafts
  std::array<int32_t, most_drafts> tokens{};     // draft i stands at position (rows kept) + 1 + i
  std::array<double, most_drafts> confidence{};  // (0, 1]: chance that draft i is accepted if those before it are
  std::array<DraftDistribution, most_drafts> drawn_from{};

  void clear() { source = Source::none, count = 0; }
};

// Cuts the proposal before its first id that is outside [0, vocab_size); true if there was one. A model that drafts
// such ids has a fault that no reply may feel (spec/speculation.md 7, 27).
bool cut_invalid(Proposal& proposal, int64_t vocab_size);

}  // namespace tandem::draft
