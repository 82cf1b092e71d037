// Fields that ask for a form of the reply (spec/frontend.md D.2, E.1), in every spelling that clients use.
#pragma once

#include <string>
#include <string_view>

#include "api/json_body.h"
#include "chat/json.h"

namespace tandem::api {

struct OutputFormat {
  // json_schema: text is the schema's JSON; regex, grammar: the text as given, which choices become, too.
  enum class Kind { free, json_schema, regex, grammar };
  Kind kind = Kind::free;
  std::string text;
  std::string field;  // for errors: "response_format.json_schema.schema"

  bool is_free() const { return kind == Kind::free; }
};

// Any JSON object.
OutputFormat json_object_format(std::string field);
// `schema`: any JSON value; errors in it are found when it is compiled.
OutputFormat json_schema_format(const chat::JsonValue& schema, std::string field);

// response_format, structured_outputs, guided_*, json_schema, grammar, regex and ebnf of a body; `text` is the whole
// body. Throws ApiError 400 naming the field: wrong type, two forms at once, a form that is not supported.
OutputFormat read_output_format(const JsonBody& body, std::string_view text);

}  // namespace tandem::api
