// Arguments of tool calls: the model writes a string as it is and any other value as JSON (spec/frontend.md E.6), so a
// schema becomes texts, a regular expression or a grammar of JSON.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "chat/json.h"
#include "grammar/matcher.h"
#include "grammar/schema.h"

namespace tandem::grammar {

// Neither literals nor a source: any text.
struct ArgumentForm {
  std::vector<std::string> literals;  // the raw texts that it may be
  std::optional<Source> source;       // of its raw text
};

// The schema stands at the JSON pointer `place` of `document`, the schema of all arguments, into which its references
// lead. Every text of the form is a value of the schema, as chat::typed_value reads it; where strings of some form are
// allowed beside numbers and booleans, these are not written. Throws Error(usage) as prepare_schema(); what is left out
// is added to `ignored`.
ArgumentForm argument_form(const chat::JsonValue& document, const std::string& place, const SchemaOptions& options,
                           std::vector<std::string>& ignored);

// One step of a JSON pointer in a URI fragment.
std::string pointer_step(std::string_view key);

}  // namespace tandem::grammar
