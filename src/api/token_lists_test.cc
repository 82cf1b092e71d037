// Which tokens the lists leave, step by step.
#include "api/token_lists.h"

#include "api/fakes.h"

namespace tandem::api::token_lists_test {
namespace {

std::vector<int32_t> allowed_now(TokenLists& rule, int32_t vocab_size) {
  std::vector<uint32_t> bits((static_cast<size_t>(vocab_size) + 31) / 32, ~0u);
  rule.mask(bits);
  std::vector<int32_t> ids;
  for (int32_t id = 0; id < vocab_size; ++id)
    if (bits[static_cast<size_t>(id) / 32] >> (id % 32) & 1) ids.push_back(id);
  return ids;
}

std::vector<int32_t> all_but(int32_t vocab_size, const std::vector<int32_t>& missing) {
  std::vector<int32_t> ids;
  for (int32_t id = 0; id < vocab_size; ++id)
    if (std::find(missing.begin(), missing.end(), id) == missing.end()) ids.push_back(id);
  return ids;
}

TEST(TokenLists, AllowedIds) {
  TokenLists rule({0, 31, 32, 39}, {}, 40);
  EXPECT_EQ(allowed_now(rule, 40), (std::vector<int32_t>{0, 31, 32, 39}));
  rule.accept(31);
  EXPECT_EQ(allowed_now(rule, 40), (std::vector<int32_t>{0, 31, 32, 39}));
}

TEST(TokenLists, SingleTokensAreBannedAlways) {
  TokenLists rule({}, {{5}, {33}}, 40);
  EXPECT_EQ(allowed_now(rule, 40), all_but(40, {5, 33}));
  rule.accept(1);
  EXPECT_EQ(allowed_now(rule, 40), all_but(40, {5, 33}));
}

TEST(TokenLists, SequencesLoseTheirLastTokenOnly) {
  TokenLists rule({}, {{1, 2, 3}, {2, 4}, {1, 1, 7}}, 40);
  EXPECT_EQ(allowed_now(rule, 40), all_but(40, {}));
  rule.accept(1);
  EXPECT_EQ(allowed_now(rule, 40), all_but(40, {}));
  rule.accept(2);
  EXPECT_EQ(allowed_now(rule, 40), all_but(40, {3, 4}));
  rule.accept(9);
  EXPECT_EQ(allowed_now(rule, 40), all_but(40, {}));
  for (int i = 0; i < 3; ++i) rule.accept(1);  // the sequence may begin anywhere
  EXPECT_EQ(allowed_now(rule, 40), all_but(40, {7}));
}

TEST(TokenLists, BothLists) {
  TokenLists rule({1, 2}, {{2}}, 40);
  EXPECT_EQ(allowed_now(rule, 40), std::vector<int32_t>{1});
}

TEST(TokenLists, WordsAreSpelledWithAndWithoutASpace) {
  const auto tokenizer = text::Tokenizer::load(TANDEM_SOURCE_DIR "/models/nano");
  const auto decode = [&](const std::vector<std::string>& words) {
    std::vector<std::string> texts;
    for (const auto& ids : word_tokens(tokenizer, words)) texts.push_back(tokenizer.decode(ids));
    std::sort(texts.begin(), texts.end());
    return texts;
  };
  EXPECT_EQ(decode({"fox"}), (std::vector<std::string>{" fox", "fox"}));
  EXPECT_EQ(decode({" fox", "fox"}), (std::vector<std::string>{" fox", "fox"}));  // each once
  EXPECT_EQ(decode({"  "}), (std::vector<std::string>{" ", "  "}));
  const auto think = word_tokens(tokenizer, {"<think>"});
  const std::vector<int32_t> marker{*tokenizer.added_token("<think>")};
  EXPECT_NE(std::find(think.begin(), think.end(), marker), think.end());
}

}  // namespace
}  // namespace tandem::api::token_lists_test
