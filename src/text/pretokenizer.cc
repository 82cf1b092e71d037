// The alternatives of kPretokenizerExpression, tried in order. What backtracking does in a regex engine is worked out
// here per alternative; the comments name the alternative.
#include "text/pretokenizer.h"

#include <algorithm>

#include "text/unicode_class.h"
#include "text/utf8.h"

namespace tandem::text {
namespace {

struct Character {
  CharClass kind;
  std::size_t end;
};

Character character_at(std::string_view text, std::size_t position) {
  const Utf8Unit unit = utf8_unit(text, position);
  return {char_class(unit.code_point), position + unit.length};
}

// End of the longest run of characters of one class; `position` itself when there is none.
std::size_t run_end(std::string_view text, std::size_t position, CharClass kind) {
  while (position < text.size()) {
    const Character character = character_at(text, position);
    if (character.kind != kind) break;
    position = character.end;
  }
  return position;
}

bool is_newline(char c) { return c == '\r' || c == '\n'; }

bool class_at(std::string_view text, std::size_t position, CharClass kind) {
  return position < text.size() && character_at(text, position).kind == kind;
}

// (?i:'s|'t|'re|'ve|'m|'ll|'d) at an apostrophe; 0 when none matches. Case folding is Unicode's, as in the reference:
// U+017F (long s) folds to s. No other letter outside ASCII folds to one of these.
std::size_t contraction_end(std::string_view text, std::size_t position) {
  const std::string_view rest = text.substr(position + 1, 2);
  const auto lower = [&](std::size_t i) {
    if (i >= rest.size()) return '\0';
    return rest[i] >= 'A' && rest[i] <= 'Z' ? static_cast<char>(rest[i] - 'A' + 'a') : rest[i];
  };
  const char first = lower(0), second = lower(1);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return position + 2;
  if (rest == "\xC5\xBF") return position + 3;
  const bool two =
      (first == 'r' && second == 'e') || (first == 'v' && second == 'e') || (first == 'l' && second == 'l');
  return two ? position + 3 : 0;
}

// \s*[\r\n]+ | \s+(?!\S) | \s+ for the white space at `position`.
std::size_t space_end(std::string_view text, std::size_t position) {
  std::size_t end = position, last = position;  // `last`: start of the run's last character
  std::size_t newline = std::string_view::npos;
  while (class_at(text, end, CharClass::space)) {
    last = end;
    if (is_newline(text[end])) newline = end;
    end = character_at(text, end).end;
  }
  // \s* takes the whole run and gives back until a newline follows: the piece ends after the run's last newline.
  if (newline != std::string_view::npos) return newline + 1;
  // (?!\S): at the end of the text the whole run; else it gives up its last character, unless that is all there is.
  if (end == text.size() || last == position) return end;
  return last;
}

}  // namespace

std::size_t piece_end(std::string_view text, std::size_t position) {
  if (text[position] == '\'') {
    if (const std::size_t end = contraction_end(text, position)) return end;
  }
  const Character first = character_at(text, position);
  // [^\r\n\p{L}\p{N}]?\p{L}+
  if (first.kind == CharClass::letter) return run_end(text, first.end, CharClass::letter);
  if (first.kind != CharClass::number && !is_newline(text[position]) && class_at(text, first.end, CharClass::letter)) {
    return run_end(text, first.end, CharClass::letter);
  }
  // \p{N}{1,3}
  if (first.kind == CharClass::number) {
    std::size_t end = first.end;
    for (int count = 1; count < 3 && class_at(text, end, CharClass::number); ++count) {
      end = character_at(text, end).end;
    }
    return end;
  }
  //  ?[^\s\p{L}\p{N}]+[\r\n]*
  const std::size_t start = text[position] == ' ' ? position + 1 : position;
  if (std::size_t end = run_end(text, start, CharClass::other); end > start) {
    while (end < text.size() && is_newline(text[end])) ++end;
    return end;
  }
  return space_end(text, position);
}

}  // namespace tandem::text
