// What structured output costs over a vocabulary of the real model's size (154,880 byte-level tokens, generated): the
// time to compile a grammar and the time of one row's mask while a reply is written, token by token.
//   grammar [--json]
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <unordered_set>
#include <vector>

#include "base/error.h"
#include "grammar/compiler.h"
#include "grammar/schema.h"

namespace tandem {
namespace {

using Clock = std::chrono::steady_clock;
using grammar::Language;
using Json = nlohmann::ordered_json;

constexpr size_t vocabulary_size = 154'880;
constexpr double mask_target_us = 100;  // a row of a grammar that has been compiled

double milliseconds(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

// As the pre-tokeniser's pieces let byte-pair merges be (spec/frontend.md B.2): every byte, runs of blanks, numbers of
// up to 3 digits, runs of signs (1,500, a third of them with a quote), words of letters after a blank, a sign or
// nothing. Of Chinese words a few end in the middle of a character.
std::vector<std::string> tokens() {
  std::vector<std::string> list;
  std::unordered_set<std::string> known;
  const auto add = [&](const std::string& token) {
    if (list.size() < vocabulary_size && known.insert(token).second) list.push_back(token);
  };
  for (int byte = 0; byte < 256; ++byte) add(std::string(1, static_cast<char>(byte)));
  for (size_t count = 1; count <= 64; ++count) {
    add(std::string(count, ' '));
    add(fmt::format("\n{}", std::string(count, ' ')));
    add(std::string(count, '\n'));
  }
  for (const char* text :
       {"{\"",    "\"}",   "\":", "\": ", "\",",  "\", \"", "},",   "}]",    "[\"",    "\"]",   "[]",   "{}",  "\":\"",
        "\": \"", "\",\"", "\\n", "\\\"", "true", "false",  "null", " true", " false", " null", "\"\n", "}\n", "},\n"})
    add(text);
  for (int number = 0; number < 1000; ++number) add(fmt::format("{}", number));
  std::mt19937 generator(5);
  const auto random = [&generator] { return static_cast<uint32_t>(generator()); };
  const std::vector<std::string> syllables = {"a",  "e",  "in", "er", "st", "on", "re", "th", "ing", "al",
                                              "or", "an", "co", "de", "Ma", "S",  "ti", "ou", "el",  "is"};
  const std::string_view signs = "\"'.,:;()[]{}<>/\\_-=+*&#@!?$%|~`^";
  for (int i = 0; i < 1500; ++i) {
    std::string run = random() % 3 == 0 ? " " : "";
    const size_t size = 2 + random() % 3;
    for (size_t k = 0; k < size; ++k) run += signs[random() % 8 == 0 ? 0 : random() % signs.size()];
    if (random() % 5 == 0) run += '\n';
    add(run);
  }
  while (list.size() < vocabulary_size) {
    const uint32_t before = random() % 100;
    std::string word = before < 55 ? " " : before < 58 ? std::string(1, signs[random() % signs.size()]) : "";
    const uint32_t kind = random() % 100;
    if (kind < 30) {  // Chinese
      const size_t characters = 1 + random() % 3;
      for (size_t i = 0; i < characters; ++i) {
        const uint32_t code = 0x4E00 + random() % 0x5000;
        word += static_cast<char>(0xE0 | code >> 12);
        word += static_cast<char>(0x80 | (code >> 6 & 63));
        word += static_cast<char>(0x80 | (code & 63));
      }
      if (kind < 2) word.pop_back();
    } else {
      const size_t parts = 1 + random() % 4;
      for (size_t i = 0; i < parts; ++i) word += syllables[random() % syllables.size()];
    }
    add(word);
  }
  return list;
}

struct Case {
  const char* name;
  Language language;
  std::string source, reply;
};

std::vector<Case> cases() {
  std::string wide = R"({"type":"object","properties":{)", reply = "{";
  std::string required;
  for (int i = 0; i < 60; ++i) {
    wide += fmt::format(R"({}"field_{}":{{"type":"string"}})", i == 0 ? "" : ",", i);
    required += fmt::format(R"({}"field_{}")", i == 0 ? "" : ",", i);
    reply += fmt::format(R"({}"field_{}": "a thing {}")", i == 0 ? "" : ", ", i, i);
  }
  wide += "},\"required\":[" + required + "]}";
  reply += "}";
  return {
      {"any object", Language::json_schema, R"({"type":"object"})",
       R"({"name": "in the station", "list": [1, 2.5, true, {"x": "中文"}], "text": "a longer text with\nlines and \"quotes\""})"},
      {"typical schema", Language::json_schema,
       R"({"type":"object","properties":{"city":{"type":"string"},"kind":{"enum":["rain","sun","snow"]},"days":{"type":"integer","minimum":0,"maximum":31},)"
       R"("tags":{"type":"array","items":{"type":"string","maxLength":20},"maxItems":5},"at":{"type":"string","format":"date-time"}},"required":["city","kind","days","tags","at"]})",
       R"({"city": "Copenhagen on sea", "kind": "rain", "days": 12, "tags": ["cold", "north"], "at": "2024-02-29T01:02:03Z"})"},
      {"60 keys", Language::json_schema, wide, reply},
      {"recursive", Language::json_schema,
       R"({"type":"object","properties":{"v":{"type":"number"},"kids":{"type":"array","items":{"$ref":"#"}}},"required":["v"]})",
       R"({"v": 1.5, "kids": [{"v": 2, "kids": [{"v": -3e2}]}, {"v": 4}]})"},
      {"regular expression", Language::regex, "([A-Z][a-z]+ )*[0-9]{2,4}-[a-f]{2}", "Station Master 123-ab"}};
}

std::vector<int32_t> tokenised(const grammar::Vocabulary& vocabulary, std::string_view text) {
  std::vector<int32_t> ids;
  while (!text.empty()) {
    size_t size = std::min<size_t>(text.size(), 24);
    while (vocabulary.find(text.substr(0, size)) < 0) --size;
    ids.push_back(vocabulary.find(text.substr(0, size)));
    text.remove_prefix(size);
  }
  return ids;
}

int run(bool as_json) {
  if (!grammar::is_available()) {
    fmt::print("grammar: built without xgrammar, nothing to measure\n");
    return 0;
  }
  const grammar::Vocabulary vocabulary(tokens());
  auto begin = Clock::now();
  grammar::Translator translator(vocabulary);
  const double sort_ms = milliseconds(begin);
  Json out = {{"schema", "tandem.bench.grammar/1"},
              {"tokens", vocabulary.size()},
              {"prepare_vocabulary_ms", sort_ms},
              {"cases", Json::array()}};
  if (!as_json)
    fmt::print("{} tokens, sorted in {:.0f} ms\n{:<20} {:>12} {:>10} {:>7} {:>10} {:>10} {:>10}\n", vocabulary.size(),
               sort_ms, "grammar", "compile ms", "memory KB", "rows", "median us", "p99 us", "max us");
  bool is_within = true;
  for (const Case& one : cases()) {
    begin = Clock::now();
    const std::string text =
        one.language == Language::json_schema ? grammar::prepare_schema(one.source, {}).text : one.source;
    const auto compiled = translator.compile({one.language, text});
    const double compile_ms = milliseconds(begin);
    std::vector<double> rows;
    std::vector<uint32_t> bits(vocabulary.words());
    for (int round = 0; round < 20; ++round) {
      grammar::Matcher matcher(compiled);
      for (const int32_t id : tokenised(vocabulary, one.reply)) {
        std::fill(bits.begin(), bits.end(), ~uint32_t{0});
        begin = Clock::now();
        matcher.mask(bits);
        rows.push_back(milliseconds(begin) * 1000);
        if (!matcher.accept(id))
          throw Error(ErrorCode::internal, one.name, fmt::format("'{}' refused", vocabulary.bytes_of(id)),
                      "the reply of the benchmark");
      }
    }
    std::sort(rows.begin(), rows.end());
    const double middle = rows[rows.size() / 2], late = rows[rows.size() * 99 / 100];
    is_within = is_within && middle <= mask_target_us;
    out["cases"].push_back({{"grammar", one.name},
                            {"compile_ms", compile_ms},
                            {"bytes", compiled->bytes()},
                            {"rows", rows.size()},
                            {"median_us", middle},
                            {"p99_us", late},
                            {"max_us", rows.back()}});
    if (!as_json)
      fmt::print("{:<20} {:>12.1f} {:>10} {:>7} {:>10.1f} {:>10.1f} {:>10.1f}\n", one.name, compile_ms,
                 compiled->bytes() >> 10, rows.size(), middle, late, rows.back());
  }
  out["within_target"] = is_within;
  if (as_json) {
    fmt::print("{}\n", out.dump(2));
  } else {
    fmt::print("target: a median of at most {} us a row: {}\n", mask_target_us, is_within ? "met" : "missed");
  }
  return 0;
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) {
  try {
    return tandem::run(argc > 1 && std::strcmp(argv[1], "--json") == 0);
  } catch (const std::exception& e) {
    fmt::print(stderr, "grammar: {}\n", e.what());
    return 1;
  }
}
