// Reads prompt files of the acceptance check.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/mapped_file.h"
#include "chat/messages.h"
#include "chat/render.h"
#include "eval/acceptance.h"

namespace tandem::eval {
namespace {

using Json = nlohmann::ordered_json;  // tool definitions keep their key order

// Depth-bounded: the parser's callback sees every container before it is entered.
Json parse_line(std::string_view text, const std::string& where) {
  const auto bound = [&](int depth, Json::parse_event_t, Json&) {
    if (depth > 128) throw Error(ErrorCode::bad_file, where, "nested deeper than 128 levels");
    return true;
  };
  Json line;
  try {
    line = Json::parse(text, bound);
  } catch (const Json::exception&) {
    throw Error(ErrorCode::bad_file, where, "is not JSON", "a chat body or an object with prompt_ids");
  }
  if (!line.is_object())
    throw Error(ErrorCode::bad_file, where, "is no object", "a chat body or an object with prompt_ids");
  return line;
}

// A list of integers in [low, high]; empty where the key is missing.
std::vector<int64_t> integers(const Json& line, const char* key, int64_t low, int64_t high, const std::string& where) {
  const auto found = line.find(key);
  if (found == line.end()) return {};
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorCode::bad_file, where + "." + key, what, fmt::format("a list of integers, {} to {}", low, high));
  };
  if (!found->is_array()) refuse("is no list");
  std::vector<int64_t> values;
  for (const Json& value : *found) {
    // Above the largest int64_t a number is unsigned, and no value here is so large.
    if (!value.is_number_integer() || (value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{INT64_MAX}) ||
        value.get<int64_t>() < low || value.get<int64_t>() > high)
      refuse(fmt::format("{} at place {}", value.dump(-1, ' ', true, Json::error_handler_t::replace), values.size()));
    values.push_back(value.get<int64_t>());
  }
  return values;
}

std::vector<int32_t> ids(const Json& line, const char* key, int64_t vocab_size, const std::string& where) {
  const auto values = integers(line, key, 0, vocab_size - 1, where);
  return {values.begin(), values.end()};
}

std::vector<int64_t> taus(const Json& line, const char* key, const AcceptancePrompt& prompt, const std::string& where) {
  auto values = integers(line, key, 1, draft::most_drafts + 1, where);
  const int64_t sum = std::accumulate(values.begin(), values.end(), int64_t{0});
  if (line.contains(key) && sum != std::ssize(prompt.output) - 1)
    throw Error(ErrorCode::bad_file, where + "." + key, fmt::format("steps of {} tokens", sum),
                fmt::format("output_ids without its first: {}", std::ssize(prompt.output) - 1));
  return values;
}

AcceptancePrompt reference_line(const Json& line, int64_t vocab_size, const std::string& where) {
  AcceptancePrompt prompt;
  prompt.ids = ids(line, "prompt_ids", vocab_size, where);
  if (prompt.ids.empty()) throw Error(ErrorCode::bad_file, where + ".prompt_ids", "is empty", "the prompt's token ids");
  prompt.output = ids(line, "output_ids", vocab_size, where);
  prompt.mtp_taus = taus(line, "mtp3_tokens_per_step", prompt, where);
  prompt.dflash2_taus = taus(line, "dflash2_tokens_per_step", prompt, where);
  if (const auto skill = line.find("skill"); skill != line.end()) {
    if (!skill->is_string()) throw Error(ErrorCode::bad_file, where + ".skill", "is no string", "a string");
    prompt.name = skill->get<std::string>();
  }
  return prompt;
}

AcceptancePrompt chat_line(std::string_view body, const text::Tokenizer& tokenizer, const std::string& where) {
  AcceptancePrompt prompt;
  try {
    prompt.ids = tokenizer.encode(chat::render(chat::parse_conversation(body)).segments);
  } catch (const Error& e) {
    throw Error(ErrorCode::bad_file, where + "." + e.where(), e.found(), e.expected());
  }
  return prompt;
}

}  // namespace

std::vector<AcceptancePrompt> parse_acceptance_prompts(std::string_view jsonl, const std::string& where,
                                                       const text::Tokenizer& tokenizer, int64_t vocab_size) {
  std::vector<AcceptancePrompt> prompts;
  for (int64_t number = 1; !jsonl.empty(); ++number) {
    const size_t end = std::min(jsonl.find('\n'), jsonl.size());
    const std::string_view text = jsonl.substr(0, end);
    jsonl.remove_prefix(std::min(end + 1, jsonl.size()));
    if (text.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::string place = fmt::format("{}:{}", where, number);
    const Json line = parse_line(text, place);
    if (!line.contains("prompt_ids") && !line.contains("messages"))
      throw Error(ErrorCode::bad_file, place, "neither messages nor prompt_ids", "one of them");
    prompts.push_back(line.contains("prompt_ids") ? reference_line(line, vocab_size, place)
                                                  : chat_line(text, tokenizer, place));
    if (prompts.back().name.empty()) prompts.back().name = fmt::format("line {}", number);
  }
  if (prompts.empty()) throw Error(ErrorCode::bad_file, where, "holds no prompt", "a chat body in each line");
  return prompts;
}

std::vector<AcceptancePrompt> read_acceptance_prompts(const std::filesystem::path& path,
                                                      const text::Tokenizer& tokenizer, int64_t vocab_size) {
  return parse_acceptance_prompts(MappedFile::open(path).text(), path.string(), tokenizer, vocab_size);
}

}  // namespace tandem::eval
