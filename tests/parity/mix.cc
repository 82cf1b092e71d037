// The generator.
#include "mix.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/error.h"

namespace tandem::parity {
namespace {

using Kind = PromptRecipe::Kind;

std::vector<int32_t> random_tokens(Random& random, int64_t count, int32_t vocabulary) {
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < count; ++i) tokens.push_back(static_cast<int32_t>(random.below(vocabulary)));
  return tokens;
}

// New text: any tokens, a stretch of them again and again, or what the model was trained on.
std::vector<int32_t> new_tokens(Random& random, int64_t count, const ModelFacts& facts) {
  const int64_t choice = random.below(100);
  if (choice < 30 && std::ssize(facts.text) > count) {
    const auto first = facts.text.begin() + random.below(std::ssize(facts.text) - count);
    return {first, first + count};
  }
  if (choice < 60) return random_tokens(random, count, facts.vocab_size);
  std::vector<int32_t> tokens = random_tokens(random, random.between(1, 9), facts.vocab_size);
  for (size_t i = 0; std::ssize(tokens) < count; ++i) tokens.push_back(tokens[i]);
  tokens.resize(static_cast<size_t>(count));
  return tokens;
}

// Rows and logit rows of a step: too few for any draft, for some, for all.
void size_steps(Random& random, forward::Capacity& c) {
  c.max_rows = static_cast<int32_t>(std::max<int64_t>(c.slots, random.between(1, random.chance(60) ? 70 : 160)));
  const int64_t drafts = random.chance(30) ? 0 : random.between(1, 15);
  c.max_logit_rows = c.slots + static_cast<int32_t>(c.slots * drafts + random.below(3));
}

// Of half of the mixes another than f32 and bf16; NVFP4 with scales as if calibrated, or each row's own.
void draw_cache_type(uint64_t seed, const ModelFacts& facts, std::optional<forward::CacheType> type,
                     forward::Capacity& c) {
  using model::CacheType;
  Random random(seed * 0x9E3779B97F4A7C15ULL + 2);
  const auto drawn =
      random.of(std::vector{CacheType::fp8, CacheType::fp8_row, CacheType::nvfp4, CacheType::bf16_fp8_index});
  if (random.chance(50)) c.cache_type = drawn;
  if (type) c.cache_type = *type;
  if (c.cache_type == CacheType::nvfp4 && random.chance(50))
    c.latent_scales.assign(static_cast<size_t>(facts.cached_layers), 0x1p-9f);
}

forward::Capacity make_capacity(Random& random, const ModelFacts& facts, bool nano) {
  forward::Capacity c;
  c.page_rows = facts.index_kpool << random.between(nano ? 2 : 0, 4);
  c.slots = static_cast<int32_t>(random.between(1, 8));
  c.pages = 1 + random.between(4, 8);
  if (c.page_rows < 16 || random.chance(35)) c.pages = 1 + random.between(9, 40);  // sometimes there is room
  c.kept_states = static_cast<int32_t>(random.chance(15) ? 0 : random.between(1, 12));
  size_steps(random, c);
  c.mtp_index_share = random.chance(70);
  c.mtp_zero_first_embedding = random.chance(70);
  if (random.chance(30)) c.cache_type = forward::CacheType::bf16;
  return c;
}

MixMachine make_machine(Random& random, const ModelFacts& facts, bool nano) {
  MixMachine m;
  m.capacity = make_capacity(random, facts, nano);
  m.options.max_waiting = 1000;
  m.options.prefill_slice_ms = random.chance(20) ? 0 : static_cast<double>(random.between(1, 60));
  m.options.fill_share = static_cast<double>(random.between(1, 10)) / 10;
  m.options.keep.smallest_stride = random.chance(20) ? 0 : int64_t{1} << random.between(1, 6);
  m.options.keep.largest_stride = std::max<int64_t>(m.options.keep.smallest_stride, int64_t{1} << random.between(3, 7));
  m.options.keep.stride_divisor = int64_t{1} << random.between(0, 3);
  m.options.keep.shortest_fork = random.between(1, 12);
  m.step_ms_a_row = random.between(1, 9);
  m.through_bytes = random.chance(50);
  return m;
}

// Room for every draft of every stream, whatever else is kept.
void make_roomy(Random& random, MixMachine& m) {
  forward::Capacity& c = m.capacity;
  c.page_rows = std::max(c.page_rows, 16);
  c.slots = static_cast<int32_t>(random.between(1, 4));
  c.kept_states = static_cast<int32_t>(random.below(7));
  c.max_rows = c.slots * 2 * (1 + draft::most_drafts) + static_cast<int32_t>(random.below(60));
  c.max_logit_rows = c.slots * (2 + draft::most_drafts);
  m.longest_stream = 320;
  const int64_t entries = m.longest_stream / c.page_rows + 2;
  c.pages = 1 + entries * (c.slots + c.kept_states) + 2 * c.slots;
}

void make_penalties(Random& random, int32_t vocabulary, engine::SamplingParams& p) {
  if (random.chance(15)) p.repetition_penalty = static_cast<double>(random.between(7, 20)) / 10;
  if (random.chance(15)) p.presence_penalty = static_cast<double>(random.between(-20, 20)) / 10;
  if (random.chance(15)) p.frequency_penalty = static_cast<double>(random.between(-10, 20)) / 10;
  if (!random.chance(25)) return;
  // Favoured tokens come again and again, and copies with them.
  const auto bias = static_cast<float>(random.between(1, 12));
  for (int64_t i = random.between(1, 6); i > 0; --i)
    p.logit_bias.emplace_back(static_cast<int32_t>(random.below(vocabulary)), random.chance(80) ? bias : -bias);
}

engine::SamplingParams make_sampling(Random& random, int32_t vocabulary) {
  engine::SamplingParams p;
  p.seed = random.bits();
  p.temperature = random.chance(40) ? 0.0 : static_cast<double>(random.between(3, 15)) / 10;
  if (random.chance(30)) p.top_k = static_cast<int32_t>(random.between(1, 60));
  if (random.chance(50)) p.top_p = static_cast<double>(random.between(30, 99)) / 100;
  if (random.chance(20)) p.min_p = static_cast<double>(random.between(1, 30)) / 100;
  make_penalties(random, vocabulary, p);
  return p;
}

PromptRecipe make_prompt(Random& random, int32_t index, const ModelFacts& facts, const std::vector<int32_t>& common,
                         int64_t longest) {
  PromptRecipe p;
  p.source = index > 0 ? static_cast<int32_t>(random.below(index)) : -1;
  const int64_t choice = index == 0 ? 0 : random.below(100);
  p.kind = choice < 30   ? Kind::fresh
           : choice < 45 ? Kind::repeat
           : choice < 70 ? Kind::extend
           : choice < 88 ? Kind::fork
                         : Kind::edit;
  p.cut = random.below(1 << 20);
  if (p.kind == Kind::fresh && random.chance(60)) p.tokens = common;
  const int64_t fresh = p.kind == Kind::fresh ? random.between(1, longest) : random.between(1, 12);
  const auto tokens = new_tokens(random, fresh, facts);
  p.tokens.insert(p.tokens.end(), tokens.begin(), tokens.end());
  return p;
}

MixRequest make_request(Random& random, int32_t index, const ModelFacts& facts, const std::vector<int32_t>& common,
                        const MixMachine& machine, const MixDrafting& drafting) {
  MixRequest r;
  const int64_t pool = (machine.capacity.pages - 1) * machine.capacity.page_rows;
  r.prompt = make_prompt(random, index, facts, common, std::clamp<int64_t>(pool / 3, 8, 90));
  r.request.id = fmt::format("r{}", index);
  r.request.sampling = make_sampling(random, facts.vocab_size);
  const int64_t length = random.below(100);
  r.request.max_tokens = length < 35   ? random.between(1, 12)
                         : length < 70 ? random.between(1, 70)
                                       : random.between(40, 140);
  if (random.chance(25)) r.request.min_tokens = random.between(1, r.request.max_tokens);
  const int64_t stops = random.below(r.request.min_tokens > 0 ? 60 : 6);  // many are masked until then
  r.request.stop_token_ids = random_tokens(random, stops, facts.vocab_size);
  if (random.chance(20)) r.request.cache_salt.push_back(random.chance(50) ? 'a' : 'b');
  for (int64_t i = random.below(3); i > 0; --i) r.request.keep_positions.push_back(random.between(1, 60));
  if (random.chance(5)) r.request.needs_every_prompt_row = true;
  r.request.drafter = draw_choice(random, drafting);
  if (random.chance(25)) r.request.logprobs = static_cast<int32_t>(random.below(engine::most_logprobs + 1));
  if (random.chance(10)) r.ends_modulus = static_cast<int32_t>(random.between(5, 60));
  if (random.chance(15)) {
    r.rule_modulus = static_cast<int32_t>(random.between(2, 9));
    r.rule_looks_ahead = random.chance(70);
  }
  r.arrival = random.chance(30) ? random.below(4) : random.below(250);
  if (drafting.is_on() && random.chance(40)) r.arrival /= 8;  // fewer steps, closer together
  if (random.chance(12)) r.cancel_at = r.arrival + random.below(40);
  if (random.chance(8)) r.cancel_after_tokens = random.between(1, 6);
  return r;
}

// Forbids tokens by the one before them.
class ResidueRule : public engine::TokenRule {
 public:
  ResidueRule(int32_t modulus, bool looks_ahead, int32_t vocabulary)
      : modulus_(modulus), looks_ahead_(looks_ahead), vocabulary_(vocabulary) {}
  void mask(std::span<uint32_t> bits) override {
    for (int32_t id = 0; id < vocabulary_; ++id) {
      if (!allows(last_, id)) bits[static_cast<size_t>(id / 32)] &= ~(1U << (id % 32));
    }
  }
  void accept(int32_t token) override {
    if (!allows(last_, token)) throw Error(ErrorCode::failed_check, "rule", fmt::format("token {}", token));
    last_ = token;
  }
  int32_t allowed_drafts(std::span<const int32_t> drafts) override {
    if (!looks_ahead_) return TokenRule::allowed_drafts(drafts);
    int32_t last = last_, allowed = 0;
    for (const int32_t draft : drafts) {
      if (!allows(last, draft)) break;
      last = draft;
      ++allowed;
    }
    return allowed;
  }

