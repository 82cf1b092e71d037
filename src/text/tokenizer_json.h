// Reads tokenizer.json and checks everything that the tokenizer relies on, so that a file of another kind is refused
// with a message instead of giving wrong ids. The only file of the room that knows JSON is the one behind this header.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/added_tokens.h"
#include "text/bpe.h"

namespace tandem::text {

struct TokenizerFile {
  std::vector<std::string>
      vocabulary;             // spelling by id, in the byte alphabet; "" where the id is an added token's only
  TokenMap ids;               // the same the other way round
  std::vector<Merge> merges;  // in rank order
  std::vector<AddedToken> added_tokens;  // ascending ids
  bool ignore_merges = false;
};

// `where` names the file in messages. Throws Error(bad_file) for: text that is not JSON or nests deeper than 128
// levels; another model than byte-level BPE; a normalizer; another pre-tokeniser than B.2's; a base vocabulary that
// lacks a byte or, together with the added tokens, leaves a hole in 0..largest id; a merge of unknown symbols; added
// tokens that are not the family's 36 in their order, or that strip spaces. The post-processor is not read: prompts
// hold their own opening tokens (B.1).
TokenizerFile read_tokenizer_json(std::string_view json, const std::string& where);

}  // namespace tandem::text
