// Two ways to the same result: short pieces, nearly all of them, are merged by scanning for the lowest rank; long ones
// with a heap over a linked list, so that a megabyte of one character is not quadratic.
#include "text/bpe.h"

#include <algorithm>
#include <bit>
#include <queue>
#include <tuple>

namespace tandem::text {
namespace {

constexpr int32_t kNone = -1;

// A symbol of a long piece in its list. `id` is kNone once the symbol has been merged into its left neighbour.
struct Node {
  int32_t id, previous, next;
};

// A pair that could be merged when it was queued; it is stale if either symbol has changed since.
struct Candidate {
  int32_t rank, position, left, right;
  bool operator>(const Candidate& other) const {
    return std::tie(rank, position) > std::tie(other.rank, other.position);
  }
};

}  // namespace

Bpe::Bpe(const std::array<int32_t, 256>& byte_ids, const std::vector<Merge>& merges, TokenMap tokens,
         bool ignore_merges)
    : byte_ids_(byte_ids), table_(std::bit_ceil(2 * merges.size() + 2)) {
  int32_t rank = 0;
  for (const Merge& merge : merges) {
    const std::uint64_t pair = key(merge.left, merge.right);
    table_[slot(pair)] = {pair, rank++, merge.result};
  }
  if (!ignore_merges) {
    // Most pieces of ordinary text are one token. Those are answered by one look-up, but only where merging gives the
    // same: a token can be out of the merges' reach.
    std::vector<int32_t> ids;
    std::erase_if(tokens, [&](const auto& token) {
      ids.clear();
      encode(token.first, ids);
      return ids.size() != 1 || ids.front() != token.second;
    });
  }
  whole_ = std::move(tokens);
}

std::size_t Bpe::slot(std::uint64_t pair) const {
  const std::size_t mask = table_.size() - 1;
  std::size_t at = static_cast<std::size_t>((pair ^ pair >> 32) * 0x9E3779B97F4A7C15u >> 20) & mask;
  while (table_[at].rank != kNoRank && table_[at].pair != pair) at = (at + 1) & mask;
  return at;
}

void Bpe::encode(std::string_view piece, std::vector<int32_t>& ids) const {
  if (piece.empty()) return;
  if (const auto token = whole_.find(piece); token != whole_.end()) {
    ids.push_back(token->second);
    return;
  }
  if (piece.size() <= kShortPiece) {
    merge_short(piece, ids);
  } else {
    merge_long(piece, ids);
  }
}

void Bpe::merge_short(std::string_view piece, std::vector<int32_t>& ids) const {
  std::array<int32_t, kShortPiece> symbol;
  std::array<const Entry*, kShortPiece> merge;  // of symbol i with symbol i + 1
  std::size_t count = piece.size();
  for (std::size_t i = 0; i < count; ++i) symbol[i] = byte_ids_[static_cast<unsigned char>(piece[i])];
  for (std::size_t i = 0; i + 1 < count; ++i) merge[i] = &find(symbol[i], symbol[i + 1]);
  while (count > 1) {
    std::size_t best = 0;
    for (std::size_t i = 1; i + 1 < count; ++i) {
      if (merge[i]->rank < merge[best]->rank) best = i;
    }
    if (merge[best]->rank == kNoRank) break;
    symbol[best] = merge[best]->result;
    std::copy(symbol.begin() + best + 2, symbol.begin() + count, symbol.begin() + best + 1);
    if (best + 2 < count) std::copy(merge.begin() + best + 2, merge.begin() + count - 1, merge.begin() + best + 1);
    --count;
    if (best + 1 < count) merge[best] = &find(symbol[best], symbol[best + 1]);
    if (best > 0) merge[best - 1] = &find(symbol[best - 1], symbol[best]);
  }
  ids.insert(ids.end(), symbol.begin(), symbol.begin() + count);
}

void Bpe::merge_long(std::string_view piece, std::vector<int32_t>& ids) const {
  const auto size = static_cast<int32_t>(piece.size());
  std::vector<Node> nodes(piece.size());
  for (int32_t i = 0; i < size; ++i) {
    nodes[i] = {byte_ids_[static_cast<unsigned char>(piece[i])], i - 1, i + 1 == size ? kNone : i + 1};
  }
  std::vector<Candidate> first;
  const auto candidate = [&](int32_t position, auto&& add) {
    if (position == kNone || nodes[position].next == kNone) return;
    const int32_t left = nodes[position].id, right = nodes[nodes[position].next].id;
    if (const Entry& entry = find(left, right); entry.rank != kNoRank) add({entry.rank, position, left, right});
  };
  first.reserve(piece.size());
  for (int32_t i = 0; i < size; ++i) candidate(i, [&](const Candidate& c) { first.push_back(c); });
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> heap(std::greater<>(), std::move(first));
  const auto queue = [&](const Candidate& c) { heap.push(c); };
  while (!heap.empty()) {
    const Candidate best = heap.top();
    heap.pop();
    Node& node = nodes[best.position];
    if (node.id != best.left || node.next == kNone || nodes[node.next].id != best.right) continue;
    Node& gone = nodes[node.next];
    node.id = find(best.left, best.right).result;
    gone.id = kNone;
    node.next = gone.next;
    if (node.next != kNone) nodes[node.next].previous = best.position;
    candidate(node.previous, queue);
    candidate(best.position, queue);
  }
  for (int32_t i = 0; i != kNone; i = nodes[i].next) ids.push_back(nodes[i].id);
}

}  // namespace tandem::text
