// Names of what drafts come from and of what a user may choose, and the range check of drafted ids.
#include "draft/proposal.h"

#include <string>

#include "base/error.h"

namespace tandem::draft {

std::string_view name_of(Source source) {
  switch (source) {
    case Source::none: return "none";
    case Source::copy: return "copy";
    case Source::mtp: return "mtp";
    case Source::dflash2: return "dflash2";
  }
  throw Error(ErrorCode::internal, "draft source", std::to_string(static_cast<int>(source)), "0 to 3");
}

std::string_view name_of(Choice choice) {
  switch (choice) {
    case Choice::none: return "none";
    case Choice::copy: return "copy";
    case Choice::mtp: return "mtp";
    case Choice::dflash2: return "dflash2";
    case Choice::automatic: return "auto";
  }
  throw Error(ErrorCode::internal, "draft choice", std::to_string(static_cast<int>(choice)), "0 to 4");
}

Choice parse_choice(std::string_view name, std::string_view where) {
  for (const Choice choice : {Choice::none, Choice::copy, Choice::mtp, Choice::dflash2, Choice::automatic}) {
    if (name == name_of(choice)) return choice;
  }
  throw Error(ErrorCode::usage, std::string(where), "'" + std::string(name) + "'", "none, copy, mtp, dflash2 or auto");
}

bool cut_invalid(Proposal& proposal, int64_t vocab_size) {
  for (int32_t i = 0; i < proposal.count; ++i) {
    const int32_t token = proposal.tokens[static_cast<size_t>(i)];
    if (token >= 0 && token < vocab_size) continue;
    proposal.count = i;
    return true;
  }
  return false;
}

}  // namespace tandem::draft
