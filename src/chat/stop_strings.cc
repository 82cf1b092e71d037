// An Aho-Corasick automaton over the bytes of the stop strings; its depth is exactly the length to hold back.
#include "chat/stop_strings.h"

#include <fmt/core.h>

#include "base/error.h"

namespace tandem::chat {
namespace {

uint64_t edge(std::size_t node, char byte) { return (uint64_t{node} << 8) | static_cast<unsigned char>(byte); }

void emit_text(std::vector<ReplyPiece>& out, ReplyPiece::Kind kind, std::string text) {
  if (!text.empty()) out.push_back({kind, std::move(text)});
}

}  // namespace

StopStrings::StopStrings(std::vector<std::string> strings, bool include_in_output, bool in_reasoning)
    : strings_(std::move(strings)), include_in_output_(include_in_output), in_reasoning_(in_reasoning), nodes_(1) {
  for (std::size_t i = 0; i < strings_.size(); ++i) {
    if (strings_[i].empty()) {
      throw Error(ErrorCode::usage, fmt::format("stop[{}]", i), "found an empty string", "at least one character");
    }
    std::size_t node = 0;
    for (const char byte : strings_[i]) {
      const auto [found, is_new] = children_.emplace(edge(node, byte), nodes_.size());
      if (is_new) nodes_.push_back({.length = nodes_[node].length + 1, .fallback = 0, .matched = {}});
      node = found->second;
    }
    if (!nodes_[node].matched) nodes_[node].matched = i;
  }
  link();
}

std::optional<std::size_t> StopStrings::child(std::size_t node, char byte) const {
  const auto found = children_.find(edge(node, byte));
  return found == children_.end() ? std::nullopt : std::optional<std::size_t>(found->second);
}

std::size_t StopStrings::next(std::size_t node, char byte) const {
  for (;;) {
    if (const auto found = child(node, byte)) return *found;
    if (node == 0) return 0;
    node = nodes_[node].fallback;
  }
}

// Fallbacks of a node need those of all shorter prefixes: the strings are walked together, one byte further each time.
void StopStrings::link() {
  std::vector<std::size_t> at(strings_.size(), 0);
  for (std::size_t depth = 0, alive = strings_.size(); alive > 0; ++depth) {
    alive = 0;
    for (std::size_t i = 0; i < strings_.size(); ++i) {
      if (depth >= strings_[i].size()) continue;
      ++alive;
      const std::size_t parent = at[i];
      const char byte = strings_[i][depth];
      at[i] = *child(parent, byte);
      Node& node = nodes_[at[i]];
      node.fallback = parent == 0 ? 0 : next(nodes_[parent].fallback, byte);
      if (!node.matched) node.matched = nodes_[node.fallback].matched;
    }
  }
}

void StopStrings::flush(std::vector<ReplyPiece>& out) {
  emit_text(out, held_kind_, std::move(held_));
  held_.clear();
  node_ = 0;
}

void StopStrings::scan(const ReplyPiece& piece, std::vector<ReplyPiece>& out) {
  // held_ + the bytes read so far; its last nodes_[node_].length bytes are still undecided.
  std::string text = std::move(held_);
  held_.clear();
  for (const char byte : piece.text) {
    text += byte;
    node_ = next(node_, byte);
    if (nodes_[node_].matched) {
      matched_ = nodes_[node_].matched;
      if (!include_in_output_) text.resize(text.size() - strings_[*matched_].size());
      emit_text(out, piece.kind, std::move(text));
      return;
    }
  }
  const std::size_t keep = nodes_[node_].length;
  held_ = text.substr(text.size() - keep);
  held_kind_ = piece.kind;
  text.resize(text.size() - keep);
  emit_text(out, piece.kind, std::move(text));
}

std::vector<ReplyPiece> StopStrings::push(std::vector<ReplyPiece> pieces) {
  std::vector<ReplyPiece> out;
  for (ReplyPiece& piece : pieces) {
    if (matched_) break;
    if (!held_.empty() && piece.kind != held_kind_) flush(out);
    using Kind = ReplyPiece::Kind;
    if (piece.kind == Kind::content || (piece.kind == Kind::reasoning && in_reasoning_)) {
      scan(piece, out);
    } else {
      out.push_back(std::move(piece));
    }
  }
  return out;
}

std::vector<ReplyPiece> StopStrings::finish() {
  std::vector<ReplyPiece> out;
  if (!matched_) flush(out);
  return out;
}

}  // namespace tandem::chat
