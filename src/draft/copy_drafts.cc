// The index: hash heads and a ring of links from each place to the one before it with the same hash.
#include "draft/copy_drafts.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "base/error.h"

namespace tandem::draft {

void check(const CopyOptions& options) {
  const auto refuse = [](const char* where, int64_t found, const char* expected) {
    throw Error(ErrorCode::usage, where, fmt::format("{}", found), expected);
  };
  if (options.match < 2 || options.match > 64) refuse("copy match length", options.match, "2 to 64");
  if (options.reply_match < 2 || options.reply_match > 64)
    refuse("copy match length in the reply", options.reply_match, "2 to 64");
  if (options.window < 1 || !std::has_single_bit(static_cast<uint64_t>(options.window)))
    refuse("copy window", options.window, "a power of two");
  if (options.most_places < 1) refuse("copy places", options.most_places, "at least 1");
}

CopyIndex::CopyIndex(const CopyOptions& options) : options_(options) {
  check(options);
  heads_.resize(static_cast<size_t>(options.window));
  links_.resize(static_cast<size_t>(options.window));
}

void CopyIndex::reset() {
  if (size_ == 0) return;
  size_ = 0;
  std::fill(heads_.begin(), heads_.end(), 0);
}

// Of the match that ends with ids[last].
size_t CopyIndex::head_of(std::span<const int32_t> ids, int64_t last) const {
  uint64_t hash = 0;
  for (int64_t i = last - options_.match + 1; i <= last; ++i)
    hash = (hash ^ static_cast<uint32_t>(ids[static_cast<size_t>(i)])) * 0x9E3779B97F4A7C15ULL;
  return static_cast<size_t>(hash >> 32) & (heads_.size() - 1);
}

void CopyIndex::update(std::span<const int32_t> ids) {
  const auto size = static_cast<int64_t>(ids.size());
  if (size < size_) throw Error(ErrorCode::internal, "copy index", fmt::format("{} ids after {}", size, size_));
  // Places beyond the window would be overwritten at once.
  int64_t place = std::max({size_, size - options_.window, int64_t{options_.match} - 1});
  for (; place < size; ++place) {
    int32_t& head = heads_[head_of(ids, place)];
    links_[static_cast<size_t>(place & (options_.window - 1))] = head;
    head = static_cast<int32_t>(place + 1);
  }
  size_ = size;
}

int32_t CopyIndex::equal_tokens(std::span<const int32_t> ids, int64_t last) const {
  const int64_t end = static_cast<int64_t>(ids.size()) - 1;
  int32_t equal = 0;
  while (equal < longest_match && last - equal >= 0 &&
         ids[static_cast<size_t>(last - equal)] == ids[static_cast<size_t>(end - equal)])
    ++equal;
  return equal;
}

CopyIndex::Match CopyIndex::find(std::span<const int32_t> ids, int64_t prompt, int32_t wanted) const {
  const auto size = static_cast<int64_t>(ids.size());
  if (size != size_) throw Error(ErrorCode::internal, "copy index", fmt::format("{} ids of {}", size_, size));
  Match best;
  if (size <= options_.match || wanted < 1) return best;
  const int64_t oldest = std::max<int64_t>(0, size - options_.window);  // first token of a match, at the earliest
  const int32_t in_reply = std::max(options_.match, options_.reply_match);
  int64_t place = int64_t{links_[static_cast<size_t>((size - 1) & (options_.window - 1))]} - 1;
  for (int32_t looked = 0; looked < options_.most_places && place - options_.match + 1 >= oldest; ++looked) {
    const int32_t needed = place < prompt ? options_.match : in_reply;
    const int32_t equal = equal_tokens(ids, place);
    if (equal >= needed && place - needed + 1 >= oldest) {
      const int64_t following = size - 1 - place;
      best = {.next = place + 1, .tokens = static_cast<int32_t>(std::min<int64_t>(wanted, following)), .equal = equal};
      if (following >= wanted) return best;
    }
    place = links_[static_cast<size_t>(place & (options_.window - 1))] - 1;
  }
  return best;
}

void CopyIndex::propose(std::span<const int32_t> ids, int64_t prompt, int32_t most, Proposal& proposal) const {
  const Match match = find(ids, prompt, std::min(most, most_drafts));
  if (match.tokens == 0) return;
  // A guess until statistics of the server's own copies correct it: the longer the text was the same, the surer.
  const double confidence = match.equal >= 32 ? 0.95 : match.equal >= 16 ? 0.9 : 0.8;
  proposal.source = Source::copy;
  proposal.count = match.tokens;
  for (int32_t i = 0; i < match.tokens; ++i) {
    proposal.tokens[static_cast<size_t>(i)] = ids[static_cast<size_t>(match.next + i)];
    proposal.confidence[static_cast<size_t>(i)] = confidence;
    proposal.drawn_from[static_cast<size_t>(i)].size = 0;
  }
}

}  // namespace tandem::draft
