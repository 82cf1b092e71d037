// The family's added tokens and the search for them. Candidates are grouped by first byte: of the 36 contents all begin
// with '<', '[' or '/', so nearly every byte of a text is passed over with one look.
#include "text/added_tokens.h"

#include <algorithm>

namespace tandem::text {

std::span<const std::string_view> family_added_tokens() {
  static constexpr std::array<std::string_view, 36> kContents = {
      "<|endoftext|>",
      "[MASK]",
      "[gMASK]",
      "[sMASK]",
      "<sop>",
      "<eop>",
      "<|system|>",
      "<|user|>",
      "<|assistant|>",
      "<|observation|>",
      "<|begin_of_image|>",
      "<|end_of_image|>",
      "<|begin_of_video|>",
      "<|end_of_video|>",
      "<|begin_of_audio|>",
      "<|end_of_audio|>",
      "<|begin_of_transcription|>",
      "<|end_of_transcription|>",
      "<|code_prefix|>",
      "<|code_middle|>",
      "<|code_suffix|>",
      "<think>",
      "</think>",
      "<tool_call>",
      "</tool_call>",
      "<tool_response>",
      "</tool_response>",
      "<arg_key>",
      "</arg_key>",
      "<arg_value>",
      "</arg_value>",
      "/nothink",
      "<|begin_of_box|>",
      "<|end_of_box|>",
      "<|image|>",
      "<|video|>",
  };
  return kContents;
}

AddedTokenMatcher::AddedTokenMatcher(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::erase_if(tokens_, [](const AddedToken& token) { return token.content.empty(); });
  const auto first_byte = [](const AddedToken& token) { return static_cast<unsigned char>(token.content.front()); };
  std::sort(tokens_.begin(), tokens_.end(), [&](const AddedToken& a, const AddedToken& b) {
    if (first_byte(a) != first_byte(b)) return first_byte(a) < first_byte(b);
    return a.content.size() > b.content.size();
  });
  for (const AddedToken& token : tokens_) ++first_of_[first_byte(token) + 1u];
  for (std::size_t byte = 0; byte < 256; ++byte) first_of_[byte + 1] += first_of_[byte];
}

const AddedToken* AddedTokenMatcher::longest_at(std::string_view rest) const {
  const auto byte = static_cast<unsigned char>(rest.front());
  for (std::uint32_t i = first_of_[byte]; i < first_of_[byte + 1u]; ++i) {
    if (rest.starts_with(tokens_[i].content)) return &tokens_[i];
  }
  return nullptr;
}

void AddedTokenMatcher::find(std::string_view text, std::size_t offset, std::vector<Match>& matches) const {
  for (std::size_t position = 0; position < text.size();) {
    const AddedToken* token = longest_at(text.substr(position));
    if (token == nullptr) {
      ++position;
      continue;
    }
    const std::size_t end = position + token->content.size();
    matches.push_back({offset + position, offset + end, token->id});
    position = end;
  }
}

}  // namespace tandem::text
