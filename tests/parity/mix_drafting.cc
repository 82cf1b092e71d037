// The draws.
#include "mix_drafting.h"

#include <fmt/core.h>

namespace tandem::parity {
namespace {

using draft::Choice;

draft::TimingTable draw_table(Random& random) {
  draft::TimingTable table;
  table.id = "random";
  double ms = 0.1 + random.share();
  const double row = random.share() * random.share();
  for (int64_t rows = random.between(1, 20); rows > 0; --rows) {
    table.verify_ms.push_back(ms);
    ms += row * random.share();
  }
  table.mtp_ms = random.share() / 2;
  table.mtp_step_ms = random.share() / 4;
  table.mtp_row_ms = random.share() / 8;
  table.block_ms = random.share() / 2;
  table.overhead_ms = random.share() / 4;
  return table;
}

draft::Policy draw_policy(Random& random) {
  using Kind = draft::Policy::Kind;
  draft::Policy policy;
  policy.kind = random.of(std::vector<Kind>{Kind::fixed, Kind::confidence, Kind::joint});
  policy.depth = random.chance(40) ? 0 : static_cast<int32_t>(random.between(1, random.chance(70) ? 7 : 15));
  policy.threshold = random.share();
  if (random.chance(20)) policy.most_rows = static_cast<int32_t>(random.between(1, 32));
  return policy;
}

// Short matches in small windows: prompts here are short.
draft::CopyOptions draw_copies(Random& random) {
  draft::CopyOptions copies;
  copies.match = static_cast<int32_t>(random.between(2, 6));
  copies.reply_match = static_cast<int32_t>(random.between(2, 12));
  copies.window = int64_t{1} << random.between(4, 12);
  copies.most_places = static_cast<int32_t>(random.between(1, 64));
  return copies;
}

void draw_model(Random& random, bool has_mtp, MixDrafting& drafting) {
  engine::DraftOptions& options = drafting.options;
  const auto kind = random.of(has_mtp ? std::vector{Choice::copy, Choice::mtp, Choice::dflash2, Choice::automatic}
                                      : std::vector{Choice::copy, Choice::dflash2, Choice::automatic});
  const bool all = kind == Choice::automatic;
  options.has_copy = kind == Choice::copy || (all ? random.chance(80) : random.chance(40));
  options.has_mtp = kind == Choice::mtp || (all && has_mtp);
  options.has_dflash2 = kind == Choice::dflash2 || all;
  options.choice = random.chance(15) ? Choice::none : kind;
  drafting.model = true;
  drafting.mtp_depth = static_cast<int32_t>(random.between(1, 3));
  drafting.copies = draw_copies(random);
  drafting.drafter_seed = random.bits();
}

void draw_script(Random& random, MixDrafting& drafting) {
  drafting.script = random.of(std::vector{Script::perfect, Script::perfect, Script::adversarial, Script::adversarial,
                                          Script::invalid, Script::random});
  drafting.script_width = random.chance(70) ? 7 : 15;
  if (drafting.script == Script::adversarial) drafting.script_width = 15;
  if (drafting.model) {
    drafting.script_percent = static_cast<int>(random.between(20, 100));
    return;
  }
  drafting.options.has_copy = true;  // a script answers to any name
  drafting.options.choice = Choice::copy;
  drafting.roomy = (drafting.script == Script::perfect || drafting.script == Script::adversarial) && random.chance(60);
}

}  // namespace

std::string_view name_of(Script script) {
  switch (script) {
    case Script::none: return "none";
    case Script::perfect: return "perfect";
    case Script::adversarial: return "adversarial";
    case Script::invalid: return "invalid";
    case Script::random: return "random";
  }
  return "?";
}

MixDrafting draw_drafting(Random& random, bool has_mtp) {
  MixDrafting drafting;
  if (random.chance(28)) return drafting;
  const bool scripted = random.chance(40);
  if (!scripted || random.chance(40)) draw_model(random, has_mtp, drafting);
  if (scripted) draw_script(random, drafting);
  drafting.options.policy = draw_policy(random);
  drafting.options.table = draw_table(random);
  if (drafting.roomy) drafting.options.policy = {.kind = draft::Policy::Kind::fixed};
  return drafting;
}

std::optional<Choice> draw_choice(Random& random, const MixDrafting& drafting) {
  if (!drafting.is_on()) return random.chance(10) ? std::optional(Choice::none) : std::nullopt;
  if (random.chance(50)) return std::nullopt;
  std::vector<Choice> there = {Choice::none, Choice::automatic};
  if (drafting.options.has_copy) there.push_back(Choice::copy);
  if (drafting.options.has_mtp) there.push_back(Choice::mtp);
  if (drafting.options.has_dflash2) there.push_back(Choice::dflash2);
  return random.of(there);
}

}  // namespace tandem::parity
