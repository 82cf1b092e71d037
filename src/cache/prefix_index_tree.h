// The text of the kept states: a radix tree over token ids for each salt. Knows which prefixes are states and what
// followed them, and nothing of pages or of the order of eviction.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::cache {

class PrefixTree {
 public:
  using Node = int32_t;  // -1: none
  // Ids that stay known beyond a state below which no other state is left, so that a fork there is still seen
  // (spec/runtime.md b.5).
  static constexpr int64_t tail_ids = 64;

  struct Walk {
    Node state = -1;       // the deepest state with at most `limit` ids
    int64_t length = 0;    // its ids
    int64_t common = 0;    // ids shared with any text
    bool departs = false;  // the ids go on after `common`, and so does text, differently
  };
  struct Insertion {
    Node state = -1;
    Node forked = -1;     // the state at whose end the ids leave the text that was there
    bool is_new = false;  // false: these ids were a state already
  };

  Walk walk(std::span<const int32_t> ids, std::string_view salt, int64_t limit) const;
  Insertion insert(std::span<const int32_t> ids, std::string_view salt);
  // Text that neither belongs to another state nor is a tail goes with it.
  void erase(Node state);

  // What the owner of a state calls it. Numbers of nodes stay as they are until the state is erased.
  void set_record(Node state, int32_t record) { at(state).record = record; }
  int32_t record(Node state) const { return at(state).record; }
  bool is_state(Node node) const { return at(node).is_state; }
  int64_t length(Node node) const { return at(node).end; }
  Node state_above(Node state) const;  // the longest other state that this one continues; -1: none
  bool has_longer(Node state) const { return at(state).states > 1; }  // states that continue this one
  int64_t states() const;
  int64_t ids() const;  // that the tree holds: at most those of all states and a tail for each
  // Throws Error(internal) where the tree breaks its own rules.
  void check() const;

 private:
  struct Entry {
    Node parent = -1;
    bool is_state = false;
    bool used = false;
    int32_t record = -1;
    int32_t states = 0;                 // at this node and below it
    int64_t end = 0;                    // ids from the root to the end of the edge
    std::vector<int32_t> edge;          // ids between the parent's end and this one's; empty for a root
    std::map<int32_t, Node> below;      // by first id of the edge
    const std::string* salt = nullptr;  // of a root
  };

  Entry& at(Node node) { return entries_[static_cast<size_t>(node)]; }
  const Entry& at(Node node) const { return entries_[static_cast<size_t>(node)]; }
  Node add(Node parent, std::span<const int32_t> edge);
  Node append(Node node, std::span<const int32_t> ids);
  void remove(Node leaf);
  Node split(Node node, int64_t edge_ids);       // the new node that ends after that many ids of the edge
  Node merge_with_child(Node node);              // its only one, whose number stays
  void tidy(Node node);                          // merges or removes a node that has lost a child or its state
  void count_states(Node node, int32_t change);  // of the node and all above it
  void check_node(Node node) const;

  std::vector<Entry> entries_;
  std::vector<Node> unused_;
  std::map<std::string, Node, std::less<>> roots_;
};

}  // namespace tandem::cache
