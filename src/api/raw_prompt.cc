// Text to ids with the sequence's beginning.
#include "api/raw_prompt.h"

#include <algorithm>

namespace tandem::api {

std::vector<int32_t> encode_raw_prompt(const text::Tokenizer& tokenizer, std::string_view text,
                                       bool add_special_tokens) {
  std::vector<int32_t> ids = tokenizer.encode(text, text::AddedTokens::recognise);
  if (!add_special_tokens) return ids;
  std::vector<int32_t> beginning;
  for (const auto* marker : {"[gMASK]", "<sop>"}) {
    if (const auto id = tokenizer.added_token(marker)) beginning.push_back(*id);
  }
  const bool is_there = ids.size() >= beginning.size() && std::equal(beginning.begin(), beginning.end(), ids.begin());
  if (!is_there) ids.insert(ids.begin(), beginning.begin(), beginning.end());
  return ids;
}

}  // namespace tandem::api
