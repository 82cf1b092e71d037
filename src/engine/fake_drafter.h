// A drafter for the engine's tests: a script says what it proposes, and it checks what it is told.
#pragma once

#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "draft/drafter.h"
#include "engine/fake_model.h"

namespace tandem::engine {

class FakeDrafter : public draft::Drafter {
 public:
  using Script = std::function<void(const draft::StreamView&, draft::Proposal&)>;
  explicit FakeDrafter(Script script) : script_(std::move(script)) {}

  // `count` drafts, of which the first `right` are what FakeModel says next.
  static Script right_up_to(int32_t count, int32_t right) {
    return [=](const draft::StreamView& view, draft::Proposal& proposal) {
      std::vector<int32_t> history(view.ids.begin(), view.ids.end());
      proposal.count = count;
      for (int32_t i = 0; i < count; ++i) {
        const int32_t next = FakeModel::next(history);
        const int32_t token = i == right ? (next + 1) % FakeModel::vocabulary : next;
        proposal.tokens[static_cast<size_t>(i)] = token;
        proposal.confidence[static_cast<size_t>(i)] = 0.9;
        history.push_back(token);
      }
    };
  }
  static Script perfect(int32_t count) { return right_up_to(count, count); }

  void start(int32_t slot, std::span<const int32_t> ids, int64_t length) override {
    require(length <= std::ssize(ids), "a stream has its tokens");
    lengths_[slot] = length;
  }
  void propose(std::span<const draft::StreamView> streams, draft::TokenPicker&) override {
    ++rounds;
    for (const draft::StreamView& view : streams) {
      require(lengths_.contains(view.slot), "a stream has begun");
      int64_t& length = lengths_[view.slot];
      require(view.length >= length && (view.ran == (view.length > length)), "streams grow by the rows that ran");
      length = view.length;
      require(view.most >= 0 && view.most <= draft::most_drafts, "0 to 15 drafts are wanted");
      require(view.most == 0 || std::ssize(view.ids) == view.length + 1, "drafts follow a pending token");
      require(view.proposal->count == 0, "a proposal is empty before");
      if (view.most == 0) continue;
      script_(view, *view.proposal);
      if (view.proposal->source == draft::Source::none) view.proposal->source = draft::Source::copy;
    }
  }
  void verified(int32_t, const draft::Proposal& proposal, int32_t tried, int32_t accepted) override {
    require(accepted >= 0 && accepted <= tried && tried <= proposal.count, "what was tried had been proposed");
    tried_ += tried;
    accepted_ += accepted;
  }

  int64_t rounds = 0;
  int64_t tried() const { return tried_; }
  int64_t accepted() const { return accepted_; }

 private:
  static void require(bool holds, const char* what) {
    if (!holds) throw std::logic_error(std::string("the drafter is told what cannot be: ") + what);
  }

  Script script_;
  std::map<int32_t, int64_t> lengths_;  // [slot]
  int64_t tried_ = 0, accepted_ = 0;
};

}  // namespace tandem::engine
