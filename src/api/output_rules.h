// From what a request asks of its reply to rules on the engine's tokens: the form of the content, tool calls, the end
// of reasoning (spec/frontend.md C.8, E.4, E.6).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "api/output_format.h"
#include "api/served_model.h"
#include "engine/engine.h"
#include "grammar/output_rule.h"

namespace tandem::api {

// Everything that a reply's rules are made of; choices of one request share it. Empty members make no rule.
struct ReplyRules {
  std::shared_ptr<const grammar::OutputForm> form;
  std::string beginning;  // text that the form's value begins with and that is not sampled

  bool reasoning_open = false;
  std::vector<int32_t> masked_in_reasoning;
  int64_t thinking_budget = -1;
};

// How calls are asked for.
struct CallDemand {
  bool is_offered = false;   // the reply may have calls
  bool is_required = false;  // tool_choice required or named
  std::string name;          // named: this tool; else empty
  bool one_call = false;
};

struct FormRequest {
  const OutputFormat& format;
  const std::vector<std::string>& tools;  // JSON texts, as in chat::Conversation
  CallDemand calls;
  bool reasoning_open = false;
  const std::vector<int32_t>& ends;  // tokens that end the reply
  bool ignore_unsupported = false;   // --schema-unsupported warn
};

// Compiles what is needed, which may wait for seconds. Null: nothing is asked for. Throws ApiError 400 naming the field
// and the schema's keyword; 501 if this server cannot constrain replies.
std::shared_ptr<const grammar::OutputForm> make_output_form(const FormRequest& request, const ServedModel& model);

// A rule with a state of its own; null: none is needed. Throws ApiError 400 if no reply can begin with `beginning`.
std::shared_ptr<engine::TokenRule> make_reply_rule(const ReplyRules& rules, const ServedModel& model);

// Markers that must not come while reasoning is open (spec/frontend.md C.8 a): <|observation|>, <|user|>,
// <|assistant|>.
std::vector<int32_t> turn_markers(const ServedModel& model);

}  // namespace tandem::api
