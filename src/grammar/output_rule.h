// What a reply may consist of, token by token: reasoning first, then a value of a grammar, tool calls, either of them
// or free text (spec/frontend.md E.4, E.6). Rows behind drafts are looked at in the same way, and the state steps back.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "grammar/matcher.h"
#include "grammar/vocabulary.h"

namespace tandem::grammar {

// Tokens that bound reasoning and calls; −1: the tokenizer has no such token.
struct MarkerTokens {
  int32_t think_end = -1;
  int32_t call_begin = -1, call_end = -1;
  int32_t key_begin = -1, key_end = -1, value_begin = -1, value_end = -1;

  static MarkerTokens of(const text::Tokenizer& tokenizer);
  bool can_call() const {
    return call_begin >= 0 && call_end >= 0 && key_begin >= 0 && key_end >= 0 && value_begin >= 0 && value_end >= 0;
  }
};

// One argument of a tool. Without grammar and literals its value is any text.
struct CallArgument {
  std::string key;
  bool required = false;
  std::vector<std::string> literals;        // the raw texts that it may be; empty: any
  std::shared_ptr<const Compiled> grammar;  // of its raw text
};

struct CallableTool {
  std::string name;
  std::vector<CallArgument> arguments;
  bool other_keys = false;  // also arguments that are not listed, of any text
  bool constrained = true;  // false: its arguments are free (a tool that is not strict)
};

struct OutputForm {
  enum class Calls { none, allowed, required };

  bool reasoning_open = false;            // the prompt ends inside <think>
  std::shared_ptr<const Compiled> value;  // what the content has to be; null: free text, if calls are not required
  bool blanks_before_value = false;       // up to 4 blanks may precede it
  Calls calls = Calls::none;
  std::vector<CallableTool> tools;
  bool one_call = false;      // the reply ends with its first call
  std::vector<int32_t> ends;  // tokens that end the reply
};

class OutputRule : public engine::TokenRule {
 public:
  // `vocabulary` and the tokens are those of the model. Calls need every marker; the caller has checked that.
  OutputRule(std::shared_ptr<const Vocabulary> vocabulary, const MarkerTokens& markers,
             std::shared_ptr<const OutputForm> form);

  void mask(std::span<uint32_t> bits) override;
  void accept(int32_t token) override;
  bool masks() const override;
  int32_t allowed_drafts(std::span<const int32_t> drafts) override;

  // The reply goes on after this text, which the value begins with; false: no value does.
  bool begin_with(std::string_view text);
  // Nothing but an end may come next: the reply is complete without one.
  bool is_finished() const override { return finished_; }

 private:
  enum class Phase : uint8_t {
    reasoning,   // free until </think>
    start,       // the first token of the content
    value,       // inside the grammar's value
    text,        // free text, in which calls may begin
    name,        // after <tool_call>
    key_or_end,  // <arg_key> or </tool_call>
    key,         // inside <arg_key>
    before_value,
    argument,  // inside <arg_value>
    after_call,
  };
  struct State {
    Phase phase = Phase::start;
    size_t blanks = 0;                 // before the value
    std::shared_ptr<Matcher> matcher;  // of the value or the argument
    std::string written;               // of a name, key or literal
    size_t tool = 0, argument = 0;     // argument: tool's arguments.size() for one that is not listed
    std::vector<uint8_t> used;         // of the tool's arguments
  };

  bool step(State& state, int32_t token) const;
  bool step_start(State& state, int32_t token) const;
  bool step_name(State& state, int32_t token) const;
  bool step_key(State& state, int32_t token) const;
  bool step_argument(State& state, int32_t token) const;
  void mask_state(const State& state, std::span<uint32_t> bits) const;
  void mask_text(const State& state, std::span<uint32_t> bits) const;
  bool may_end(const State& state) const;
  bool is_constrained() const { return form_->value != nullptr || form_->calls == OutputForm::Calls::required; }
  bool is_end(int32_t token) const;
  State after_reasoning() const;
  void begin_call(State& state, size_t tool) const;
  void begin_argument(State& state, size_t argument) const;
  std::vector<std::string> candidates(const State& state) const;
  bool all_required_used(const State& state) const;
  bool has_keys_left(const State& state) const;
  void allow(std::span<uint32_t> bits, int32_t token) const;
  void allow_literals(const State& state, std::span<uint32_t> bits) const;
  bool can_write(const State& state, int32_t token) const;
  size_t tool_named(std::string_view name) const;
  bool has_continuation() const;

  std::shared_ptr<const Vocabulary> vocabulary_;
  MarkerTokens markers_;
  std::shared_ptr<const OutputForm> form_;
  std::vector<int32_t> ends_;  // sorted
  State state_;
  bool finished_ = false;
  mutable std::vector<uint32_t> allowed_;  // scratch of one mask
};

}  // namespace tandem::grammar
