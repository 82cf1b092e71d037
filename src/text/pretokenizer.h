// The pre-tokeniser (spec/frontend.md B.2): cuts text into the pieces that byte-pair encoding must not cross. Written
// by hand for the one expression of the model family, so that no regex engine is needed and time stays linear.
#pragma once

#include <cstddef>
#include <string_view>

namespace tandem::text {

// The expression that next_piece implements; a tokenizer.json that states another one is refused.
inline constexpr std::string_view kPretokenizerExpression =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";

// End of the piece that starts at byte `position` < text.size(), on a character's border. `text` is valid UTF-8, and
// its end is what the look-ahead sees as the end. Pieces leave no gaps. Cutting n bytes takes O(n) altogether.
std::size_t piece_end(std::string_view text, std::size_t position);

}  // namespace tandem::text
