// Small pools, small pages, prompts that are related to each other, and trouble.
#include "engine/simulation_script.h"

#include <algorithm>
#include <cmath>
#include <random>

namespace tandem::engine {
namespace {

// The standard distributions differ between libraries; these do not.
class Dice {
 public:
  explicit Dice(uint64_t seed) : engine_(seed) {}
  int64_t between(int64_t low, int64_t high) {  // both included
    return low + static_cast<int64_t>(engine_() % static_cast<uint64_t>(high - low + 1));
  }
  bool chance(int64_t percent) { return between(1, 100) <= percent; }
  template <typename T>
  const T& one_of(const std::vector<T>& values) {
    return values[static_cast<size_t>(between(0, std::ssize(values) - 1))];
  }

 private:
  std::mt19937_64 engine_;
};

Time milliseconds(double ms) { return Time(static_cast<int64_t>(ms * 1e6)); }

void draw_sizes(Dice& dice, Script& script) {
  auto& model = script.model;
  model.keep_steps = false;
  model.slots = static_cast<int32_t>(dice.between(1, 8));
  model.groups = dice.chance(30) ? 2 : 1;
  model.page_rows = static_cast<int32_t>(dice.one_of<int64_t>({4, 8, 16}));
  model.pages = static_cast<int32_t>(dice.between(3, 14));
  model.records = dice.chance(10) ? 0 : static_cast<int32_t>(dice.between(1, 12));
  auto& options = script.options;
  options.vocab_size = options.sampled_tokens = FakeModel::vocabulary;
  options.page_groups = model.groups;
  options.max_model_len = dice.between(24, 120);
  options.max_waiting = dice.chance(80) ? 1000 : dice.between(1, 4);
  options.prefill_slice_ms = dice.chance(30) ? 0 : static_cast<double>(dice.between(1, 200));
  options.fill_share = static_cast<double>(dice.between(2, 10)) / 10;
  options.keep = {.smallest_stride = dice.one_of<int64_t>({0, 4, 8, 16}),
                  .largest_stride = 16,
                  .stride_divisor = 8,
                  .shortest_fork = dice.between(1, 6)};
  auto& capacity = options.capacity;
  capacity.slots = model.slots;
  capacity.pages = model.pages;
  capacity.page_rows = model.page_rows;
  capacity.kept_states = model.records;
  capacity.max_rows = static_cast<int32_t>(model.slots + dice.between(0, 40));
  capacity.max_logit_rows = model.slots;
  script.longest_stream =
      std::min<int64_t>(options.max_model_len, int64_t{model.groups} * (model.pages - 1) * model.page_rows);
}

std::vector<int32_t> tokens(Dice& dice, int64_t count) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; ++i) ids.push_back(static_cast<int32_t>(dice.between(1, 3)));
  return ids;
}

// A new prompt, or a relative of an earlier one: the same, its beginning, an edit, its next turn.
std::vector<int32_t> draw_prompt(Dice& dice, const Script& script) {
  const int64_t longest = script.longest_stream - 1;
  std::vector<int32_t> prompt;
  if (script.requests.empty() || dice.chance(25)) {
    prompt = tokens(dice, dice.between(1, longest));
  } else {
    prompt = dice.one_of(script.requests).request.prompt_ids;
    const int64_t kind = dice.between(0, 3);
    if (kind == 1) prompt.resize(static_cast<size_t>(dice.between(1, std::ssize(prompt))));
    if (kind == 2) prompt[static_cast<size_t>(dice.between(0, std::ssize(prompt) - 1))] = 4;
    if (kind == 3) {
      for (int64_t i = dice.between(0, 12); i > 0; --i) prompt.push_back(FakeModel::next(prompt));
    }
    if (kind != 0) {
      const auto more = tokens(dice, dice.between(0, 12));
      prompt.insert(prompt.end(), more.begin(), more.end());
    }
  }
  prompt.resize(std::min(prompt.size(), static_cast<size_t>(longest)));
  return prompt;
}