 private:
  bool allows(int32_t last, int32_t token) const { return (last + token) % modulus_ != 0; }

  int32_t modulus_;
  bool looks_ahead_;
  int32_t vocabulary_, last_ = 1;
};

}  // namespace

std::shared_ptr<engine::TokenRule> make_rule(const MixRequest& request, int32_t vocab_size) {
  if (request.rule_modulus == 0) return nullptr;
  return std::make_shared<ResidueRule>(request.rule_modulus, request.rule_looks_ahead, vocab_size);
}

std::string model_of_mix(uint64_t seed) {
  return seed % 10 == 9 || seed % 20 == 7 ? "nano" : seed % 10 == 4 ? "tinyB" : "tinyA";
}

Mix make_mix(uint64_t seed, const std::string& model, const ModelFacts& facts, const MixSetting& setting) {
  Random random(seed * 0x9E3779B97F4A7C15ULL + 1);
  Mix mix;
  mix.seed = seed;
  mix.model = model;
  mix.machine = make_machine(random, facts, model == "nano");
  draw_cache_type(seed, facts, setting.cache_type, mix.machine.capacity);
  mix.machine.capacity.compute = setting.compute;
  mix.drafting = draw_drafting(random, facts.has_mtp);
  if (mix.drafting.roomy) make_roomy(random, mix.machine);
  const std::vector<int32_t> common = random_tokens(random, random.between(3, 40), facts.vocab_size);
  const int64_t count = random.between(3, model == "tinyA" ? 14 : 9);
  for (int32_t i = 0; i < count; ++i)
    mix.requests.push_back(make_request(random, i, facts, common, mix.machine, mix.drafting));
  return mix;
}

std::vector<int32_t> resolve_prompt(const Mix& mix, size_t i, const std::vector<std::vector<int32_t>>& prompts,
                                    const std::vector<std::vector<int32_t>>& replies) {
  const PromptRecipe& p = mix.requests[i].prompt;
  if (p.kind == Kind::fresh || p.source < 0) return p.tokens;
  const auto source = static_cast<size_t>(p.source);
  std::vector<int32_t> ids = prompts[source];
  if (p.kind == Kind::edit) {
    ids[static_cast<size_t>(p.cut) % ids.size()] = p.tokens.front();
    return ids;
  }
  if (p.kind == Kind::repeat) return ids;
  ids.insert(ids.end(), replies[source].begin(), replies[source].end());
  if (p.kind == Kind::fork) ids.resize(1 + static_cast<size_t>(p.cut) % ids.size());
  ids.insert(ids.end(), p.tokens.begin(), p.tokens.end());
  return ids;
}

}  // namespace tandem::parity
