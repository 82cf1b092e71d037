// What the tests of this room share: test files, the bundled tokenizer, and texts made from a seed.
#pragma once

#include <fstream>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace tandem::text {

// A JSON file below the source tree; a missing one throws, so that no test passes for want of data.
inline nlohmann::json read_test_json(const std::string& path) {
  std::ifstream in(std::string(TANDEM_SOURCE_DIR) + "/" + path);
  in.exceptions(std::ios::failbit | std::ios::badbit);
  return nlohmann::json::parse(in);
}

inline const Tokenizer& nano() {
  static const Tokenizer tokenizer = Tokenizer::load(std::string(TANDEM_SOURCE_DIR) + "/models/nano");
  return tokenizer;
}

inline std::string repeated(std::string_view unit, std::size_t times) {
  std::string text;
  text.reserve(unit.size() * times);
  for (std::size_t i = 0; i < times; ++i) text += unit;
  return text;
}

// `count` parts drawn evenly from `parts`. Seeded, so that a failure repeats.
inline std::string random_text(std::mt19937& random, const std::vector<std::string>& parts, std::size_t count) {
  std::string text;
  for (std::size_t i = 0; i < count; ++i) text += parts[random() % parts.size()];
  return text;
}

}  // namespace tandem::text
