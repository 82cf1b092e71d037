// What each stream gets, and the steps of the model that give it.
#include "draft/model_drafter.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace tandem::draft {
namespace {

void check(const ModelDrafterOptions& options) {
  const auto refuse = [](const char* where, int64_t found, const char* expected) {
    throw Error(ErrorCode::usage, where, fmt::format("{}", found), expected);
  };
  if (options.slots < 1) refuse("drafter: slots", options.slots, "at least 1");
  if (options.max_rows < 1) refuse("drafter: rows of a step", options.max_rows, "at least 1");
  if (options.page_rows < 1) refuse("drafter: rows of a page", options.page_rows, "at least 1");
  if (options.vocab_size < 1) refuse("drafter: vocabulary", options.vocab_size, "at least 1");
  if (options.mtp && (options.mtp_depth < 1 || options.mtp_depth > most_drafts))
    refuse("drafter: drafts of an MTP chain", options.mtp_depth, "1 to 15");
  if (options.dflash2 && (options.block_rows < 2 || options.block_rows > most_drafts + 1))
    refuse("drafter: rows of a block", options.block_rows, "2 to 16");
  if (options.policy.depth < 0 || options.policy.depth > most_drafts)
    refuse("--num-speculative-tokens", options.policy.depth, "0 to 15");
}

}  // namespace

ModelDrafter::ModelDrafter(forward::StepRunner& runner, const ModelDrafterOptions& options)
    : runner_(runner), options_(options) {
  check(options);
  const auto slots = static_cast<size_t>(options.slots);
  const auto rows = static_cast<size_t>(options.max_rows);
  slots_.resize(slots);
  if (options.copy) copies_.resize(slots, CopyIndex(options.copies));
  plans_.reserve(slots);
  asked_.reserve(slots);
  step_.tokens.reserve(rows);
  step_.positions.reserve(rows);
  step_.segments.reserve(slots);
  step_.logit_rows.reserve(slots);
  step_.samples.reserve(slots);
  step_.masked_tokens.reserve(slots * forward::RowSample::most_masked);
  step_.page_tables.reserve(slots * static_cast<size_t>(std::max<int64_t>(options.max_stream_pages, 1)));
}

int64_t ModelDrafter::planned_bytes(const ModelDrafterOptions& options) {
  const int64_t copies = options.copy ? CopyIndex::planned_bytes(options.copies) : 0;
  const auto slot =
      static_cast<int64_t>(sizeof(Slot) + sizeof(Plan) + sizeof(void*) + sizeof(forward::Segment) + sizeof(int32_t)) +
      options.max_stream_pages * int64_t{sizeof(int32_t)} + copies;
  return options.slots * slot + options.max_rows * int64_t{sizeof(int32_t) + sizeof(int64_t)};
}

ModelDrafter::Slot& ModelDrafter::slot_of(int32_t slot) {
  if (slot < 0 || slot >= options_.slots)
    throw Error(ErrorCode::internal, "drafter", fmt::format("slot {} of {}", slot, options_.slots));
  return slots_[static_cast<size_t>(slot)];
}

// Row length − 1 is absorbed again: the stream that left its state may have gone on with another token.
void ModelDrafter::start(int32_t slot, std::span<const int32_t>, int64_t length) {
  slot_of(slot) = {.length = length, .last_step = length, .absorbed = std::max<int64_t>(0, length - 1), .arms = arms_};
  if (options_.copy) copies_[static_cast<size_t>(slot)].reset();
}

void ModelDrafter::verified(int32_t slot, const Proposal& proposal, int32_t tried, int32_t accepted) {
  Slot& state = slot_of(slot);
  statistics_.add_round(proposal, state.raw, tried, accepted);
  const bool mtp = proposal.source == Source::mtp;
  if (!mtp && proposal.source != Source::dflash2) return;
  const TimingTable& table = options_.table;
  const double drafting = mtp ? table.mtp_ms + std::max(0, proposal.count - 1) * table.mtp_step_ms : table.block_ms;
  const double ms = table.verify(tried + 1) + drafting + table.overhead_ms;
  if (state.by_arms) {
    state.arms.add(proposal.source, accepted + 1, ms);
    arms_.add(proposal.source, accepted + 1, ms);
  }
  if (options_.policy.kind == Policy::Kind::joint)
    state.plain.add(accepted + 1, ms, table.verify(1) + table.overhead_ms);
}

