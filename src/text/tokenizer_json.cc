// tokenizer.json to TokenizerFile. Each function reads one part of the file and names it in its errors.
#include "text/tokenizer_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "text/byte_level.h"
#include "text/pretokenizer.h"
#include "text/utf8.h"

namespace tandem::text {
namespace {

using Json = nlohmann::json;

constexpr int kMaxNesting = 128;

// Where in the file a value stands, for messages: "tokenizer.json: model.merges[7]".
struct Place {
  std::string file, field;

  Place member(std::string_view name) const {
    return {file, field.empty() ? std::string(name) : fmt::format("{}.{}", field, name)};
  }
  Place element(std::size_t index) const { return {file, fmt::format("{}[{}]", field, index)}; }
  [[noreturn]] void refuse(const std::string& found, const std::string& expected) const {
    throw Error(ErrorCode::bad_file, field.empty() ? file : fmt::format("{}: {}", file, field), found, expected);
  }
};

// A value as it stands in the file, cut where it would make a message unreadable.
std::string shown(const Json& value) {
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > 240) text = text.substr(0, 240) + "...";
  return text;
}

Json parse(std::string_view text, const Place& root) {
  const auto bounded = [&](int depth, Json::parse_event_t, const Json&) {
    if (depth > kMaxNesting) root.refuse(fmt::format("nests deeper than {} levels", kMaxNesting), "a tokenizer.json");
    return true;
  };
  // The parser takes a NUL for the end of the text.
  if (text.find('\0') != std::string_view::npos) root.refuse("not JSON: a NUL byte", "a tokenizer.json");
  try {
    return Json::parse(text, bounded);
  } catch (const Json::exception& error) {
    root.refuse(fmt::format("not JSON: {}", error.what()), "a tokenizer.json");
  }
}

// Member `name`, or null where it is absent: the format leaves fields out when they have their default.
const Json& optional_member(const Json& object, const char* name) {
  static const Json null;
  const auto found = object.find(name);
  return found == object.end() ? null : *found;
}

const Json& object_member(const Json& object, const char* name, const Place& parent) {
  const Json& value = optional_member(object, name);
  if (!value.is_object()) parent.member(name).refuse(value.is_null() ? "missing" : shown(value), "an object");
  return value;
}

void require_value(const Json& object, const char* name, const Json& expected, const Place& parent) {
  const Json& value = optional_member(object, name);
  if (value != expected) parent.member(name).refuse(value.is_null() ? "missing" : shown(value), shown(expected));
}

bool is_empty_string(const Json& value) {
  const auto* text = value.get_ptr<const std::string*>();
  return text != nullptr && text->empty();
}

// A switch that is absent, null or false is off.
bool flag(const Json& object, const char* name, const Place& parent) {
  const Json& value = optional_member(object, name);
  if (value.is_null()) return false;
  if (!value.is_boolean()) parent.member(name).refuse(shown(value), "true or false");
  return value.get<bool>();
}

// `place` is a function: there are many ids, and their places are only needed for a message.
template <typename PlaceFunction>
int32_t read_id(const Json& value, const PlaceFunction& place) {
  const bool fits = value.is_number_unsigned() && value.get<std::uint64_t>() < static_cast<std::uint64_t>(INT32_MAX);
  if (!fits) place().refuse(value.is_null() ? "missing" : shown(value), "an id: an integer from 0, below 2^31 - 1");
  return value.get<int32_t>();
}

void check_pretokenizer(const Json& file, const Place& root) {
  const Place place = root.member("pre_tokenizer");
  const Json& sequence = object_member(file, "pre_tokenizer", root);
  require_value(sequence, "type", "Sequence", place);
  const Json& parts = optional_member(sequence, "pretokenizers");
  const Place parts_place = place.member("pretokenizers");
  if (!parts.is_array() || parts.size() != 2 || !parts[0].is_object() || !parts[1].is_object()) {
    parts_place.refuse(parts.is_null() ? "missing" : shown(parts), "a Split and a ByteLevel");
  }
  const Place split = parts_place.element(0), bytes = parts_place.element(1);
  require_value(parts[0], "type", "Split", split);
  require_value(object_member(parts[0], "pattern", split), "Regex", kPretokenizerExpression, split.member("pattern"));
  require_value(parts[0], "behavior", "Isolated", split);
  if (flag(parts[0], "invert", split)) split.member("invert").refuse("true", "false");
  require_value(parts[1], "type", "ByteLevel", bytes);
  require_value(parts[1], "add_prefix_space", false, bytes);
  require_value(parts[1], "use_regex", false, bytes);
}

void check_model_settings(const Json& model, const Place& place) {
  require_value(model, "type", "BPE", place);
  for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const Json& value = optional_member(model, name);
    if (!value.is_null() && !is_empty_string(value)) place.member(name).refuse(shown(value), "null");
  }
  const Json& dropout = optional_member(model, "dropout");
  if (!dropout.is_null() && dropout != 0.0) place.member("dropout").refuse(shown(dropout), "null");
}

