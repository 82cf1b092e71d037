// xgrammar behind our names. Its exceptions become ours here.
#include "grammar/matcher.h"

#include <algorithm>
#include <exception>
#include <utility>
#include <vector>

#include "base/error.h"
#include "grammar/pattern.h"

#ifdef TANDEM_HAS_XGRAMMAR
#include <xgrammar/xgrammar.h>

#include <optional>
#include <stdexcept>

#include "base/log.h"

// What xgrammar calls in place of writing to stderr (XGRAMMAR_LOG_CUSTOMIZE).
namespace xgrammar {
[[noreturn]] void LogFatalImpl(const std::string&, int, const std::string& message) {
  throw std::runtime_error(message);
}
void LogMessageImpl(const std::string&, int, int, const std::string& message) {
  tandem::log(tandem::LogLevel::debug, "xgrammar: {}", message);
}
}  // namespace xgrammar
#endif

namespace tandem::grammar {

#ifdef TANDEM_HAS_XGRAMMAR

namespace {

constexpr int compile_threads = 1;              // the caller's own, whose processor time the compiler's deadline counts
constexpr int most_blanks_between_tokens = 32;  // spec/frontend.md E.7: a loop of blanks ends

// "Check failed: (x) is false: the reason" to "the reason".
std::string reason_of(const std::exception& e) {
  constexpr std::string_view mark = "is false: ";
  constexpr size_t most = 300;
  std::string text = e.what();
  if (const size_t at = text.find(mark); at != std::string::npos) text.erase(0, at + mark.size());
  text.erase(0, text.find_first_not_of(" \n"));
  if (text.size() > most) text.resize(most);
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  return text;
}

xgrammar::Grammar parse(const Source& source) {
  switch (source.language) {
    case Language::json_schema:
      return xgrammar::Grammar::FromJSONSchema(source.text, true, std::nullopt, std::nullopt, false,
                                               most_blanks_between_tokens);
    case Language::regex: return xgrammar::Grammar::FromRegex(exact_hex_escapes(source.text));
    case Language::ebnf: break;
  }
  return xgrammar::Grammar::FromEBNF(exact_hex_escapes(source.text));
}

}  // namespace

bool is_available() { return true; }

struct Compiled::Grammar {
  xgrammar::CompiledGrammar compiled;
};

Compiled::Compiled(std::unique_ptr<Grammar> grammar) : grammar_(std::move(grammar)) {}
Compiled::~Compiled() = default;
size_t Compiled::bytes() const { return grammar_->compiled.MemorySizeBytes(); }

// Stop tokens are the rule's business, so the vocabulary has none.
struct Translator::State {
  explicit State(const Vocabulary& vocabulary)
      : compiler(xgrammar::TokenizerInfo(vocabulary.bytes(), xgrammar::VocabType::RAW, vocabulary.size(),
                                         std::vector<int32_t>{}),
                 compile_threads, false),
        words(vocabulary.words()) {}
  xgrammar::GrammarCompiler compiler;
  size_t words;
};

Translator::Translator(const Vocabulary& vocabulary) : state_(std::make_unique<State>(vocabulary)) {}
Translator::~Translator() = default;

std::shared_ptr<const Compiled> Translator::compile(const Source& source) {
  try {
    auto grammar =
        std::make_unique<Compiled::Grammar>(Compiled::Grammar{state_->compiler.CompileGrammar(parse(source))});
    auto compiled = std::make_shared<const Compiled>(std::move(grammar));
    // A rule that leads only to itself derives no text; found here, it is the request's fault.
    Matcher matcher(compiled);
    std::vector<uint32_t> allowed(state_->words, ~uint32_t{0});
    matcher.mask(allowed);
    const bool may_begin = std::any_of(allowed.begin(), allowed.end(), [](uint32_t word) { return word != 0; });
    if (!may_begin && !matcher.is_complete())
      throw Error(ErrorCode::usage, "grammar", "a grammar that no text satisfies", "one that a text can begin with");
    return compiled;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const Error&) {
    throw;
  } catch (const std::exception& e) {
    throw Error(ErrorCode::usage, "grammar", reason_of(e));
  }
}

struct Matcher::State {
  explicit State(const xgrammar::CompiledGrammar& compiled)
      : matcher(compiled),
        tokens(compiled.GetTokenizerInfo()),
        bits(static_cast<size_t>((tokens.GetVocabSize() + 31) / 32)) {}
  xgrammar::GrammarMatcher matcher;
  xgrammar::TokenizerInfo tokens;
  std::vector<int32_t> bits;
};

Matcher::Matcher(const std::shared_ptr<const Compiled>& compiled)
    : state_(std::make_unique<State>(compiled->grammar().compiled)) {}
Matcher::~Matcher() = default;

void Matcher::mask(std::span<uint32_t> bits) {
  std::vector<int32_t>& allowed = state_->bits;
  int64_t shape = std::ssize(allowed);
  DLTensor tensor{};
  tensor.data = allowed.data();
  tensor.device = {kDLCPU, 0};
  tensor.ndim = 1;
  tensor.dtype = xgrammar::GetBitmaskDLType();
  tensor.shape = &shape;
  if (!state_->matcher.FillNextTokenBitmask(&tensor)) return;
  for (size_t i = 0; i < bits.size(); ++i) bits[i] &= i < allowed.size() ? static_cast<uint32_t>(allowed[i]) : 0;
}

bool Matcher::accept(int32_t token) {
  // xgrammar would write a line to the log for each token without bytes.
  const std::vector<std::string>& vocabulary = state_->tokens.GetDecodedVocab();
  if (token < 0 || token >= std::ssize(vocabulary) || vocabulary[static_cast<size_t>(token)].empty()) return false;
  if (!state_->matcher.AcceptToken(token)) return false;
  ++accepted_;
  return true;
}

bool Matcher::accept_text(std::string_view text) {
  if (!state_->matcher.AcceptString(std::string(text))) return false;
  ++accepted_;
  return true;
}

void Matcher::roll_back_to(int64_t accepted) {
  if (accepted_ > accepted) state_->matcher.Rollback(static_cast<int>(accepted_ - accepted));
  accepted_ = accepted;
}

bool Matcher::is_complete() const { return state_->matcher.IsCompleted(); }

#else

namespace {

[[noreturn]] void not_here() {
  throw Error(ErrorCode::internal, "structured output", "this program was built without xgrammar");
}

}  // namespace

bool is_available() { return false; }

struct Compiled::Grammar {};
struct Translator::State {};
struct Matcher::State {};

Compiled::Compiled(std::unique_ptr<Grammar> grammar) : grammar_(std::move(grammar)) {}
Compiled::~Compiled() = default;
size_t Compiled::bytes() const { return 0; }
Translator::Translator(const Vocabulary&) {}
Translator::~Translator() = default;
std::shared_ptr<const Compiled> Translator::compile(const Source&) { not_here(); }
Matcher::Matcher(const std::shared_ptr<const Compiled>&) { not_here(); }
Matcher::~Matcher() = default;
void Matcher::mask(std::span<uint32_t>) { not_here(); }
bool Matcher::accept(int32_t) { not_here(); }
bool Matcher::accept_text(std::string_view) { not_here(); }
void Matcher::roll_back_to(int64_t) { not_here(); }
bool Matcher::is_complete() const { not_here(); }

#endif

}  // namespace tandem::grammar