void ModelDrafter::propose(std::span<const StreamView> streams, TokenPicker& picker) {
  if (std::ssize(streams) > options_.slots)
    throw Error(ErrorCode::internal, "drafter", fmt::format("{} streams in {} slots", streams.size(), slots_.size()));
  plans_.clear();
  for (const StreamView& view : streams) plan(view);
  if (options_.mtp) {
    absorb(picker);
    chain(picker);
  }
  if (options_.dflash2) run_blocks();
  statistics_.fade();
}

void ModelDrafter::plan(const StreamView& view) {
  Slot& slot = slot_of(view.slot);
  if (view.ran) slot.last_step = slot.length;
  slot.length = view.length;
  if (view.proposal != nullptr) view.proposal->clear();
  Plan& plan = plans_.emplace_back();
  plan.view = &view;
  plan.slot = &slot;
  if (wants_drafts(view)) {
    if (options_.copy) plan_copies(view, slot);
    if (view.proposal->count == 0) plan_model(plan);
  }
  if (options_.mtp) plan_absorb(plan);
}

// Drafts follow a pending token that is the last one known.
bool ModelDrafter::wants_drafts(const StreamView& view) const {
  return view.proposal != nullptr && view.most > 0 && view.choice != Choice::none && view.length > 0 &&
         std::ssize(view.ids) == view.length + 1;
}

void ModelDrafter::plan_copies(const StreamView& view, Slot& slot) {
  CopyIndex& index = copies_[static_cast<size_t>(view.slot)];
  index.update(view.ids);
  const int32_t depth = options_.policy.depth;
  index.propose(view.ids, view.prompt, depth > 0 ? std::min(depth, view.most) : view.most, *view.proposal);
  if (cut_invalid(*view.proposal, options_.vocab_size)) ++invalid_drafts_;
  for (int32_t draft = 0; draft < view.proposal->count; ++draft) correct(view, slot, draft);
}

Source ModelDrafter::choose_model(const StreamView& view, Slot& slot) const {
  const bool any = view.choice == Choice::automatic;
  const bool dflash2 = options_.dflash2 && (any || view.choice == Choice::dflash2);
  const bool mtp = options_.mtp && (any || view.choice == Choice::mtp);
  slot.by_arms = dflash2 && mtp;
  if (!dflash2 && !mtp) return Source::none;
  if (options_.policy.kind == Policy::Kind::joint && !slot.plain.drafts()) return Source::none;
  if (slot.by_arms) return slot.arms.next();
  return dflash2 ? Source::dflash2 : Source::mtp;
}

void ModelDrafter::plan_model(Plan& plan) {
  const StreamView& view = *plan.view;
  plan.source = choose_model(view, *plan.slot);
  if (plan.source == Source::none) return;
  const int32_t made = plan.source == Source::mtp ? options_.mtp_depth : options_.block_rows - 1;
  plan.wanted = std::min({view.most, made, most_drafts});
  if (options_.policy.depth > 0) plan.wanted = std::min(plan.wanted, options_.policy.depth);
  view.proposal->source = plan.source;
}

void ModelDrafter::plan_absorb(Plan& plan) {
  const StreamView& view = *plan.view;
  Slot& slot = *plan.slot;
  const int64_t known = std::min<int64_t>(view.length, std::ssize(view.ids) - 1);  // rows whose next token is there
  slot.absorbed = std::min(slot.absorbed, view.length);
  // A step of drafts may have run up to 16 rows past its first, most of them dropped; others end where the stream does.
  const int64_t held = std::max(view.length, slot.last_step + most_drafts + 1) - head_rows;
  if (const int64_t first = std::min(held, slot.last_step); slot.absorbed < first) {
    skipped_rows_ += first - slot.absorbed;
    slot.absorbed = first;
  }
  const bool goes_on = std::ssize(view.ids) > view.length + 1;  // its next step may be longer than a window
  const bool drafts = plan.source == Source::mtp;
  plan.absorb_from = plan.absorb_to = slot.absorbed;
  if (!drafts && !view.settle && !goes_on && view.length - slot.absorbed <= most_behind) return;
  plan.absorb_to = std::max(known, slot.absorbed);
  // Drafts again where nothing ran since: its last row once more, for its logits.
  if (drafts && plan.absorb_from == plan.absorb_to) plan.absorb_from = view.length - 1;
  slot.absorbed = plan.absorb_to;
}

