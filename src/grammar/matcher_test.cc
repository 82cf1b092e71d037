// Grammars against texts: what may be written, where a text may end, and that a step back is a step back.
#include "grammar/matcher.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <thread>

#include "base/error.h"
#include "grammar/compiler.h"
#include "grammar/pattern.h"
#include "grammar/schema.h"
#include "grammar/test_vocabulary.h"

namespace tandem::grammar::matcher_test {
namespace {

class Grammars : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!is_available()) GTEST_SKIP() << "built without xgrammar";
  }

  std::shared_ptr<const Compiled> compile(Language language, const std::string& text) {
    return translator_.compile({language, text});
  }
  std::shared_ptr<const Compiled> schema(std::string_view text, bool open = false) {
    return compile(Language::json_schema, prepare_schema(text, {.open = open, .ignore_unsupported = false}).text);
  }

  // Token by token, each one first looked up in the mask.
  bool accepts(const std::shared_ptr<const Compiled>& compiled, std::string_view text) {
    Matcher matcher(compiled);
    for (const int32_t id : test_tokens(*vocabulary_, text)) {
      const bool may_come = is_set(mask_of(matcher), id);
      if (matcher.accept(id) != may_come)
        ADD_FAILURE() << "the mask and accept() disagree about token " << id << " of " << text;
      if (!may_come) return false;
    }
    return matcher.is_complete();
  }

  std::vector<uint32_t> mask_of(Matcher& matcher) {
    std::vector<uint32_t> bits(vocabulary_->words(), ~uint32_t{0});
    matcher.mask(bits);
    return bits;
  }
  static bool is_set(const std::vector<uint32_t>& bits, int32_t id) {
    return (bits[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0;
  }

  // A regular expression, and the processor time that it takes to compile: long enough to be seen at work.
  const std::pair<std::string, std::chrono::milliseconds>& slow_regex() {
    static std::pair<std::string, std::chrono::milliseconds> found;
    const auto processor_time = [] {
      timespec time{};
      clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
      return std::chrono::milliseconds(time.tv_sec * 1000 + time.tv_nsec / 1'000'000);
    };
    for (int sets = 200; found.second < std::chrono::milliseconds(200); sets *= 2) {
      found.first = "(abc|12)";
      for (int i = 0; i < sets; ++i) found.first += i % 2 == 0 ? "[a-z]" : "[0-9]";
      const auto before = processor_time();
      (void)compile(Language::regex, found.first);
      found.second = processor_time() - before;
    }
    return found;
  }

  std::shared_ptr<const Vocabulary> vocabulary_ = test_vocabulary();
  Translator translator_{*vocabulary_};
};

TEST_F(Grammars, AnObjectBySchema) {
  const auto object = schema(
      R"({"type":"object","properties":{"name":{"type":"string","minLength":1},"n":{"type":"integer"}},"required":["name"]})");
  EXPECT_TRUE(accepts(object, R"({"name": "中文ä", "n": -12})"));
  EXPECT_TRUE(accepts(object, "{\n  \"name\": \"abc\"}"));
  EXPECT_FALSE(accepts(object, R"({"n": 1})")) << "a required key is missing";
  EXPECT_FALSE(accepts(object, R"({"name": ""})"));
  EXPECT_FALSE(accepts(object, R"({"name": "abc", "n": 1.0})"));
  EXPECT_FALSE(accepts(object, R"({"name": "abc", "m": 1})"));
  EXPECT_FALSE(accepts(object, "{\"name\": \"a\nb\"}")) << "JSON escapes control characters";
  EXPECT_FALSE(accepts(object, "{\"name\": \"a\tb\"}"));
  EXPECT_FALSE(accepts(object, "{\"name\": \"abc\"" + std::string(33, ' ') + "}")) << "a loop of blanks ends";
  EXPECT_TRUE(accepts(object, "{\"name\": \"abc\"" + std::string(32, ' ') + "}"));
}

// spec/frontend.md E.7: every subset of optional keys, in the schema's order.
TEST_F(Grammars, EverySubsetOfOptionalKeys) {
  const auto object = schema(
      R"({"type":"object","properties":{"a":{"type":"null"},"b":{"type":"null"},"c":{"type":"null"},"d":{"type":"null"}},"required":["b"]})");
  for (int subset = 0; subset < 16; ++subset) {
    std::string text;
    for (int i = 0; i < 4; ++i) {
      if ((subset >> i & 1) != 0)
        text += (text.empty() ? "{\"" : ", \"") + std::string(1, static_cast<char>('a' + i)) + "\": null";
    }
    text = (text.empty() ? "{" : text) + "}";
    EXPECT_EQ(accepts(object, text), (subset & 2) != 0) << text;
  }
}

TEST_F(Grammars, AddedTokensNeverComeEvenWhereEveryTextMay) {
  Matcher matcher(compile(Language::regex, "[\\s\\S]*"));
  const auto bits = mask_of(matcher);
  for (int32_t id = 0; id < vocabulary_->size(); ++id) {
    if (id < test_added || id >= test_added + 16) continue;
    EXPECT_FALSE(vocabulary_->has_text(id)) << id;
    EXPECT_FALSE(is_set(bits, id)) << id;
    EXPECT_FALSE(matcher.accept(id)) << id;
  }
  EXPECT_TRUE(is_set(bits, 'a'));
}

TEST_F(Grammars, PartOfACharacterMayComeIfTheRestCanFollow) {
  Matcher matcher(compile(Language::regex, "(中|丰)"));
  const int32_t two_bytes = vocabulary_->find("\xE4\xB8");
  ASSERT_GE(two_bytes, 0);
  EXPECT_TRUE(matcher.accept(two_bytes));
  EXPECT_FALSE(matcher.is_complete());
  EXPECT_FALSE(matcher.accept(0xBF));
  EXPECT_TRUE(matcher.accept(0xAD));
  EXPECT_TRUE(matcher.is_complete());
}

TEST_F(Grammars, AStepBackIsAStepBack) {
  Matcher matcher(schema(R"({"enum":["abc","abd"]})"));
  const auto ids = test_tokens(*vocabulary_, "\"abc\"");
  std::vector<std::vector<uint32_t>> masks;
  for (const int32_t id : ids) {
    masks.push_back(mask_of(matcher));
    ASSERT_TRUE(matcher.accept(id));
  }
  EXPECT_TRUE(matcher.is_complete());
  for (auto step = std::ssize(ids) - 1; step >= 0; --step) {
    matcher.roll_back_to(step);
    EXPECT_EQ(mask_of(matcher), masks[static_cast<size_t>(step)]) << step;
    EXPECT_FALSE(matcher.is_complete());
  }
  EXPECT_FALSE(matcher.accept('x'));
  EXPECT_EQ(matcher.accepted(), 0);
}

TEST_F(Grammars, PatternsSearchAndLengthsCount) {
  const auto any_side = schema(R"({"pattern":"b+"})");
  EXPECT_TRUE(accepts(any_side, R"("abba")"));
  EXPECT_FALSE(accepts(any_side, R"("aa")"));
  const auto anchored = schema(R"({"pattern":"^b|c$"})");
  EXPECT_TRUE(accepts(anchored, R"("ba")"));
  EXPECT_TRUE(accepts(anchored, R"("ac")"));
  EXPECT_FALSE(accepts(anchored, R"("ab")"));
  const auto both = schema(R"({"pattern":"^[a-zä]+$","minLength":2,"maxLength":3})");
  for (const auto& [text, fits] : {std::pair(R"("a")", false), std::pair(R"("aä")", true), std::pair(R"("aäa")", true),
                                   std::pair(R"("abcd")", false)})
    EXPECT_EQ(accepts(both, text), fits) << text;
  const auto three = schema(R"({"type":"string","minLength":3,"maxLength":3})");
  EXPECT_TRUE(accepts(three, R"("中文ä")"));
  EXPECT_FALSE(accepts(three, R"("中文")"));
  EXPECT_FALSE(accepts(schema(R"({"pattern":"^[^a]$"})"), "\"\"\"")) << "a quote would end the string";
}

TEST_F(Grammars, PatternsThatWouldBeIgnoredAreRefused) {
  for (const auto* regex :
       {"(?=a)b", "(?!a)b",   "(?<=a)b", "\\bword", "(a)\\1", "\\p{L}", "(?i)a", "a**", "[]",  "(a", "a)",
        "a{3,2}", "a{20000}", "x^y",     "a$b",     "(^a)",   "\\k<n>", "[a",    "\\",  "{2}", "*a", "\\u12"}) {
    EXPECT_THROW(check_regex(regex, "regex"), Error) << regex;
  }
  for (const auto* regex :
       {"", "a|b|", "(?:a|b)+?", "(?<name>x){2,}", "[^\\d\\]]", "^a$|^b$", "\\/\\.", "ä+[ö-ü]", "\\u{1F600}"})
    EXPECT_NO_THROW(check_regex(regex, "regex")) << regex;
  EXPECT_THROW((void)string_pattern("a\"b", std::nullopt, std::nullopt, "p"), Error);
  EXPECT_THROW((void)string_pattern("a\\\\b", std::nullopt, std::nullopt, "p"), Error);
  EXPECT_THROW((void)string_pattern("^(ab)+$", 1, std::nullopt, "p"), Error);
}

// The whole text has to match; anchors at the ends say nothing (spec/frontend.md E.3).
TEST_F(Grammars, RegularExpressions) {
  const auto regex = compile(Language::regex, "^(abc|12)+[.!]?$");
  EXPECT_TRUE(accepts(regex, "abc12abc!"));
  EXPECT_FALSE(accepts(regex, "abc1"));
  EXPECT_FALSE(accepts(regex, " abc"));
}

// Found when it is compiled, so that the request is at fault and not the engine.
TEST_F(Grammars, RulesThatDeriveNoTextAreRefused) {
  for (const char* text : {"root ::= root", "root ::= x\nx ::= root \"\" | x"}) {
    try {
      (void)compile(Language::ebnf, text);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.found(), "a grammar that no text satisfies") << text;
    }
  }
  EXPECT_NE(compile(Language::ebnf, "root ::= \"\""), nullptr);
}

