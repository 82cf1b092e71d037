// A text that is being written, compared with a grammar: which tokens may come next. Behind it stands xgrammar, which
// matcher.cc alone knows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "grammar/vocabulary.h"

namespace tandem::grammar {

// What a grammar is written in. json_schema: a schema in the form that schema.h makes; regex: the whole text matches it
// (spec/frontend.md E.3); ebnf: rules `name ::= …` with the root rule `root`.
enum class Language { json_schema, regex, ebnf };

struct Source {
  Language language = Language::json_schema;
  std::string text;
  bool operator==(const Source&) const = default;
};

// False: the program was built without xgrammar, and compile() always throws.
bool is_available();

// A grammar prepared for one vocabulary. Immutable: any number of matchers and threads may share it.
class Compiled {
 public:
  struct Grammar;
  explicit Compiled(std::unique_ptr<Grammar> grammar);
  ~Compiled();
  const Grammar& grammar() const { return *grammar_; }
  size_t bytes() const;  // of memory, approximately

 private:
  std::unique_ptr<Grammar> grammar_;
};

// Prepares grammars for one vocabulary, which must outlive it. One thread at a time.
class Translator {
 public:
  explicit Translator(const Vocabulary& vocabulary);
  ~Translator();
  // Takes milliseconds to seconds. Throws Error(usage) with what is wrong with the text, Error(internal) without
  // xgrammar.
  std::shared_ptr<const Compiled> compile(const Source& source);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

class Matcher {
 public:
  explicit Matcher(const std::shared_ptr<const Compiled>& compiled);
  ~Matcher();

  // Clears the bits of tokens that may not come next; never sets one. `bits` has Vocabulary::words() words.
  void mask(std::span<uint32_t> bits);
  // The next token; false: it may not come, and nothing has changed.
  bool accept(int32_t token);
  // The same for text that was not sampled; one step for roll_back().
  bool accept_text(std::string_view text);
  int64_t accepted() const { return accepted_; }  // steps since the beginning that were not rolled back
  void roll_back_to(int64_t accepted);
  bool is_complete() const;  // the text may end here

 private:
  struct State;
  std::unique_ptr<State> state_;
  int64_t accepted_ = 0;
};

}  // namespace tandem::grammar
