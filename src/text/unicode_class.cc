// Looks a code point up in the generated two-level table.
#include "text/unicode_class.h"

namespace tandem::text {
namespace {
#include "text/unicode_tables.inc"

constexpr char32_t kBlockSize = sizeof(kBlocks[0]) * 4;
static_assert(sizeof(kBlockOf) * kBlockSize == 0x110000);
}  // namespace

CharClass char_class(char32_t code_point) {
  if (code_point > 0x10FFFF) return CharClass::other;
  const char32_t in_block = code_point % kBlockSize;
  const std::uint8_t four = kBlocks[kBlockOf[code_point / kBlockSize]][in_block / 4];
  return static_cast<CharClass>(four >> (in_block % 4 * 2) & 3);
}

const char* unicode_version() { return kUnicodeVersion; }

}  // namespace tandem::text
