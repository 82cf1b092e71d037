// fuzz-room: grammar
// Any bytes as a JSON schema: refused with an Error, or a grammar whose every mask has a token or an end, and whose
// tokens are taken as the mask says.
#include <array>
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "grammar/matcher.h"
#include "grammar/schema.h"
#include "grammar/test_vocabulary.h"

namespace {

namespace grammar = tandem::grammar;

constexpr size_t longest_compiled = 1024;  // larger grammars only take longer

void walk(grammar::Translator& translator, const grammar::Vocabulary& vocabulary, const std::string& schema,
          std::string_view choices) {
  std::shared_ptr<const grammar::Compiled> compiled;
  try {
    compiled = translator.compile({grammar::Language::json_schema, schema});
  } catch (const tandem::Error& error) {
    if (error.code() != tandem::ErrorCode::usage) abort();
    return;
  }
  grammar::Matcher matcher(compiled);
  for (size_t step = 0; step < std::min<size_t>(choices.size(), 48); ++step) {
    std::vector<uint32_t> bits(vocabulary.words(), ~uint32_t{0});
    matcher.mask(bits);
    std::vector<int32_t> allowed;
    for (int32_t id = 0; id < vocabulary.size(); ++id)
      if ((bits[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0) allowed.push_back(id);
    if (allowed.empty()) {
      if (!matcher.is_complete()) abort();
      return;
    }
    const int32_t chosen = allowed[static_cast<uint8_t>(choices[step]) % allowed.size()];
    if (!vocabulary.has_text(chosen) || !matcher.accept(chosen)) abort();
    if (step % 5 == 4) {  // a draft that was wrong
      const int64_t before = matcher.accepted() - 1;
      matcher.roll_back_to(before);
      if (!matcher.accept(chosen)) abort();
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto vocabulary = grammar::test_vocabulary();
  static grammar::Translator* translator = grammar::is_available() ? new grammar::Translator(*vocabulary) : nullptr;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  for (const grammar::SchemaOptions& options :
       {grammar::SchemaOptions{}, grammar::SchemaOptions{.open = true, .ignore_unsupported = true}}) {
    try {
      const grammar::PreparedSchema prepared = grammar::prepare_schema(text, options);
      if (translator != nullptr && prepared.text.size() <= longest_compiled)
        walk(*translator, *vocabulary, prepared.text, text);
    } catch (const tandem::Error& error) {
      if (error.code() != tandem::ErrorCode::usage) abort();
    }
  }
  return 0;
}
