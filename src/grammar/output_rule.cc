// The phases of a reply. step() says what a token does to a state, mask_state() which tokens step() would take; the
// test compares the two over the whole vocabulary.
#include "grammar/output_rule.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace tandem::grammar {

namespace {

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \n\t\r");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \n\t\r") - begin + 1);
}

}  // namespace

MarkerTokens MarkerTokens::of(const text::Tokenizer& tokenizer) {
  const auto id = [&](const char* text) { return tokenizer.added_token(text).value_or(-1); };
  MarkerTokens out;
  out.think_end = id("</think>");
  out.call_begin = id("<tool_call>");
  out.call_end = id("</tool_call>");
  out.key_begin = id("<arg_key>");
  out.key_end = id("</arg_key>");
  out.value_begin = id("<arg_value>");
  out.value_end = id("</arg_value>");
  return out;
}

OutputRule::OutputRule(std::shared_ptr<const Vocabulary> vocabulary, const MarkerTokens& markers,
                       std::shared_ptr<const OutputForm> form)
    : vocabulary_(std::move(vocabulary)), markers_(markers), form_(std::move(form)), ends_(form_->ends) {
  std::sort(ends_.begin(), ends_.end());
  if (form_->reasoning_open) {
    state_.phase = Phase::reasoning;
  } else {
    state_ = after_reasoning();
  }
}

OutputRule::State OutputRule::after_reasoning() const {
  State state;
  state.phase = is_constrained() ? Phase::start : Phase::text;
  if (form_->value != nullptr) state.matcher = std::make_shared<Matcher>(form_->value);
  return state;
}

bool OutputRule::begin_with(std::string_view text) {
  if (text.empty() || state_.phase != Phase::start || state_.matcher == nullptr) return text.empty();
  const size_t blanks = form_->blanks_before_value ? std::min(text.find_first_not_of(" \n\t"), text.size()) : 0;
  if (blanks == text.size()) return true;
  if (!state_.matcher->accept_text(text.substr(blanks))) return false;
  state_.phase = Phase::value;
  return true;
}

bool OutputRule::is_end(int32_t token) const { return std::binary_search(ends_.begin(), ends_.end(), token); }

bool OutputRule::may_end(const State& state) const {
  switch (state.phase) {
    case Phase::reasoning: return !is_constrained();
    case Phase::start: return state.matcher != nullptr && state.blanks == 0 && state.matcher->is_complete();
    case Phase::value: return state.matcher->is_complete();
    case Phase::text:
    case Phase::after_call: return true;
    // In free text a mention of the marker is no call yet.
    case Phase::name: return !is_constrained();
    default: return false;
  }
}

size_t OutputRule::tool_named(std::string_view name) const {
  size_t i = 0;
  while (i < form_->tools.size() && form_->tools[i].name != name) ++i;
  return i;
}

void OutputRule::begin_call(State& state, size_t tool) const {
  state.phase = Phase::key_or_end;
  state.tool = tool;
  state.written.clear();
  state.used.assign(form_->tools[tool].arguments.size(), 0);
}

void OutputRule::begin_argument(State& state, size_t argument) const {
  const CallableTool& tool = form_->tools[state.tool];
  state.argument = argument;
  state.written.clear();
  state.matcher.reset();
  if (argument == tool.arguments.size()) return;
  state.used[argument] = 1;
  if (tool.arguments[argument].grammar) state.matcher = std::make_shared<Matcher>(tool.arguments[argument].grammar);
}

bool OutputRule::all_required_used(const State& state) const {
  const CallableTool& tool = form_->tools[state.tool];
  for (size_t i = 0; i < tool.arguments.size(); ++i) {
    if (tool.arguments[i].required && state.used[i] == 0) return false;
  }
  return true;
}

bool OutputRule::has_keys_left(const State& state) const {
  return form_->tools[state.tool].other_keys || std::find(state.used.begin(), state.used.end(), 0) != state.used.end();
}

// The texts that a name, a key or an argument may be; none: any text.
std::vector<std::string> OutputRule::candidates(const State& state) const {
  std::vector<std::string> out;
  if (state.phase == Phase::name) {
    if (!is_constrained()) return out;
    for (const CallableTool& tool : form_->tools) out.push_back(tool.name);
    return out;
  }
  const CallableTool& tool = form_->tools[state.tool];
  if (state.phase == Phase::argument)
    return state.argument < tool.arguments.size() ? tool.arguments[state.argument].literals : out;
  if (tool.other_keys) return out;
  for (size_t i = 0; i < tool.arguments.size(); ++i) {
    if (state.used[i] == 0) out.push_back(tool.arguments[i].key);
  }
  return out;
}

// Whether the token goes on with what is being written.
bool OutputRule::can_write(const State& state, int32_t token) const {
  if (!vocabulary_->has_text(token)) return false;
  const auto all = candidates(state);
  if (all.empty()) return true;
  const std::string longer = state.written + std::string(vocabulary_->bytes_of(token));
  return std::any_of(all.begin(), all.end(), [&](const std::string& one) { return one.starts_with(longer); });
}