void ModelDrafter::add_segment(const Plan& plan, int64_t position, int64_t rows) {
  const StreamView& view = *plan.view;
  const int64_t pages = (position + rows + options_.page_rows - 1) / options_.page_rows;
  if (pages > std::ssize(view.page_table))
    throw Error(ErrorCode::internal, "drafter", fmt::format("{} pages", view.page_table.size()),
                fmt::format("{} for {} rows", pages, position + rows));
  step_.segments.push_back({.slot = view.slot,
                            .page_table = static_cast<int32_t>(step_.page_tables.size()),
                            .pages = static_cast<int32_t>(pages),
                            .first_row = static_cast<int32_t>(step_.tokens.size()),
                            .rows = static_cast<int32_t>(rows),
                            .certain_rows = static_cast<int32_t>(rows),
                            .position = position});
  for (int64_t row = position; row < position + rows; ++row) step_.positions.push_back(row);
  step_.page_tables.insert(step_.page_tables.end(), view.page_table.begin(), view.page_table.begin() + pages);
}

// Rows of all streams in one step, or in several of max_rows.
void ModelDrafter::absorb(TokenPicker& picker) {
  step_.clear();
  asked_.clear();
  for (Plan& plan : plans_) {
    for (int64_t from = plan.absorb_from; from < plan.absorb_to;) {
      const int64_t room = options_.max_rows - std::ssize(step_.tokens);
      const int64_t rows = std::min(plan.absorb_to - from, room);
      add_segment(plan, from, rows);
      for (int64_t row = from; row < from + rows; ++row)
        step_.tokens.push_back(plan.view->ids[static_cast<size_t>(row + 1)]);
      from += rows;
      if (from == plan.absorb_to && plan.source == Source::mtp) {
        step_.logit_rows.push_back(static_cast<int32_t>(std::ssize(step_.tokens)) - 1);
        ask(plan, picker);
      }
      if (std::ssize(step_.tokens) == options_.max_rows) run_absorb(picker);
    }
  }
  if (!step_.tokens.empty()) run_absorb(picker);
}

void ModelDrafter::run_absorb(TokenPicker& picker) {
  step_.kind = forward::StepKind::mtp_absorb;
  runner_.run(step_);
  add_mtp_drafts(picker);
}

// The step's last logit row gives the plan's next draft.
void ModelDrafter::ask(Plan& plan, TokenPicker& picker) {
  const StreamView& view = *plan.view;
  asked_.push_back(&plan);
  plan.is_sampled = !view.draws && picker.add_sample(view.slot, view.length + 1 + view.proposal->count, step_);
}

// One more draft of each stream that goes on, until none does.
void ModelDrafter::chain(TokenPicker& picker) {
  for (int32_t drafts = 1; drafts < options_.mtp_depth; ++drafts) {
    for (Plan& plan : plans_) {
      if (!plan.goes_on || plan.view->proposal->count != drafts) continue;
      add_segment(plan, plan.view->length + drafts - 1, 1);
      step_.logit_rows.push_back(static_cast<int32_t>(step_.tokens.size()));
      step_.tokens.push_back(plan.view->proposal->tokens[static_cast<size_t>(drafts - 1)]);
      ask(plan, picker);
      if (std::ssize(step_.tokens) == options_.max_rows) run_chain(picker);
    }
    if (!step_.tokens.empty()) run_chain(picker);
  }
}

void ModelDrafter::run_chain(TokenPicker& picker) {
  step_.kind = forward::StepKind::mtp_chain;
  runner_.run(step_);
  add_mtp_drafts(picker);
}

// What the step gave to those who asked.
void ModelDrafter::add_mtp_drafts(TokenPicker& picker) {
  const auto width = static_cast<size_t>(options_.vocab_size);
  std::span<const float> logits = runner_.logits();
  std::span<const ops::Sampled> sampled = runner_.sampled();
  for (Plan* plan : asked_) {
    const StreamView& view = *plan->view;
    const int32_t draft = view.proposal->count;
    auto& drawn_from = view.proposal->drawn_from[static_cast<size_t>(draft)];
    drawn_from.size = 0;
    if ((plan->is_sampled && sampled.empty()) || (!plan->is_sampled && logits.size() < width))
      throw Error(ErrorCode::internal, "drafter", "fewer results of an MTP step than its rows");
    if (plan->is_sampled) {
      if (sampled.front().status == ops::sample_not_finite)
        throw Error(ErrorCode::internal, "drafter", "a logit of an MTP row that is no finite number");
      add_mtp_draft(*plan, {sampled.front().token, sampled.front().probability});
      sampled = sampled.subspan(1);
      continue;
    }
    add_mtp_draft(*plan, picker.pick(view.slot, logits.first(width), view.length + 1 + draft,
                                     view.draws ? &drawn_from : nullptr));
    logits = logits.subspan(width);
  }
  step_.clear();
  asked_.clear();
}

