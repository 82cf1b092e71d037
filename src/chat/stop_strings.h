// Stop strings of a request, matched on the text of the reply across the borders of tokens (spec/frontend.md B.5, C.8).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "chat/reply_piece.h"

namespace tandem::chat {

// Passes reply pieces through until one of the strings is complete. What could still become a stop string (the longest
// suffix that is a proper prefix of one) is held back, so nothing shown ever has to be taken back. The result does not
// depend on how the text was cut into pieces: the match that is complete first wins, of those that end together the
// longest. Time is linear in the text, whatever the strings are.
class StopStrings {
 public:
  // include_in_output: the stop string itself is still passed on. in_reasoning: also matched inside reasoning (by
  // default a stop string there means nothing). Tool calls are never looked through. Throws Error(usage) for an empty
  // string.
  explicit StopStrings(std::vector<std::string> strings, bool include_in_output = false, bool in_reasoning = false);

  // The pieces that may be shown now; none any more after a match. No string matches across a change of kind.
  std::vector<ReplyPiece> push(std::vector<ReplyPiece> pieces);
  // The reply has ended without a match: what is still held back.
  std::vector<ReplyPiece> finish();

  // The index of the string that ended the reply.
  std::optional<std::size_t> matched() const { return matched_; }

 private:
  // One prefix of the strings (Aho-Corasick automaton).
  struct Node {
    std::size_t length = 0;              // bytes of the prefix
    std::size_t fallback = 0;            // the longest proper suffix that is a prefix too
    std::optional<std::size_t> matched;  // the longest string that this prefix ends with
  };

  std::optional<std::size_t> child(std::size_t node, char byte) const;
  std::size_t next(std::size_t node, char byte) const;
  void link();
  void scan(const ReplyPiece& piece, std::vector<ReplyPiece>& out);
  void flush(std::vector<ReplyPiece>& out);

  std::vector<std::string> strings_;
  bool include_in_output_;
  bool in_reasoning_;
  std::vector<Node> nodes_;
  std::unordered_map<uint64_t, std::size_t> children_;  // node and byte to node

  std::size_t node_ = 0;
  std::string held_;  // equals the prefix of node_
  ReplyPiece::Kind held_kind_ = ReplyPiece::Kind::content;
  std::optional<std::size_t> matched_;
};

}  // namespace tandem::chat
