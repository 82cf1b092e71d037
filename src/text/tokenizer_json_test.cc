// Bad tokenizer.json files: each is the bundled one with a single thing changed, and each error names that thing.
#include "text/tokenizer_json.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <string>

#include "base/error.h"
#include "text/test_data.h"

namespace tandem::text::tokenizer_json_test {
namespace {

using Json = nlohmann::json;

const Json& good() {
  static const Json file = read_test_json("models/nano/tokenizer.json");
  return file;
}

TokenizerFile read(const Json& file) { return read_tokenizer_json(file.dump(), "tokenizer.json"); }

// Expects bad_file with these parts in place and texts.
void expect_refused(const std::string& json, const std::string& where, const std::string& found,
                    const std::string& expected) {
  try {
    read_tokenizer_json(json, "tokenizer.json");
    ADD_FAILURE() << "accepted; expected an error at " << where;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::bad_file);
    EXPECT_EQ(error.where(), "tokenizer.json" + (where.empty() ? "" : ": " + where));
    EXPECT_NE(error.found().find(found), std::string::npos) << error.what();
    EXPECT_NE(error.expected().find(expected), std::string::npos) << error.what();
  }
}

void expect_refused(const std::function<void(Json&)>& change, const std::string& where, const std::string& found,
                    const std::string& expected) {
  Json file = good();
  change(file);
  expect_refused(file.dump(), where, found, expected);
}

TEST(TokenizerJson, ReadsTheBundledFile) {
  const TokenizerFile file = read(good());
  EXPECT_EQ(file.vocabulary.size(), 1988u);
  EXPECT_EQ(file.vocabulary[0], "!");
  EXPECT_EQ(file.merges.size(), 1732u);
  EXPECT_EQ(file.added_tokens.size(), 36u);
  EXPECT_EQ(file.added_tokens.front().id, 1988);
  EXPECT_EQ(file.added_tokens.back().content, "<|video|>");
  EXPECT_TRUE(file.added_tokens[17].special);
  EXPECT_FALSE(file.added_tokens[18].special);
  EXPECT_FALSE(file.ignore_merges);
}

TEST(TokenizerJson, BothSpellingsOfMerges) {
  Json file = good();
  for (Json& merge : file["model"]["merges"]) {
    merge = merge[0].get<std::string>() + " " + merge[1].get<std::string>();
  }
  const TokenizerFile pairs = read(good()), lines = read(file);
  ASSERT_EQ(lines.merges.size(), pairs.merges.size());
  for (std::size_t i = 0; i < lines.merges.size(); ++i) {
    EXPECT_EQ(lines.merges[i].left, pairs.merges[i].left);
    EXPECT_EQ(lines.merges[i].right, pairs.merges[i].right);
    EXPECT_EQ(lines.merges[i].result, pairs.merges[i].result);
  }
}

TEST(TokenizerJson, IgnoreMergesAndPostProcessor) {
  Json file = good();
  file["model"]["ignore_merges"] = true;
  file["post_processor"] = {{"type", "TemplateProcessing"}, {"single", "nothing that this reader understands"}};
  EXPECT_TRUE(read(file).ignore_merges);
  expect_refused([](Json& f) { f["model"]["ignore_merges"] = "yes"; }, "model.ignore_merges", "\"yes\"",
                 "true or false");
}

TEST(TokenizerJson, NotJson) {
  expect_refused("", "", "not JSON", "tokenizer.json");
  expect_refused("{\"model\": ", "", "not JSON", "tokenizer.json");
  expect_refused("{\"a\": \"\xC3\x28\"}", "", "not JSON", "tokenizer.json");
  expect_refused("[1]", "", "[1]", "an object");
  expect_refused("{}", "pre_tokenizer", "missing", "an object");
  const std::string full = good().dump();
  for (const std::size_t size : {full.size() / 3, full.size() / 2, full.size() - 1}) {
    expect_refused(full.substr(0, size), "", "not JSON", "tokenizer.json");
  }
}

TEST(TokenizerJson, NestingIsBounded) {
  expect_refused(repeated("[", 1 << 20), "", "nests deeper than 128", "tokenizer.json");
  expect_refused(repeated("{\"a\":", 1 << 18), "", "nests deeper than 128", "tokenizer.json");
  expect_refused(
      [](Json& f) {
        f["padding"] = Json::parse(repeated("[", 126) + repeated("]", 126));
        f.erase("model");
      },
      "model", "missing", "an object");  // deep, but within the bound: read on
}

TEST(TokenizerJson, ExpectedAddedTokens) {
  const auto erase = [](std::size_t index) { return [index](Json& f) { f["added_tokens"].erase(index); }; };
  expect_refused(erase(0), "added_tokens", "35 tokens without \"<|endoftext|>\"", "36 added tokens");
  expect_refused(erase(21), "added_tokens", "\"</think>\" as id 2010", "\"<think>\" as id 2009");
  expect_refused(erase(35), "added_tokens", "35 tokens", "\"<|video|>\" as id 2023");
  expect_refused([](Json& f) { f["added_tokens"][7]["content"] = "<|human|>"; }, "added_tokens",
                 "\"<|human|>\" as id 1995", "\"<|user|>\" as id 1995");
  expect_refused([](Json& f) { std::swap(f["added_tokens"][7]["id"], f["added_tokens"][8]["id"]); }, "added_tokens",
                 "\"<|assistant|>\" as id 1995", "\"<|user|>\" as id 1995");
  expect_refused([](Json& f) { f["added_tokens"] = Json::array(); }, "added_tokens", "0 tokens", "36 added tokens");
  expect_refused([](Json& f) { f.erase("added_tokens"); }, "added_tokens", "missing", "an array");
}

TEST(TokenizerJson, AbsoluteIdsAndOrderInTheFileDoNotMatter) {
  Json file = good();
  std::reverse(file["added_tokens"].begin(), file["added_tokens"].end());
  file["added_tokens"].push_back({{"id", 2024}, {"content", "<extra>"}});
  const TokenizerFile read_back = read(file);
  EXPECT_EQ(read_back.added_tokens.size(), 37u);
  EXPECT_EQ(read_back.added_tokens.back().content, "<extra>");
  EXPECT_FALSE(read_back.added_tokens.back().special);
}

TEST(TokenizerJson, AddedTokenFields) {
  const auto set = [](const char* name, const Json& value) {
    return [=](Json& f) { f["added_tokens"][3][name] = value; };
  };
  expect_refused(set("id", -1), "added_tokens[3].id", "-1", "an id");
  expect_refused(set("id", 1991.5), "added_tokens[3].id", "1991.5", "an id");
  expect_refused(set("id", 4000000000u), "added_tokens[3].id", "4000000000", "an id");
  expect_refused(set("id", "1991"), "added_tokens[3].id", "\"1991\"", "an id");
  expect_refused([](Json& f) { f["added_tokens"][0]["id"] = 2147483646; }, "added_tokens", "36 tokens",
                 "\"[MASK]\" as id 2147483647");
  expect_refused(set("content", ""), "added_tokens[3].content", "\"\"", "non-empty");
  expect_refused(set("content", 5), "added_tokens[3].content", "5", "string");
  expect_refused(set("special", "yes"), "added_tokens[3].special", "\"yes\"", "true or false");
  for (const char* name : {"lstrip", "rstrip", "single_word"}) {
    expect_refused(set(name, true), std::string("added_tokens[3].") + name, "true", "false");
  }
  expect_refused([](Json& f) { f["added_tokens"][3] = 7; }, "added_tokens[3]", "7", "an object");
  expect_refused(
      [](Json& f) {
        f["added_tokens"].push_back({{"id", 2023}, {"content", "<x>"}});
      },
      "added_tokens", "id 2023 twice", "once");
  expect_refused(
      [](Json& f) {
        f["added_tokens"].push_back({{"id", 5}, {"content", "<x>"}});
      },
      "added_tokens", R"("<x>" as id 5, which model.vocab gives to "&")", "its own");
}

TEST(TokenizerJson, Pretokenizer) {
  const auto split = [](Json& f) -> Json& { return f["pre_tokenizer"]["pretokenizers"][0]; };
  const auto bytes = [](Json& f) -> Json& { return f["pre_tokenizer"]["pretokenizers"][1]; };
  expect_refused([&](Json& f) { split(f)["pattern"]["Regex"] = "\\s+"; },
                 "pre_tokenizer.pretokenizers[0].pattern.Regex", R"("\\s+")", "p{N}{1,3}");
  expect_refused(
      [&](Json& f) {
        split(f)["pattern"] = {{"String", " "}};
      },
      "pre_tokenizer.pretokenizers[0].pattern.Regex", "missing", "p{N}{1,3}");
  expect_refused([&](Json& f) { split(f).erase("pattern"); }, "pre_tokenizer.pretokenizers[0].pattern", "missing",
                 "an object");
  expect_refused([&](Json& f) { split(f)["behavior"] = "Removed"; }, "pre_tokenizer.pretokenizers[0].behavior",
                 "Removed", "Isolated");
  expect_refused([&](Json& f) { split(f)["invert"] = true; }, "pre_tokenizer.pretokenizers[0].invert", "true", "false");
  expect_refused([&](Json& f) { bytes(f)["use_regex"] = true; }, "pre_tokenizer.pretokenizers[1].use_regex", "true",
                 "false");
  expect_refused([&](Json& f) { bytes(f)["add_prefix_space"] = true; },
                 "pre_tokenizer.pretokenizers[1].add_prefix_space", "true", "false");
  expect_refused([&](Json& f) { f["pre_tokenizer"]["pretokenizers"].erase(1); }, "pre_tokenizer.pretokenizers", "Split",
                 "a Split and a ByteLevel");
  expect_refused(
      [&](Json& f) {
        f["pre_tokenizer"] = {{"type", "Metaspace"}};
      },
      "pre_tokenizer.type", "Metaspace", "Sequence");
}

TEST(TokenizerJson, NormalizerDecoderAndModelKind) {
  expect_refused([](Json& f) { f["normalizer"] = {{"type", "NFC"}}; }, "normalizer", "NFC", "null");
  expect_refused([](Json& f) { f["decoder"]["type"] = "Metaspace"; }, "decoder.type", "Metaspace", "ByteLevel");
  expect_refused([](Json& f) { f["model"]["type"] = "Unigram"; }, "model.type", "Unigram", "BPE");
  expect_refused([](Json& f) { f["model"]["dropout"] = 0.1; }, "model.dropout", "0.1", "null");
  expect_refused([](Json& f) { f["model"]["continuing_subword_prefix"] = "##"; }, "model.continuing_subword_prefix",
                 "##", "null");
  expect_refused([](Json& f) { f["model"]["end_of_word_suffix"] = "</w>"; }, "model.end_of_word_suffix", "</w>",
                 "null");
}

TEST(TokenizerJson, Vocabulary) {
  const auto vocab = [](Json& f) -> Json& { return f["model"]["vocab"]; };
  expect_refused([&](Json& f) { f["model"].erase("vocab"); }, "model.vocab", "missing", "an object");
  expect_refused([&](Json& f) { vocab(f).erase("\u0120"); }, "model.vocab", "no token for id 220", "0 to 2023");
  expect_refused(
      [&](Json& f) {
        vocab(f)["qzq"] = vocab(f)["\u0120"];
        vocab(f).erase("\u0120");
      },
      "model.vocab", "no entry for byte 0x20", "255 more");
  expect_refused([&](Json& f) { vocab(f)["qzq"] = 5; }, "model.vocab[\"qzq\"]", "id 5, which \"&\" has too", "once");
  expect_refused([&](Json& f) { vocab(f)["qzq"] = -1; }, "model.vocab[\"qzq\"]", "-1", "an id");
  expect_refused([&](Json& f) { vocab(f)["qzq"] = 1e9; }, "model.vocab[\"qzq\"]", "1000000000", "an id");
  expect_refused([&](Json& f) { vocab(f)["qzq"] = 2000000000; }, "model.vocab", "no token for id 2024",
                 "0 to 2000000000");
  expect_refused([&](Json& f) { vocab(f)[""] = 2024; }, "model.vocab[\"\"]", "an empty spelling", "at least one");
}

TEST(TokenizerJson, Merges) {
  const auto set = [](const Json& value) { return [=](Json& f) { f["model"]["merges"][7] = value; }; };
  expect_refused([](Json& f) { f["model"].erase("merges"); }, "model.merges", "missing", "an array");
  expect_refused(set(3), "model.merges[7]", "3", "two symbols");
  expect_refused(set("ab"), "model.merges[7]", "\"ab\"", "two symbols");
  expect_refused(set("a b c"), "model.merges[7]", "\"a b c\"", "two symbols");
  expect_refused(set(Json::array({"a"})), "model.merges[7]", "[\"a\"]", "two symbols");
  expect_refused(set(Json::array({"a", 1})), "model.merges[7]", "[\"a\",1]", "two symbols");
  expect_refused(set("qqq e"), "model.merges[7]", "\"qqq e\"", "\"qqq\" in model.vocab");
  expect_refused(set("z q"), "model.merges[7]", "\"z q\"", "\"zq\" in model.vocab");
}

TEST(TokenizerJson, LoadNamesAMissingFile) {
  for (const char* path : {"/nonexistent", "/nonexistent/tokenizer.json"}) {
    try {
      Tokenizer::load(path);
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::bad_file);
      EXPECT_EQ(error.where(), path);
    }
  }
  const std::filesystem::path empty = std::filesystem::path(::testing::TempDir()) / "tandem_text_empty";
  std::filesystem::create_directories(empty);
  try {
    Tokenizer::load(empty);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.where(), (empty / "tokenizer.json").string());
    EXPECT_NE(error.found().find("does not exist"), std::string::npos);
  }
  std::filesystem::remove(empty);
}

}  // namespace
}  // namespace tandem::text::tokenizer_json_test
