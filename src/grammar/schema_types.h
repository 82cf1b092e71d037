// A node without combinations as schemas of one type each, in the words that xgrammar gets right.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "grammar/schema.h"
#include "grammar/schema_node.h"

namespace tandem::grammar {

struct SchemaContext {
  const SchemaOptions& options;
  std::vector<std::string>& ignored;
  // Any schema below the node in the same form; empty: no value satisfies it.
  std::function<std::optional<JsonValue>(const JsonValue& schema, const std::string& path)> below;

  // Throws Error(usage), or notes what is left out.
  void unsupported(const std::string& path, const std::string& found, const std::string& expected) const;
};

// None: no value satisfies the node.
std::vector<JsonValue> finish_node(const JsonValue& node, const std::string& path, const SchemaContext& context);

}  // namespace tandem::grammar
