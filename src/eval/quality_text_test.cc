// Texts, windows and their checksum.
#include "eval/quality_text.h"

#include "base/error.h"
#include "text/tokenizer.h"

namespace tandem::eval::quality_text_test {
namespace {

const text::Tokenizer& nano() {
  static const auto tokenizer = text::Tokenizer::load(std::string(TANDEM_SOURCE_DIR) + "/models/nano");
  return tokenizer;
}

template <typename Call>
std::string refusal(const Call& call) {
  try {
    call();
  } catch (const Error& e) {
    return e.what();
  }
  return "nothing was refused";
}

void expect_refused(const std::string& message, std::initializer_list<const char*> words) {
  for (const char* word : words) EXPECT_NE(message.find(word), std::string::npos) << message << " should name " << word;
}

Windows windows_of(const std::string& text, int64_t size) {
  return cut_windows(std::vector<EvalText>{{"a.txt", text}}, nano(), 2048, size);
}

TEST(QualityText, LinesOfJsonOrOneText) {
  const auto lines = parse_eval_texts("{\"text\": \"one\"}\n\n \r\n{\"text\": \"t\\u00e9o\", \"n\": 3}", "a.jsonl");
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0].name, "a.jsonl:1");
  EXPECT_EQ(lines[0].text, "one");
  EXPECT_EQ(lines[1].name, "a.jsonl:4");
  EXPECT_EQ(lines[1].text, "t\xC3\xA9o");
  EXPECT_EQ(parse_eval_texts("{\"text\": \"one\"}\n{\"text\": \"two\"}\n", "standard input").size(), 2u);
  for (const char* plain : {"{ a text }\n{ more }", "{\"a\": 1}\n", "", "one\ntwo\n", "{\"text\": 3}"}) {
    const auto whole = parse_eval_texts(plain, "a.txt");
    ASSERT_EQ(whole.size(), 1u) << plain;
    EXPECT_EQ(whole[0].text, plain);
    EXPECT_EQ(whole[0].name, "a.txt");
  }
}

TEST(QualityText, BadLines) {
  const auto message = [](const std::string& bytes) { return refusal([&] { parse_eval_texts(bytes, "a.jsonl"); }); };
  expect_refused(message("{\"text\": \"one\"}\n[]\n"), {"a.jsonl:2"});
  expect_refused(message("{\"text\": \"one\"}\nnone\n"), {"a.jsonl:2"});
  expect_refused(message("{\"text\": 5}\n"), {"a.jsonl:1", "text", "5"});
  expect_refused(message("{\"words\": \"one\"}\n"), {"a.jsonl:1", "text"});
  expect_refused(message("{\"text\": \"\xC3\"}\n"), {"a.jsonl:1"});
  expect_refused(message("{\"text\": " + std::string(200, '[')), {"a.jsonl:1"});
  expect_refused(message("\n \n"), {"a.jsonl", "no text"});
  expect_refused(message(""), {"a.jsonl", "no text"});
}

TEST(QualityText, WindowsSideBySide) {
  const std::string text = "<|user|>The code of the white cottage is 87bd8b.";
  const auto ids = nano().encode(text, text::AddedTokens::recognise);
  ASSERT_EQ(ids[0], nano().added_token("<|user|>").value());  // special tokens are recognised
  const int64_t n = std::ssize(ids);
  for (int64_t size = 2; size <= n + 1; ++size) {
    const Windows windows = windows_of(text, size);
    std::vector<int32_t> joined;
    for (const Window& window : windows.windows) {
      EXPECT_EQ(window.first_token, std::ssize(joined));
      EXPECT_LE(std::ssize(window.ids), size);
      EXPECT_GE(window.positions(), 1);
      joined.insert(joined.end(), window.ids.begin(), window.ids.end());
    }
    // A last token alone predicts nothing and is left out; a rest of two or more is kept.
    EXPECT_EQ(std::ssize(joined), n % size == 1 ? n - 1 : n) << size;
    EXPECT_TRUE(std::equal(joined.begin(), joined.end(), ids.begin()));
    EXPECT_EQ(windows.tokens(), std::ssize(joined));
    EXPECT_EQ(windows.positions(), std::ssize(joined) - std::ssize(windows.windows));
  }
}

TEST(QualityText, TextsDoNotShareWindows) {
  const std::vector<EvalText> texts = {{"a", "one two three"}, {"b", "four five six"}};
  const Windows windows = cut_windows(texts, nano(), 2048, 2048);
  ASSERT_EQ(windows.windows.size(), 2u);
  EXPECT_EQ(windows.windows[0].ids, nano().encode("one two three", text::AddedTokens::recognise));
  EXPECT_EQ(windows.windows[1].ids, nano().encode("four five six", text::AddedTokens::recognise));
  EXPECT_EQ(windows.windows[1].text, 1u);
  EXPECT_EQ(windows.texts, (std::vector<std::string>{"a", "b"}));
}

TEST(QualityText, TokenHash) {
  // sha256sum of the ids as four bytes each, lowest first.
  const Windows windows = windows_of("0123", 2048);
  std::string bytes;
  for (const int32_t id : windows.windows.at(0).ids) bytes += std::to_string(id) + " ";
  EXPECT_EQ(bytes, "15 16 17 18 ");
  EXPECT_EQ(hex(windows.token_hash), "b5d565c4d932edf37e8039156fb4f9391d01a5ea20fcd322db107b5fb01af5f3");
  // Where the cuts are makes no difference, another text does.
  EXPECT_EQ(windows_of("0123", 2).token_hash, windows.token_hash);
  EXPECT_NE(windows_of("0124", 2048).token_hash, windows.token_hash);
}

TEST(QualityText, TooShort) {
  expect_refused(refusal([] { windows_of("", 16); }), {"a.txt", "too short", "0 tokens"});
  expect_refused(refusal([] { windows_of("<|user|>", 16); }), {"a.txt", "too short", "1 token;"});
  const std::vector<EvalText> texts = {{"a.jsonl:1", "one two"}, {"a.jsonl:2", ""}};
  expect_refused(refusal([&] { cut_windows(texts, nano(), 2048, 16); }), {"a.jsonl:2", "too short"});
  expect_refused(refusal([] { windows_of("one two", 1); }), {"--window", "1", "at least 2"});
  expect_refused(refusal([] { windows_of("caf\xE9 bar", 16); }), {"a.txt", "UTF-8", "byte 3"});
  expect_refused(refusal([] {
                   cut_windows(std::vector<EvalText>{{"a.txt", "one two"}}, nano(), 100, 16);
                 }),
                 {"a.txt", "vocab_size 100"});
}

}  // namespace
}  // namespace tandem::eval::quality_text_test
