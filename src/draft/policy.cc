// Depth policies (spec/speculation.md 5.1, 5.2).
#include "draft/policy.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <numeric>

#include "base/error.h"

namespace tandem::draft {
namespace {

double confidence_of(const Proposal& proposal, int32_t draft) {
  const double confidence = proposal.confidence[static_cast<size_t>(draft)];
  return confidence > 0 ? std::min(confidence, 1.0) : 0;  // NaN: 0
}

// Drafts of a wish that may be taken at all.
int32_t most_of(const Policy& policy, const Wish& wish) {
  if (wish.proposal == nullptr) return 0;
  const Proposal& proposal = *wish.proposal;
  int32_t most = std::clamp(std::min(wish.most, proposal.count), 0, most_drafts);
  if (policy.depth > 0) most = std::min(most, policy.depth);
  return most;
}

// Drafts while the product of their confidences is at least the threshold; the first one always.
int32_t confident_drafts(const Policy& policy, const Wish& wish) {
  const int32_t most = most_of(policy, wish);
  double product = 1;
  for (int32_t draft = 0; draft < most; ++draft) {
    product *= confidence_of(*wish.proposal, draft);
    if (draft > 0 && product < policy.threshold) return draft;
  }
  return most;
}

// One draft at a time from the longest window, of equals from the latest.
void trim(int64_t rows, int64_t most_rows, std::span<int32_t> take) {
  for (; rows > most_rows; --rows) {
    size_t longest = 0;
    for (size_t i = 1; i < take.size(); ++i) {
      if (take[i] >= take[longest]) longest = i;
    }
    if (take.empty() || take[longest] == 0) return;
    --take[longest];
  }
}

// The chance that the stream's drafts up to and with the next one are all accepted; below 0: it has no next one.
double next_reach(const Policy& policy, const Wish& wish, int32_t taken) {
  if (taken >= most_of(policy, wish)) return -1;
  double reach = 1;
  for (int32_t draft = 0; draft <= taken; ++draft) reach *= confidence_of(*wish.proposal, draft);
  return reach;
}

// The wish whose next row is likeliest to yield a token, of equals the first one; −1: there are no more drafts.
int64_t likeliest(const Policy& policy, std::span<const Wish> wishes, std::span<const int32_t> take, double& reach) {
  int64_t chosen = -1;
  reach = -1;
  for (size_t i = 0; i < wishes.size(); ++i) {
    const double next = next_reach(policy, wishes[i], take[i]);
    if (next > reach) chosen = static_cast<int64_t>(i), reach = next;
  }
  return chosen;
}

// 5.2 `joint`: rows go where they are likeliest to yield a token, as many as make tokens a millisecond the most. A row
// that costs more than it yields does not end the search, as it does in 5.2: from one row to two a step grows more than
// by any later row, and would never get there. Of equals the fewer rows.
void allocate_jointly(const Policy& policy, const TimingTable& table, std::span<const Wish> wishes, int64_t rows,
                      std::span<int32_t> take) {
  double tokens = static_cast<double>(wishes.size()), reach = -1;
  double best = tokens / (table.verify(rows) + table.overhead_ms);
  int64_t taken = 0, best_taken = 0;
  while (policy.most_rows == 0 || rows + taken < policy.most_rows) {
    const int64_t chosen = likeliest(policy, wishes, take, reach);
    if (chosen < 0) break;
    ++take[static_cast<size_t>(chosen)];
    ++taken;
    tokens += reach;
    const double rate = tokens / (table.verify(rows + taken) + table.overhead_ms);
    if (rate > best) best = rate, best_taken = taken;
  }
  // The same rows again, which needs no memory of them.
  std::fill(take.begin(), take.end(), 0);
  for (taken = 0; taken < best_taken; ++taken) ++take[static_cast<size_t>(likeliest(policy, wishes, take, reach))];
}

}  // namespace

Policy parse_policy(std::string_view text) {
  Policy policy;
  if (text == "joint") return policy;
  if (text == "fixed") {
    policy.kind = Policy::Kind::fixed;
    return policy;
  }
  constexpr std::string_view confidence = "confidence";
  policy.kind = Policy::Kind::confidence;
  if (text == confidence) return policy;
  if (text.starts_with(confidence) && text[confidence.size()] == ':') {
    const std::string_view number = text.substr(confidence.size() + 1);
    const char* end = number.data() + number.size();
    const auto [stop, error] = std::from_chars(number.data(), end, policy.threshold);
    if (error == std::errc{} && stop == end && policy.threshold >= 0 && policy.threshold <= 1) return policy;
  }
  throw Error(ErrorCode::usage, "--draft-policy", fmt::format("'{}'", text),
              "fixed, joint, confidence or confidence:P with P from 0 to 1");
}

std::string text_of(const Policy& policy) {
  switch (policy.kind) {
    case Policy::Kind::fixed: return "fixed";
    case Policy::Kind::confidence: return fmt::format("confidence:{}", policy.threshold);
    case Policy::Kind::joint: return "joint";
  }
  throw Error(ErrorCode::internal, "draft policy", std::to_string(static_cast<int>(policy.kind)), "0 to 2");
}

void allocate(const Policy& policy, const TimingTable& table, std::span<const Wish> wishes, int64_t other_rows,
              std::span<int32_t> take) {
  if (take.size() != wishes.size())
    throw Error(ErrorCode::internal, "allocate", fmt::format("{} places for {} wishes", take.size(), wishes.size()));
  std::fill(take.begin(), take.end(), 0);
  if (wishes.empty()) return;
  const int64_t rows = other_rows + static_cast<int64_t>(wishes.size());
  if (policy.kind == Policy::Kind::joint) return allocate_jointly(policy, table, wishes, rows, take);
  for (size_t i = 0; i < wishes.size(); ++i) {
    take[i] = policy.kind == Policy::Kind::fixed ? most_of(policy, wishes[i]) : confident_drafts(policy, wishes[i]);
  }
  if (policy.most_rows > 0) trim(std::accumulate(take.begin(), take.end(), rows), policy.most_rows, take);
}

}  // namespace tandem::draft