TEST_F(Grammars, Ebnf) {
  const auto sum = compile(Language::ebnf, "root ::= number (\"+\" number)*\nnumber ::= [0-9]+\n");
  EXPECT_TRUE(accepts(sum, "12+345+7"));
  EXPECT_FALSE(accepts(sum, "12+"));
  try {
    (void)compile(Language::ebnf, "root ::= missing");
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::usage);
    EXPECT_NE(error.found().find("missing"), std::string::npos) << error.found();
    EXPECT_EQ(error.found().find(".cc"), std::string::npos) << error.found();
  }
}

TEST_F(Grammars, FormatsAllowWhatTheyNameAlone) {
  const auto check = [&](const char* format, std::initializer_list<const char*> valid,
                         std::initializer_list<const char*> invalid) {
    const auto compiled = schema(std::string(R"({"type":"string","format":")") + format + "\"}");
    for (const auto* text : valid)
      EXPECT_TRUE(accepts(compiled, std::string("\"") + text + "\"")) << format << " " << text;
    for (const auto* text : invalid)
      EXPECT_FALSE(accepts(compiled, std::string("\"") + text + "\"")) << format << " " << text;
  };
  check("date", {"2024-02-29", "2000-02-29", "1999-12-31"},
        {"2023-02-29", "1900-02-29", "2024-04-31", "2024-13-01", "24-01-01"});
  check("time", {"23:59:59Z", "00:00:00.5+01:30"}, {"24:00:00Z", "12:00", "12:00:00"});
  check("date-time", {"2024-02-29T01:02:03Z"}, {"2024-02-29 01:02:03Z", "2024-02-30T01:02:03Z"});
  check("ipv4", {"0.0.0.0", "255.199.249.9"}, {"256.1.1.1", "1.1.1", "01.1.1.1"});
  check("ipv6", {"::", "::1", "1::", "1:2:3:4:5:6:7:8", "fe80::1:2"}, {"1:2:3:4:5:6:7", "1::2::3", "12345::", ":1"});
  check("uuid", {"123e4567-e89b-12d3-a456-426614174000"}, {"123e4567e89b12d3a456426614174000"});
  check("email", {"a.b@example.org"}, {"a@", "a..b@c", "@c"});
  check("hostname", {"a.example-x.org"}, {"-a", "a-", "a..b"});
  check("uri", {"http://a.b:80/c?d=e#f", "mailto:a@b"}, {"//a", "a b", "http//x"});
  check("duration", {"P1Y2M3D", "PT1H", "P2W"}, {"P", "1Y", "PT"});
}

