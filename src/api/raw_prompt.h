// Prompts that are no chats: their text is tokenised as it stands (spec/frontend.md B.6, D.5).
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace tandem::api {

// Ids of a text in which spellings of added tokens are those tokens. `add_special_tokens`: what every sequence of the
// model begins with, [gMASK]<sop>, is put before it unless it is there. Thread-safe.
std::vector<int32_t> encode_raw_prompt(const text::Tokenizer& tokenizer, std::string_view text,
                                       bool add_special_tokens);

}  // namespace tandem::api
