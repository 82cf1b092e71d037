// Any bytes as text for the bundled tokenizer: valid UTF-8 comes back unchanged in every mode and however it is cut
// into segments; anything else is refused and its streamed decoding does not depend on the cut. fuzz-room: text
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/error.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace {

using tandem::text::AddedTokens;
using tandem::text::first_invalid_utf8;
using tandem::text::TextSegment;
using tandem::text::Tokenizer;
using tandem::text::Utf8Stream;

void require(bool condition) {
  if (!condition) std::abort();
}

// `text` in two parts at the character border nearest before `cut`.
std::vector<TextSegment> two_segments(const std::string& text, std::size_t cut, AddedTokens first, AddedTokens second) {
  while (cut > 0 && cut < text.size() && (static_cast<unsigned char>(text[cut]) & 0xC0) == 0x80) --cut;
  return {{text.substr(0, cut), first}, {text.substr(cut), second}};
}

void check_valid(const Tokenizer& tokenizer, const std::string& text, std::size_t cut) {
  const auto literal = tokenizer.encode(text, AddedTokens::literal);
  require(tokenizer.decode(literal) == text);
  for (const int32_t id : literal) require(!tokenizer.is_added(id));
  require(tokenizer.decode(tokenizer.encode(text, AddedTokens::recognise)) == text);
  require(tokenizer.encode(two_segments(text, cut, AddedTokens::literal, AddedTokens::literal)) == literal);
  const auto mixed = two_segments(text, cut, AddedTokens::recognise, AddedTokens::literal);
  require(tokenizer.decode(tokenizer.encode(mixed)) == text);
}

void check_stream(const std::string& bytes, std::size_t cut) {
  Utf8Stream whole, parts;
  std::string once = whole.push(bytes);
  once += whole.finish();
  std::string twice = parts.push(bytes.substr(0, cut));
  twice += parts.push(bytes.substr(cut));
  twice += parts.finish();
  require(once == twice && !first_invalid_utf8(once));
  if (!first_invalid_utf8(bytes)) require(once == bytes);
}

}  // namespace

// The first byte says where to cut the rest.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Tokenizer tokenizer = Tokenizer::load(TANDEM_SOURCE_DIR "/models/nano");
  if (size == 0) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::size_t cut = data[0] % (text.size() + 1);
  check_stream(text, cut);
  if (!first_invalid_utf8(text)) {
    check_valid(tokenizer, text, cut);
    return 0;
  }
  try {
    tokenizer.encode(text, AddedTokens::recognise);
    std::abort();
  } catch (const tandem::Error& error) {
    require(error.code() == tandem::ErrorCode::usage);
  }
  return 0;
}