TEST_F(Grammars, NumbersWithinBounds) {
  const auto check = [&](const char* keywords, std::initializer_list<const char*> valid,
                         std::initializer_list<const char*> invalid) {
    const auto compiled = schema(keywords);
    for (const auto* text : valid) EXPECT_TRUE(accepts(compiled, text)) << keywords << " " << text;
    for (const auto* text : invalid) EXPECT_FALSE(accepts(compiled, text)) << keywords << " " << text;
  };
  check(R"({"type":"integer","minimum":-3.5,"exclusiveMaximum":101})", {"-3", "0", "100"},
        {"-4", "101", "1.0", "1e1", "007"});
  check(R"({"type":"integer","multipleOf":7})", {"0", "14", "-21"}, {"15", "1"});
  check(R"({"type":"integer","multipleOf":7,"minimum":10,"maximum":30})", {"14", "28"}, {"7", "35"});
  check(R"({"type":"number","minimum":0.5,"maximum":2})", {"0.5", "1", "1.75", "2"}, {"0.4", "2.1", "-1", "3"});
  check(R"({"type":"number","exclusiveMinimum":0})", {"0.1", "7"}, {"0", "-1"});
  check(R"({"type":"number","multipleOf":2})", {"4"}, {"3"});
}

TEST_F(Grammars, TheCompilerKeepsWhatFitsAndGivesUpInTime) {
  Compiler compiler(vocabulary_,
                    {.deadline = std::chrono::milliseconds(10'000), .cache_bytes = 1, .threads = 1, .most_waiting = 4});
  const auto first = compiler.compile({Language::regex, "a+"});
  EXPECT_EQ(compiler.compile({Language::regex, "a+"}), first);
  EXPECT_NE(compiler.compile({Language::ebnf, "root ::= \"a+\""}), first);
  EXPECT_NE(compiler.compile({Language::regex, "a+"}), first) << "only one fits";
  EXPECT_EQ(compiler.counts().compiled, 3);
  EXPECT_EQ(compiler.counts().reused, 1);
  EXPECT_EQ(compiler.counts().kept, 1);
  EXPECT_THROW((void)compiler.compile({Language::ebnf, "root ::= ("}), Error);

  Compiler hasty(vocabulary_,
                 {.deadline = std::chrono::milliseconds(0), .cache_bytes = 1 << 20, .threads = 1, .most_waiting = 4});
  try {
    (void)hasty.compile({Language::regex, slow_regex().first});
    ADD_FAILURE() << "in no time";
  } catch (const Error& error) {
    EXPECT_NE(error.found().find("takes longer than 0 ms"), std::string::npos);
  }
  for (int i = 0; i < 6000 && hasty.counts().compiled == 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_NO_THROW((void)hasty.compile({Language::regex, slow_regex().first})) << "its thread went on";
}

// Two digits, whatever follows them: in a grammar, a regular expression and a pattern.
TEST_F(Grammars, HexadecimalEscapesEndAfterTwoDigits) {
  EXPECT_EQ(exact_hex_escapes(R"(\x41b \\x41b \x4 [\x61-\x63] \u0041b \)"),
            R"(\u0041b \\x41b \x4 [\u0061-\u0063] \u0041b \)");
  const auto grammar = compile(Language::ebnf, R"(root ::= "\x41b" [\x610] "\\x41")");
  EXPECT_TRUE(accepts(grammar, R"(Aba\x41)"));
  EXPECT_TRUE(accepts(grammar, R"(Ab0\x41)"));
  EXPECT_FALSE(accepts(grammar,
                       "\xD0\x9B"
                       R"(a\x41)"));
  EXPECT_TRUE(accepts(compile(Language::ebnf, R"(root ::= "a\x00b")"), std::string_view("a\0b", 3)));
  EXPECT_TRUE(accepts(compile(Language::regex, R"(\x41b[\x610])"), "Ab0"));
  EXPECT_TRUE(accepts(schema(R"({"type":"string","pattern":"^\\x41b$"})"), "\"Ab\""));
}

// Only work counts against a grammar: one that waits behind another is not too slow, nor one of a busy machine.
TEST_F(Grammars, WaitingIsNoFaultOfTheGrammar) {
  using std::chrono::milliseconds;
  const auto& [slow, work] = slow_regex();
  // One thread: the second grammar comes after more than its deadline has passed by the clock.
  Compiler patient(vocabulary_, {.deadline = work / 4, .cache_bytes = 1 << 20, .threads = 1, .most_waiting = 4});
  patient.prepare({Language::regex, slow});
  EXPECT_NO_THROW((void)patient.compile({Language::regex, "b+"}));
  EXPECT_THROW((void)Compiler(vocabulary_, {.deadline = work / 8}).compile({Language::regex, slow}), Error);

  Compiler hurried(vocabulary_, {.deadline = milliseconds(100'000), .most_wait = milliseconds(0), .threads = 1});
  hurried.prepare({Language::regex, slow});
  for (const auto& source : {slow, std::string("b+")}) {
    try {
      (void)hurried.compile({Language::regex, source});
      ADD_FAILURE() << "in no time";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::resource) << "a 503 with Retry-After, not a 400";
    }
  }
}

TEST_F(Grammars, HalfOfTheQueueIsLeftToOthers) {
  Compiler compiler(vocabulary_, {.most_wait = std::chrono::milliseconds(0), .threads = 0, .most_waiting = 4});
  for (const auto* regex : {"a", "b", "c", "d"}) compiler.prepare({Language::regex, regex});
  const auto found = [&](const char* regex) -> std::string {
    try {
      (void)compiler.compile({Language::regex, regex});
    } catch (const Error& error) {
      return error.found();
    }
    return "compiled";
  };
  EXPECT_EQ(found("c"), "waiting to be compiled after 0 ms");
  EXPECT_EQ(found("d"), "waiting to be compiled after 0 ms");
  EXPECT_EQ(found("a"), "waiting to be compiled after 0 ms");
  EXPECT_EQ(found("e"), "4 grammars waiting to be compiled");
}

TEST_F(Grammars, ManyThreadsShareOneGrammar) {
  const Compiler compiler(vocabulary_);
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      Matcher matcher(compiler.compile({Language::regex, "(abc|12)*"}));
      for (int i = 0; i < 200; ++i) wrong[t] += matcher.accept(vocabulary_->find(i % 2 == 0 ? "abc" : "12")) ? 0 : 1;
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4, 0));
  EXPECT_EQ(compiler.counts().compiled, 1);
}

}  // namespace
}  // namespace tandem::grammar::matcher_test