Request draw_request(Dice& dice, const Script& script) {
  Request request;
  request.prompt_ids = draw_prompt(dice, script);
  request.max_tokens = dice.between(1, 40);
  request.sampling.temperature = dice.chance(50) ? 0.0 : 1.0;
  request.sampling.top_p = dice.chance(50) ? 1.0 : 0.9;
  request.sampling.seed = static_cast<uint64_t>(dice.between(0, 3));
  for (int64_t i = dice.between(0, 3); i > 0; --i)
    request.stop_token_ids.push_back(static_cast<int32_t>(dice.between(0, FakeModel::vocabulary - 1)));
  std::sort(request.stop_token_ids.begin(), request.stop_token_ids.end());
  if (dice.chance(20)) request.min_tokens = dice.between(0, 10);
  if (dice.chance(15)) request.cache_salt = "salt";
  request.needs_every_prompt_row = dice.chance(5);
  if (dice.chance(5)) request.prompt_logprobs = 2;
  for (int64_t i = dice.between(0, 2); i > 0; --i)
    request.keep_positions.push_back(dice.between(1, std::ssize(request.prompt_ids)));
  if (dice.chance(15)) request.deadline_s = static_cast<double>(dice.between(1, 500)) / 1000;
  return request;
}

}  // namespace

Time Script::duration_of_step(int64_t step) const {
  Dice dice(durations + static_cast<uint64_t>(step));
  return milliseconds(0.1 * std::exp2(static_cast<double>(dice.between(0, 100)) / 10));
}

// Drafts that are what comes next, or some other token, or, rarely, no token at all.
void Script::propose(const draft::StreamView& view, draft::Proposal& proposal) const {
  Dice dice(drafts + view.ids.size() * 31 + static_cast<uint64_t>(view.slot));
  std::vector<int32_t> history(view.ids.begin(), view.ids.end());
  proposal.source = dice.chance(30) ? draft::Source::copy : draft::Source::dflash2;
  proposal.count = static_cast<int32_t>(dice.between(0, draft::most_drafts));
  for (int32_t i = 0; i < proposal.count; ++i) {
    const auto place = static_cast<size_t>(i);
    int32_t token = FakeModel::next(history);
    if (!dice.chance(right_drafts)) token = static_cast<int32_t>(dice.between(0, FakeModel::vocabulary - 1));
    proposal.tokens[place] = token;
    proposal.confidence[place] = static_cast<double>(dice.between(1, 100)) / 100;
    history.push_back(token);
  }
  if (proposal.count > 0 && dice.chance(2)) proposal.tokens[0] = FakeModel::vocabulary;
}

// Drawn last, so that the stories without drafts stay what they are.
void draw_drafter(Dice& dice, Script& script) {
  script.has_drafter = true;
  script.drafts = static_cast<uint64_t>(dice.between(0, 1 << 30));
  script.right_drafts = dice.between(0, 4) * 25;
  script.options.capacity.max_logit_rows += static_cast<int32_t>(dice.between(0, 40));
  DraftOptions& draft = script.options.draft;
  draft.choice = draft::Choice::automatic;
  draft.has_copy = draft.has_dflash2 = true;
  draft.has_mtp = dice.chance(50);
  draft.context_rows = dice.between(0, 20);
  draft.policy.kind = static_cast<draft::Policy::Kind>(dice.between(0, 2));
  draft.policy.depth = dice.chance(50) ? 0 : static_cast<int32_t>(dice.between(1, draft::most_drafts));
  for (ScriptedRequest& scripted : script.requests) {
    if (dice.chance(10)) scripted.request.drafter = draft::Choice::none;
  }
}

Script make_script(uint64_t seed) {
  Dice dice(seed);
  Script script;
  draw_sizes(dice, script);
  script.durations = seed * 1000003;
  if (dice.chance(10)) script.failing_step = dice.between(1, 60);
  const bool burst = dice.chance(40);
  Time arrival{0};
  for (int64_t i = dice.between(1, 14); i > 0; --i) {
    ScriptedRequest drawn;
    drawn.request = draw_request(dice, script);
    if (!burst) arrival += milliseconds(static_cast<double>(dice.between(0, 200)));
    drawn.arrival = arrival;
    if (dice.chance(20)) drawn.disconnect = arrival + milliseconds(static_cast<double>(dice.between(0, 400)));
    script.requests.push_back(std::move(drawn));
  }
  if (dice.chance(60)) draw_drafter(dice, script);
  return script;
}

}  // namespace tandem::engine
