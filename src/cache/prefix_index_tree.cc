// Walks, splits and merges of the radix tree.
#include "cache/prefix_index_tree.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace tandem::cache {
namespace {

int64_t common_prefix(std::span<const int32_t> a, std::span<const int32_t> b) {
  return std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin();
}

}  // namespace

PrefixTree::Walk PrefixTree::walk(std::span<const int32_t> ids, std::string_view salt, int64_t limit) const {
  Walk walk;
  const auto root = roots_.find(salt);
  if (root == roots_.end()) return walk;
  Node node = root->second;
  while (true) {
    const Entry& here = at(node);
    if (here.is_state && here.end <= limit) {
      walk.state = node;
      walk.length = here.end;
    }
    walk.common = here.end;
    const auto rest = ids.subspan(static_cast<size_t>(here.end));
    if (rest.empty()) return walk;
    const auto next = here.below.find(rest.front());
    if (next == here.below.end()) {
      walk.departs = here.end > 0 && !here.below.empty();
      return walk;
    }
    const Entry& below = at(next->second);
    const int64_t equal = common_prefix(below.edge, rest);
    if (equal < std::ssize(below.edge)) {
      walk.common += equal;
      walk.departs = equal < std::ssize(rest);
      return walk;
    }
    node = next->second;
  }
}

PrefixTree::Insertion PrefixTree::insert(std::span<const int32_t> ids, std::string_view salt) {
  auto root = roots_.find(salt);
  if (root == roots_.end()) {
    root = roots_.emplace(std::string(salt), add(-1, {})).first;
    at(root->second).salt = &root->first;
  }
  Insertion result;
  Node node = root->second;
  for (auto rest = ids; !rest.empty();) {
    const auto next = at(node).below.find(rest.front());
    if (next == at(node).below.end()) {
      if (at(node).is_state && !at(node).below.empty()) result.forked = node;
      node = append(node, rest);
      break;
    }
    const int64_t equal = common_prefix(at(next->second).edge, rest);
    node = equal < std::ssize(at(next->second).edge) ? split(next->second, equal) : next->second;
    rest = rest.subspan(static_cast<size_t>(equal));
  }
  result.state = node;
  result.is_new = !at(node).is_state;
  if (!result.is_new) return result;
  at(node).is_state = true;
  count_states(node, 1);
  return result;
}

// New text below `node`. A tail there goes: the new state's text shows where forks leave. Where the node itself is (the
// rest of) a tail, it grows.
PrefixTree::Node PrefixTree::append(Node node, std::span<const int32_t> ids) {
  const auto& below = at(node).below;
  if (below.size() == 1 && at(below.begin()->second).states == 0) remove(below.begin()->second);
  Entry& entry = at(node);
  if (entry.is_state || entry.parent < 0 || !entry.below.empty()) return add(node, ids);
  entry.edge.insert(entry.edge.end(), ids.begin(), ids.end());
  entry.end += std::ssize(ids);
  return node;
}

void PrefixTree::erase(Node state) {
  count_states(state, -1);
  at(state).is_state = false;
  if (at(state).states > 0) return tidy(state);
  if (!at(state).below.empty()) state = merge_with_child(state);  // its tail
  const Node parent = at(state).parent;
  if (at(parent).is_state && at(parent).below.size() == 1) {
    Entry& tail = at(state);
    tail.edge.resize(std::min(tail.edge.size(), static_cast<size_t>(tail_ids)));
    tail.edge.shrink_to_fit();
    tail.end = at(parent).end + std::ssize(tail.edge);
    return;
  }
  remove(state);
  tidy(parent);
}

PrefixTree::Node PrefixTree::add(Node parent, std::span<const int32_t> edge) {
  Node node = 0;
  if (unused_.empty()) {
    node = static_cast<Node>(entries_.size());
    entries_.emplace_back();
  } else {
    node = unused_.back();
    unused_.pop_back();
  }
  Entry& entry = at(node);
  entry.used = true;
  entry.parent = parent;
  entry.edge.assign(edge.begin(), edge.end());
  if (parent >= 0) {
    entry.end = at(parent).end + std::ssize(edge);
    at(parent).below[edge.front()] = node;
  }
  return node;
}

