// Puts the parts together: added tokens split the text, the pre-tokeniser cuts what lies between, byte-pair encoding
// turns pieces into ids. Decoding is a table of bytes.
#include "text/tokenizer.h"

#include <fmt/format.h>

#include <system_error>

#include "base/error.h"
#include "base/mapped_file.h"
#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/byte_level.h"
#include "text/pretokenizer.h"
#include "text/tokenizer_json.h"
#include "text/utf8.h"

namespace tandem::text {
namespace {

constexpr std::size_t kMaxBytes = std::size_t{1} << 30;  // positions inside a piece are 32 bits wide

constexpr std::size_t kMaxFileBytes = std::size_t{256} << 20;  // a vocabulary of 155,000 tokens takes 20 MB

MappedFile open_file(const std::filesystem::path& path) {
  MappedFile file = MappedFile::open(path);
  if (file.bytes().size() > kMaxFileBytes) {
    throw Error(ErrorCode::bad_file, path.string(), fmt::format("{} bytes", file.bytes().size()),
                fmt::format("a tokenizer.json of at most {}", kMaxFileBytes));
  }
  return file;
}

void check_text(std::string_view text, std::size_t before) {
  if (text.size() > kMaxBytes - before) {
    throw Error(ErrorCode::usage, "text", fmt::format("more than {} bytes", kMaxBytes), "a shorter text");
  }
  if (const auto bad = first_invalid_utf8(text)) {
    throw Error(ErrorCode::usage, "text",
                fmt::format("byte 0x{:02X} at offset {}", static_cast<unsigned char>(text[*bad]), before + *bad),
                "valid UTF-8");
  }
}

Bpe make_bpe(const TokenizerFile& file) {
  TokenMap tokens;
  tokens.reserve(file.ids.size());
  for (const auto& [spelling, id] : file.ids) {
    if (auto bytes = bytes_of_symbols(spelling)) tokens.emplace(std::move(*bytes), id);
  }
  std::array<int32_t, 256> byte_ids;
  for (std::size_t byte = 0; byte < 256; ++byte) {
    byte_ids[byte] = file.ids.at(byte_symbol(static_cast<unsigned char>(byte)));
  }
  return Bpe(byte_ids, file.merges, std::move(tokens), file.ignore_merges);
}

}  // namespace

struct Tokenizer::Tables {
  struct Token {
    std::string bytes;
    bool added = false, special = false;
  };
  std::vector<Token> tokens;  // by id
  TokenMap added_ids;         // by content
  AddedTokenMatcher matcher;
  Bpe bpe;

  explicit Tables(const TokenizerFile& file) : matcher(file.added_tokens), bpe(make_bpe(file)) {
    for (const std::string& spelling : file.vocabulary) {
      // The reference, too, takes a spelling outside the byte alphabet literally.
      tokens.push_back({bytes_of_symbols(spelling).value_or(spelling)});
    }
    for (const AddedToken& token : file.added_tokens) {
      const auto id = static_cast<std::size_t>(token.id);
      if (id >= tokens.size()) tokens.resize(id + 1);
      tokens[id] = {token.content, true, token.special};
      added_ids.emplace(token.content, token.id);
    }
  }

  const Token* find(int32_t id) const {
    return id >= 0 && static_cast<std::size_t>(id) < tokens.size() ? &tokens[id] : nullptr;
  }

  void encode_ordinary(std::string_view text, std::vector<int32_t>& ids) const {
    for (std::size_t position = 0; position < text.size();) {
      const std::size_t end = piece_end(text, position);
      bpe.encode(text.substr(position, end - position), ids);
      position = end;
    }
  }

  std::vector<int32_t> encode(std::string_view text, std::span<const AddedTokenMatcher::Match> matches) const {
    std::vector<int32_t> ids;
    std::size_t position = 0;
    for (const AddedTokenMatcher::Match& match : matches) {
      encode_ordinary(text.substr(position, match.begin - position), ids);
      ids.push_back(match.id);
      position = match.end;
    }
    encode_ordinary(text.substr(position), ids);
    return ids;
  }
};

Tokenizer::Tokenizer(std::unique_ptr<Tables> tables) : tables_(std::move(tables)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Tokenizer Tokenizer::load(const std::filesystem::path& path) {
  std::error_code error;
  const auto file = std::filesystem::is_directory(path, error) ? path / "tokenizer.json" : path;
  const MappedFile mapped = open_file(file);
  return parse(mapped.text(), file.string());
}

Tokenizer Tokenizer::parse(std::string_view tokenizer_json, const std::string& where) {
  return Tokenizer(std::make_unique<Tables>(read_tokenizer_json(tokenizer_json, where)));
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, AddedTokens added_tokens) const {
  check_text(text, 0);
  std::vector<AddedTokenMatcher::Match> matches;
  if (added_tokens == AddedTokens::recognise) tables_->matcher.find(text, 0, matches);
  return tables_->encode(text, matches);
}

std::vector<int32_t> Tokenizer::encode(std::span<const TextSegment> segments) const {
  std::string text;
  std::vector<AddedTokenMatcher::Match> matches;
  for (const TextSegment& segment : segments) {
    check_text(segment.text, text.size());
    if (segment.added_tokens == AddedTokens::recognise) tables_->matcher.find(segment.text, text.size(), matches);
    text += segment.text;
  }
  return tables_->encode(text, matches);
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string bytes, text;
  for (const int32_t id : ids) {
    const Tables::Token* token = tables_->find(id);
    if (token != nullptr && !(skip_special && token->special)) bytes += token->bytes;
  }
  if (append_valid_utf8(bytes, text) < bytes.size()) text += kReplacement;
  return text;
}

std::string_view Tokenizer::token_bytes(int32_t id) const {
  const Tables::Token* token = tables_->find(id);
  return token == nullptr ? std::string_view() : token->bytes;
}

int32_t Tokenizer::size() const { return static_cast<int32_t>(tables_->tokens.size()); }

bool Tokenizer::is_added(int32_t id) const {
  const Tables::Token* token = tables_->find(id);
  return token != nullptr && token->added;
}

bool Tokenizer::is_special(int32_t id) const {
  const Tables::Token* token = tables_->find(id);
  return token != nullptr && token->special;
}

std::optional<int32_t> Tokenizer::added_token(std::string_view content) const {
  const auto found = tables_->added_ids.find(content);
  if (found == tables_->added_ids.end()) return std::nullopt;
  return found->second;
}

}  // namespace tandem::text
