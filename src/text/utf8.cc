// UTF-8 by table 3-7 of the Unicode Standard, and the streaming decoder built on it.
#include "text/utf8.h"

#include "text/tokenizer.h"

namespace tandem::text {
namespace {

// What may follow a lead byte: how many bytes the character has and the range of the second one (later ones: 80..BF).
struct Lead {
  std::size_t length;  // 0: not a lead byte
  unsigned char low, high;
};

Lead lead_of(unsigned char byte) {
  if (byte >= 0xC2 && byte <= 0xDF) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};  // below: overlong
  if (byte == 0xED) return {3, 0x80, 0x9F};  // above: surrogates
  if (byte >= 0xE1 && byte <= 0xEF) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};  // below: overlong
  if (byte >= 0xF1 && byte <= 0xF3) return {4, 0x80, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};  // above: beyond U+10FFFF
  return {0, 0, 0};
}

// Length of the run of ASCII bytes at `position`: most text is that, and needs no decoding.
std::size_t ascii_end(std::string_view text, std::size_t position) {
  while (position < text.size() && static_cast<unsigned char>(text[position]) < 0x80) ++position;
  return position;
}

}  // namespace

Utf8Unit utf8_unit(std::string_view text, std::size_t position) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[position + i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return {first, 1, Utf8Status::character};
  const Lead lead = lead_of(first);
  if (lead.length == 0) return {0, 1, Utf8Status::invalid};
  char32_t code_point = first & (0x7Fu >> lead.length);
  for (std::size_t i = 1; i < lead.length; ++i) {
    if (position + i == text.size()) return {0, i, Utf8Status::incomplete};
    const unsigned char low = i == 1 ? lead.low : 0x80, high = i == 1 ? lead.high : 0xBF;
    if (byte(i) < low || byte(i) > high) return {0, i, Utf8Status::invalid};
    code_point = code_point << 6 | (byte(i) & 0x3Fu);
  }
  return {code_point, lead.length, Utf8Status::character};
}

std::optional<std::size_t> first_invalid_utf8(std::string_view text) {
  for (std::size_t position = ascii_end(text, 0); position < text.size(); position = ascii_end(text, position)) {
    const Utf8Unit unit = utf8_unit(text, position);
    if (unit.status != Utf8Status::character) return position;
    position += unit.length;
  }
  return std::nullopt;
}

std::size_t append_valid_utf8(std::string_view text, std::string& out) {
  std::size_t position = 0;
  while (position < text.size()) {
    const std::size_t ascii = ascii_end(text, position);
    out.append(text, position, ascii - position);
    position = ascii;
    if (position == text.size()) break;
    const Utf8Unit unit = utf8_unit(text, position);
    if (unit.status == Utf8Status::incomplete) break;
    out.append(unit.status == Utf8Status::character ? text.substr(position, unit.length) : kReplacement);
    position += unit.length;
  }
  return position;
}

std::string Utf8Stream::push(std::string_view bytes) {
  std::string out;
  held_.append(bytes);
  held_.erase(0, append_valid_utf8(held_, out));
  return out;
}

std::string Utf8Stream::finish() {
  // What is held is one incomplete character, hence one maximal subpart.
  std::string out(held_.empty() ? std::string_view() : kReplacement);
  held_.clear();
  return out;
}

}  // namespace tandem::text