bool OutputRule::step_start(State& state, int32_t token) const {
  if (form_->calls != OutputForm::Calls::none && token == markers_.call_begin) {
    state.phase = Phase::name;
    state.matcher.reset();
    return true;
  }
  if (state.matcher != nullptr && state.matcher->accept(token)) {
    state.phase = Phase::value;
    return true;
  }
  const bool may_blank = form_->blanks_before_value || form_->value == nullptr;
  if (!may_blank || !vocabulary_->has_text(token)) return false;
  const std::string_view bytes = vocabulary_->bytes_of(token);
  if (bytes.find_first_not_of(" \n\t") != std::string_view::npos ||
      state.blanks + bytes.size() > Vocabulary::most_blanks)
    return false;
  state.blanks += bytes.size();
  return true;
}

bool OutputRule::step_name(State& state, int32_t token) const {
  const bool closes = token == markers_.key_begin || token == markers_.call_end;
  const size_t tool = tool_named(is_constrained() ? std::string_view(state.written) : trimmed(state.written));
  const bool is_known = tool < form_->tools.size() && (is_constrained() || form_->tools[tool].constrained);
  if (!closes || !is_known) {
    // In free text anything may stand behind the marker; what is no known call stays text.
    if (!is_constrained()) {
      constexpr size_t longest_head = 512;  // of a call (spec/frontend.md C.8)
      if (vocabulary_->has_text(token) && state.written.size() < longest_head) {
        state.written += vocabulary_->bytes_of(token);
      } else {
        state.phase = token == markers_.call_begin ? Phase::name : Phase::text;
        state.written.clear();
      }
      return true;
    }
    if (!can_write(state, token)) return false;
    state.written += vocabulary_->bytes_of(token);
    return true;
  }
  State next = state;
  begin_call(next, tool);
  if (!step(next, token)) return false;
  state = std::move(next);
  return true;
}

bool OutputRule::step_key(State& state, int32_t token) const {
  const CallableTool& tool = form_->tools[state.tool];
  if (token != markers_.key_end) {
    if (!can_write(state, token)) return false;
    state.written += vocabulary_->bytes_of(token);
    return true;
  }
  size_t argument = 0;
  while (argument < tool.arguments.size() && tool.arguments[argument].key != state.written) ++argument;
  const bool is_listed = argument < tool.arguments.size();
  if (is_listed ? state.used[argument] != 0 : !tool.other_keys || trimmed(state.written).empty()) return false;
  begin_argument(state, argument);
  state.phase = Phase::before_value;
  return true;
}

bool OutputRule::step_argument(State& state, int32_t token) const {
  if (token == markers_.value_end) {
    const auto all = candidates(state);
    if (state.matcher != nullptr && !state.matcher->is_complete()) return false;
    if (!all.empty() && std::find(all.begin(), all.end(), state.written) == all.end()) return false;
    state.matcher.reset();
    state.written.clear();
    state.phase = Phase::key_or_end;
    return true;
  }
  if (state.matcher != nullptr) return state.matcher->accept(token);
  if (!can_write(state, token)) return false;
  if (!candidates(state).empty()) state.written += vocabulary_->bytes_of(token);
  return true;
}

// False: the token may not come, and the state is as it was.
bool OutputRule::step(State& state, int32_t token) const {
  if (is_end(token)) return may_end(state);
  switch (state.phase) {
    case Phase::reasoning:
      if (token == markers_.think_end) state = after_reasoning();
      return true;
    case Phase::start: return step_start(state, token);
    case Phase::value: return state.matcher->accept(token);
    case Phase::text:
      if (token == markers_.call_begin && form_->calls != OutputForm::Calls::none) {
        state.phase = Phase::name;
        state.written.clear();
      }
      return true;
    case Phase::name: return step_name(state, token);
    case Phase::key_or_end:
      if (token == markers_.call_end) {
        if (!all_required_used(state)) return false;
        state.phase = is_constrained() || form_->one_call ? Phase::after_call : Phase::text;
        return true;
      }
      if (token != markers_.key_begin || !has_keys_left(state)) return false;
      state.phase = Phase::key;
      state.written.clear();
      return true;
    case Phase::key: return step_key(state, token);
    case Phase::before_value:
      if (token != markers_.value_begin) return false;
      state.phase = Phase::argument;
      return true;
    case Phase::argument: return step_argument(state, token);
    case Phase::after_call:
      if (form_->one_call || token != markers_.call_begin) return false;
      state.phase = Phase::name;
      state.written.clear();
      return true;
  }
  return false;
}

void OutputRule::accept(int32_t token) {
  if (!step(state_, token)) {
    throw Error(ErrorCode::internal, "output rule", fmt::format("token {}, which was masked", token),
                "one that may come");
  }
  finished_ = (state_.phase == Phase::after_call && form_->one_call) ||
              (state_.phase == Phase::value && state_.matcher->is_complete() && !has_continuation());
}

bool OutputRule::has_continuation() const {
  allowed_.assign(vocabulary_->text_mask().begin(), vocabulary_->text_mask().end());
  state_.matcher->mask(allowed_);
  return std::any_of(allowed_.begin(), allowed_.end(), [](uint32_t word) { return word != 0; });
}

int32_t OutputRule::allowed_drafts(std::span<const int32_t> drafts) {
  State state = state_;
  // The copy shares the matcher that the state has now; others come into being on the way.
  const std::shared_ptr<Matcher> shared = state_.matcher;
  const int64_t accepted = shared != nullptr ? shared->accepted() : 0;
  int32_t count = 0;
  for (const int32_t token : drafts) {
    if (!step(state, token)) break;
    ++count;
    if (is_end(token)) break;  // nothing follows it
  }
  if (shared != nullptr) shared->roll_back_to(accepted);
  return count;
}

}  // namespace tandem::grammar