void PrefixTree::remove(Node leaf) {
  Entry& entry = at(leaf);
  if (entry.parent >= 0) {
    at(entry.parent).below.erase(entry.edge.front());
  } else {
    roots_.erase(roots_.find(*entry.salt));
  }
  entry = Entry{};
  unused_.push_back(leaf);
}

PrefixTree::Node PrefixTree::split(Node node, int64_t edge_ids) {
  const Node parent = at(node).parent;
  const auto border = static_cast<size_t>(edge_ids);
  const Node upper = add(parent, std::span(at(node).edge).first(border));  // takes the node's place under its parent
  Entry& lower = at(node);
  std::vector<int32_t>(lower.edge.begin() + edge_ids, lower.edge.end()).swap(lower.edge);
  lower.parent = upper;
  at(upper).states = lower.states;
  at(upper).below[lower.edge.front()] = node;
  return upper;
}

PrefixTree::Node PrefixTree::merge_with_child(Node node) {
  const Node child = at(node).below.begin()->second;
  Entry& upper = at(node);
  Entry& lower = at(child);
  lower.edge.insert(lower.edge.begin(), upper.edge.begin(), upper.edge.end());
  lower.parent = upper.parent;
  at(lower.parent).below[lower.edge.front()] = child;
  upper = Entry{};
  unused_.push_back(node);
  return child;
}

void PrefixTree::tidy(Node node) {
  Entry& entry = at(node);
  if (entry.is_state) return;
  if (entry.parent < 0) {
    if (entry.below.empty()) remove(node);
    return;
  }
  if (entry.below.size() == 1) merge_with_child(node);
}

void PrefixTree::count_states(Node node, int32_t change) {
  for (; node >= 0; node = at(node).parent) at(node).states += change;
}

PrefixTree::Node PrefixTree::state_above(Node state) const {
  Node node = at(state).parent;
  while (node >= 0 && !at(node).is_state) node = at(node).parent;
  return node;
}

int64_t PrefixTree::states() const {
  int64_t states = 0;
  for (const auto& [salt, root] : roots_) states += at(root).states;
  return states;
}

int64_t PrefixTree::ids() const {
  int64_t ids = 0;
  for (const Entry& entry : entries_) ids += std::ssize(entry.edge);
  return ids;
}

void PrefixTree::check_node(Node node) const {
  const Entry& entry = at(node);
  const auto bad = [&](const std::string& what) {
    throw Error(ErrorCode::internal, fmt::format("prefix tree, node {}", node), what);
  };
  int32_t states = entry.is_state ? 1 : 0;
  for (const auto& [id, child] : entry.below) {
    const Entry& below = at(child);
    if (!below.used || below.parent != node || below.edge.empty() || below.edge.front() != id) bad("a child is lost");
    states += below.states;
    const bool tail = below.states == 0;
    if (tail &&
        (!entry.is_state || entry.below.size() != 1 || !below.below.empty() || std::ssize(below.edge) > tail_ids))
      bad("text that no state needs");
  }
  if (states != entry.states) bad(fmt::format("{} states are counted as {}", states, entry.states));
  if (entry.parent < 0) {
    if (entry.is_state || entry.below.empty()) bad("an empty root");
    return;
  }
  if (entry.end != at(entry.parent).end + std::ssize(entry.edge)) bad("its end is not where its edge ends");
  if (entry.states > 0 && !entry.is_state && entry.below.size() < 2) bad("a border without a fork or state");
}

void PrefixTree::check() const {
  size_t used = 0;
  for (Node node = 0; node < std::ssize(entries_); ++node) {
    if (!at(node).used) continue;
    ++used;
    check_node(node);
  }
  if (used + unused_.size() != entries_.size()) throw Error(ErrorCode::internal, "prefix tree", "nodes are lost");
}

}  // namespace tandem::cache
