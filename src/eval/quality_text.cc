// Texts to windows. SHA-256 is libcrypto's.
#include "eval/quality_text.h"

#include <fmt/format.h>
#include <openssl/sha.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "base/error.h"
#include "model/json_reader.h"
#include "text/utf8.h"

namespace tandem::eval {
namespace {

constexpr std::string_view blanks = " \t\r";

// Takes the first line, without its end, off the front.
std::string_view next_line(std::string_view& bytes) {
  const size_t end = std::min(bytes.find('\n'), bytes.size());
  const std::string_view line = bytes.substr(0, end);
  bytes.remove_prefix(std::min(end + 1, bytes.size()));
  return line;
}

bool begins_with_object_of_text(std::string_view bytes) {
  const std::string_view line = next_line(bytes);
  const size_t first = line.find_first_not_of(blanks);
  if (first == std::string_view::npos || line[first] != '{') return false;
  try {
    return model::JsonDocument(line, "").root().optional_text("text").has_value();
  } catch (const Error&) {
    return false;  // a text that begins with a brace
  }
}

Sha256 hash_of(const std::vector<Window>& windows) {
  std::vector<unsigned char> bytes;
  for (const Window& window : windows) {
    for (const int32_t id : window.ids) {
      const auto bits = static_cast<uint32_t>(id);
      for (int shift = 0; shift < 32; shift += 8) bytes.push_back(static_cast<unsigned char>(bits >> shift & 0xFF));
    }
  }
  Sha256 digest{};
  SHA256(bytes.data(), bytes.size(), reinterpret_cast<unsigned char*>(digest.data()));
  return digest;
}

std::vector<int32_t> encode(const EvalText& text, const text::Tokenizer& tokenizer, int64_t vocab_size) {
  if (const auto bad = text::first_invalid_utf8(text.text))
    throw Error(ErrorCode::bad_file, text.name, fmt::format("is not UTF-8 at byte {}", *bad), "UTF-8 text");
  auto ids = tokenizer.encode(text.text, text::AddedTokens::recognise);
  if (ids.size() < 2)
    throw Error(ErrorCode::bad_file, text.name,
                fmt::format("too short: {} token{}", ids.size(), ids.size() == 1 ? "" : "s"),
                "a text of at least 2 tokens");
  for (const int32_t id : ids)
    if (id < 0 || id >= vocab_size)
      throw Error(ErrorCode::bad_file, text.name, fmt::format("token {}", id),
                  fmt::format("ids below the model's vocab_size {}", vocab_size));
  return ids;
}

}  // namespace

std::vector<EvalText> parse_eval_texts(std::string_view bytes, const std::string& name) {
  std::vector<EvalText> texts;
  if (!name.ends_with(".jsonl") && !begins_with_object_of_text(bytes)) {
    texts.push_back({name, std::string(bytes)});
    return texts;
  }
  for (int64_t number = 1; !bytes.empty(); ++number) {
    const std::string_view line = next_line(bytes);
    if (line.find_first_not_of(blanks) == std::string_view::npos) continue;
    const std::string where = fmt::format("{}:{}", name, number);
    texts.push_back({where, model::JsonDocument(line, where).root().text("text")});
  }
  if (texts.empty()) throw Error(ErrorCode::bad_file, name, "holds no text", "an object with \"text\" in each line");
  return texts;
}

std::string hex(const Sha256& digest) {
  std::string text;
  for (const std::byte byte : digest) text += fmt::format("{:02x}", std::to_integer<unsigned>(byte));
  return text;
}

int64_t Windows::tokens() const {
  return std::accumulate(windows.begin(), windows.end(), int64_t{0},
                         [](int64_t sum, const Window& window) { return sum + std::ssize(window.ids); });
}

int64_t Windows::positions() const { return tokens() - std::ssize(windows); }

Windows cut_windows(std::span<const EvalText> texts, const text::Tokenizer& tokenizer, int64_t vocab_size,
                    int64_t size) {
  if (size < 2) throw Error(ErrorCode::usage, "--window", std::to_string(size), "at least 2 tokens");
  Windows result;
  result.size = size;
  for (const EvalText& text : texts) {
    const auto ids = encode(text, tokenizer, vocab_size);
    for (int64_t first = 0; first + 2 <= std::ssize(ids); first += size) {
      const int64_t end = std::min(first + size, std::ssize(ids));
      result.windows.push_back({result.texts.size(), first, {ids.begin() + first, ids.begin() + end}});
    }
    result.texts.push_back(text.name);
  }
  result.token_hash = hash_of(result.windows);
  return result;
}

}  // namespace tandem::eval