// Spellings by id. A map until the ids are known to have no holes: one lying id must not ask for gigabytes.
using Vocabulary = std::map<int32_t, std::string>;

Vocabulary read_vocabulary(const Json& vocabulary, const Place& place) {
  Vocabulary by_id;
  for (const auto& [spelling, value] : vocabulary.items()) {
    const auto entry = [&, &name = spelling] {
      return Place{place.file, fmt::format("{}[{}]", place.field, shown(name))};
    };
    const int32_t id = read_id(value, entry);
    if (spelling.empty()) entry().refuse("an empty spelling", "at least one symbol");
    const auto [other, is_new] = by_id.emplace(id, spelling);
    if (!is_new) entry().refuse(fmt::format("id {}, which {} has too", id, shown(other->second)), "each id once");
  }
  return by_id;
}

// Both spellings of a merge are in use: "a b" and ["a", "b"].
std::optional<std::pair<std::string, std::string>> read_merge(const Json& merge) {
  if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
    return std::pair{merge[0].get<std::string>(), merge[1].get<std::string>()};
  }
  if (merge.is_string()) {
    const auto text = merge.get<std::string>();
    const std::size_t space = text.find(' ');
    if (space != std::string::npos && text.find(' ', space + 1) == std::string::npos) {
      return std::pair{text.substr(0, space), text.substr(space + 1)};
    }
  }
  return std::nullopt;
}

std::vector<Merge> read_merges(const Json& model, const TokenMap& ids, const Place& model_place) {
  const Json& list = optional_member(model, "merges");
  const Place place = model_place.member("merges");
  if (!list.is_array()) place.refuse(list.is_null() ? "missing" : shown(list), "an array");
  std::vector<Merge> merges;
  merges.reserve(list.size());
  for (std::size_t i = 0; i < list.size(); ++i) {
    const auto merge = read_merge(list[i]);
    if (!merge) place.element(i).refuse(shown(list[i]), R"(two symbols, as "a b" or ["a", "b"])");
    const auto id = [&](const std::string& symbol) {
      const auto found = ids.find(symbol);
      if (found == ids.end()) place.element(i).refuse(shown(list[i]), shown(symbol) + " in model.vocab");
      return found->second;
    };
    merges.push_back({id(merge->first), id(merge->second), id(merge->first + merge->second)});
  }
  return merges;
}

AddedToken read_added_token(const Json& entry, const Place& place) {
  if (!entry.is_object()) place.refuse(shown(entry), "an object");
  AddedToken token;
  token.id = read_id(optional_member(entry, "id"), [&] { return place.member("id"); });
  const Json& content = optional_member(entry, "content");
  if (!content.is_string() || is_empty_string(content)) {
    place.member("content").refuse(content.is_null() ? "missing" : shown(content), "a non-empty string");
  }
  token.content = content.get<std::string>();
  token.special = flag(entry, "special", place);
  // `normalized` makes no difference without a normalizer. The others would change which text a token swallows.
  for (const char* name : {"single_word", "lstrip", "rstrip"}) {
    if (flag(entry, name, place)) place.member(name).refuse("true", "false");
  }
  return token;
}