void ModelDrafter::add_mtp_draft(Plan& plan, const TokenPicker::Pick& pick) {
  const StreamView& view = *plan.view;
  Proposal& proposal = *view.proposal;
  const int32_t draft = proposal.count;
  plan.goes_on = false;
  if (pick.token < 0 || pick.token >= options_.vocab_size) {
    ++invalid_drafts_;
    return;
  }
  proposal.tokens[static_cast<size_t>(draft)] = pick.token;
  proposal.confidence[static_cast<size_t>(draft)] = pick.probability;
  ++proposal.count;
  correct(view, *plan.slot, draft);
  plan.reach *= proposal.confidence[static_cast<size_t>(draft)];
  plan.goes_on = proposal.count < plan.wanted && pays_on(plan, proposal.count);
}

// Whether drafts after the first `drafts` can pay (5.1): they are accepted at best as often as all before them are. One
// that does not pay by itself may with those after it.
bool ModelDrafter::pays_on(const Plan& plan, int32_t drafts) const {
  const Policy& policy = options_.policy;
  const TimingTable& table = options_.table;
  if (policy.kind == Policy::Kind::fixed) return true;
  if (policy.kind == Policy::Kind::confidence) return plan.reach >= policy.threshold;
  const double spent = table.mtp_ms + (drafts - 1) * table.mtp_step_ms + table.overhead_ms;
  double tokens = 1, reach = 1, best = tokens / (table.verify(1) + spent);
  for (int32_t i = 0; i < drafts; ++i) {
    tokens += reach *= plan.view->proposal->confidence[static_cast<size_t>(i)];
    best = std::max(best, tokens / (table.verify(i + 2) + spent));
  }
  for (int32_t more = 1; drafts + more <= plan.wanted; ++more) {
    const double ms = table.verify(drafts + 1 + more) + spent + more * table.mtp_step_ms;
    if ((tokens + more * reach) / ms > best) return true;
  }
  return false;
}

void ModelDrafter::run_blocks() {
  step_.clear();
  asked_.clear();
  for (Plan& plan : plans_) {
    if (plan.source != Source::dflash2 || plan.wanted < 1) continue;
    add_segment(plan, plan.view->length, 1);
    step_.tokens.push_back(plan.view->ids[static_cast<size_t>(plan.view->length)]);
    asked_.push_back(&plan);
    if (std::ssize(step_.tokens) == options_.max_rows) walk_blocks();
  }
  if (!step_.tokens.empty()) walk_blocks();
}

void ModelDrafter::walk_blocks() {
  step_.kind = forward::StepKind::dflash2;
  runner_.run(step_);
  const forward::DraftLattices lattices = runner_.lattices();
  const auto nodes = static_cast<size_t>(lattices.streams * lattices.rows * lattices.top_k);
  if (lattices.streams != std::ssize(asked_) || lattices.top_k < 1 || lattices.ids.size() < nodes ||
      lattices.unary.size() < nodes || lattices.edges.size() < nodes * static_cast<size_t>(lattices.top_k))
    throw Error(ErrorCode::internal, "drafter", fmt::format("lattices of {} blocks", lattices.streams),
                fmt::format("those of {}", asked_.size()));
  for (size_t i = 0; i < asked_.size(); ++i) {
    const StreamView& view = *asked_[i]->view;
    const Walk walk = {.stream = static_cast<int64_t>(i),
                       .position = view.length + 1,
                       .most = asked_[i]->wanted,
                       .temperature = view.temperature,
                       .seed = view.seed,
                       .draws = view.draws};
    if (!walk_lattice(lattices, walk, options_.walk, options_.vocab_size, *view.proposal)) ++invalid_drafts_;
    for (int32_t draft = 0; draft < view.proposal->count; ++draft) correct(view, *asked_[i]->slot, draft);
  }
  step_.clear();
  asked_.clear();
}

// The model's confidence is kept for the statistics and replaced by what they make of it.
void ModelDrafter::correct(const StreamView& view, Slot& slot, int32_t draft) {
  double& confidence = view.proposal->confidence[static_cast<size_t>(draft)];
  slot.raw[static_cast<size_t>(draft)] = confidence;
  confidence = statistics_.corrected(view.proposal->source, draft, confidence);
}

}  // namespace tandem::draft