std::vector<AddedToken> read_added_tokens(const Json& file, const Place& root) {
  const Json& list = optional_member(file, "added_tokens");
  const Place place = root.member("added_tokens");
  if (!list.is_array()) place.refuse(list.is_null() ? "missing" : shown(list), "an array");
  std::vector<AddedToken> tokens;
  for (std::size_t i = 0; i < list.size(); ++i) tokens.push_back(read_added_token(list[i], place.element(i)));
  std::sort(tokens.begin(), tokens.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
  return tokens;
}

// The family's 36 contents stand in order on consecutive ids; further added tokens may stand before or behind them.
void check_family(const std::vector<AddedToken>& tokens, const Place& root) {
  const auto family = family_added_tokens();
  const Place place = root.member("added_tokens");
  const auto first = std::find_if(tokens.begin(), tokens.end(), [&](const auto& t) { return t.content == family[0]; });
  if (first == tokens.end()) {
    place.refuse(fmt::format("{} tokens without \"{}\"", tokens.size(), family[0]),
                 fmt::format("the family's {} added tokens", family.size()));
  }
  for (std::size_t i = 1; i < family.size(); ++i) {
    const auto index = static_cast<std::size_t>(first - tokens.begin()) + i;
    const std::int64_t id = std::int64_t{first->id} + static_cast<std::int64_t>(i);
    const std::string expected = fmt::format("\"{}\" as id {}", family[i], id);
    if (index >= tokens.size()) place.refuse(fmt::format("{} tokens that end before it", tokens.size()), expected);
    if (tokens[index].content != family[i] || tokens[index].id != id) {
      place.refuse(fmt::format("{} as id {}", shown(tokens[index].content), tokens[index].id), expected);
    }
  }
}

// Every id from 0 to the largest has exactly one token. An added token may repeat the base entry of its own id.
void check_ids(Vocabulary all, const std::vector<AddedToken>& added_tokens, const Place& root) {
  const Place added = root.member("added_tokens");
  int32_t previous = -1;
  for (const AddedToken& token : added_tokens) {
    if (token.id == previous) added.refuse(fmt::format("id {} twice", token.id), "each id once");
    previous = token.id;
    const auto [other, is_new] = all.emplace(token.id, token.content);
    if (!is_new && other->second != token.content) {
      added.refuse(fmt::format("{} as id {}, which model.vocab gives to {}", shown(token.content), token.id,
                               shown(other->second)),
                   "an id of its own");
    }
  }
  int32_t expected = 0;
  for (const auto& [id, spelling] : all) {
    if (id != expected) {
      root.member("model.vocab")
          .refuse(fmt::format("no token for id {}", expected),
                  fmt::format("one for each id from 0 to {}", all.rbegin()->first));
    }
    ++expected;
  }
}

void check_bytes(const TokenMap& ids, const Place& place) {
  for (int byte = 0; byte < 256; ++byte) {
    const std::string symbol = byte_symbol(static_cast<unsigned char>(byte));
    if (!ids.contains(symbol)) {
      place.refuse(fmt::format("no entry for byte 0x{:02X}", byte), fmt::format("\"{}\" and 255 more", symbol));
    }
  }
}

}  // namespace

TokenizerFile read_tokenizer_json(std::string_view json, const std::string& where) {
  const Place root{where, ""};
  const Json file = parse(json, root);
  if (!file.is_object()) root.refuse(shown(file), "an object");
  const Json& normalizer = optional_member(file, "normalizer");
  if (!normalizer.is_null()) root.member("normalizer").refuse(shown(normalizer), "null");
  check_pretokenizer(file, root);
  require_value(object_member(file, "decoder", root), "type", "ByteLevel", root.member("decoder"));

  const Place model_place = root.member("model");
  const Json& model = object_member(file, "model", root);
  check_model_settings(model, model_place);
  const Json& vocabulary = object_member(model, "vocab", model_place);
  const Place vocabulary_place = model_place.member("vocab");

  TokenizerFile result;
  result.added_tokens = read_added_tokens(file, root);
  check_family(result.added_tokens, root);
  const Vocabulary by_id = read_vocabulary(vocabulary, vocabulary_place);
  check_ids(by_id, result.added_tokens, root);
  for (const auto& [id, spelling] : by_id) {
    result.vocabulary.resize(static_cast<std::size_t>(id) + 1);
    result.vocabulary.back() = spelling;
    result.ids.emplace(spelling, id);
  }
  check_bytes(result.ids, vocabulary_place);
  result.merges = read_merges(model, result.ids, model_place);
  result.ignore_merges = flag(model, "ignore_merges", model_place);
  return result;
}

}  // namespace tandem::text
