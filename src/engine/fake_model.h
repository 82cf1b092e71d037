// A model for the engine's tests: its next token is a known function of the tokens before, and it checks every step's
// rules.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <limits>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "engine/step_runner.h"

namespace tandem::engine {

class FakeModel : public StepRunner {
 public:
  static constexpr int32_t vocabulary = 64;

  // The token that follows `history` greedily; never 0, so that tests can use 0 as a stop token of their own choosing.
  static int32_t next(const std::vector<int32_t>& history) {
    uint64_t hash = 1469598103934665603ULL;
    for (const int32_t token : history) hash = (hash ^ static_cast<uint64_t>(token + 1)) * 1099511628211ULL;
    return static_cast<int32_t>(1 + (hash >> 20) % (vocabulary - 1));
  }

  std::function<void(FakeModel&)> before_step;                   // called on the engine's thread
  std::function<void(std::vector<float>&, int64_t)> change_row;  // (logits, position of the token that they choose)
  std::vector<forward::Step> steps;                              // read it only while the engine is idle
  std::atomic<int> step_count{0};

  void run(const forward::Step& step) override {
    ++step_count;
    steps.push_back(step);
    if (before_step) before_step(*this);
    const auto& segment = step.segments.at(0);
    if (segment.position == 0) history_.clear();
    require(step.segments.size() == 1, "one segment");
    require(segment.position == std::ssize(history_), "rows continue the stream");
    require(segment.rows == std::ssize(step.tokens) && segment.certain_rows == segment.rows, "rows of the segment");
    require(step.positions.size() == step.tokens.size(), "a position for each row");
    for (size_t i = 0; i < step.tokens.size(); ++i) {
      require(step.positions[i] == segment.position + static_cast<int64_t>(i), "absolute positions");
      history_.push_back(step.tokens[i]);
    }
    require(segment.pages == std::ssize(step.page_tables) && segment.pages * 256 >= std::ssize(history_),
            "pages for every row");
    for (size_t i = 0; i < step.page_tables.size(); ++i)
      require(step.page_tables[i] == static_cast<int32_t>(i) + 1, "pages 1, 2, …");
    logits_.clear();
    for (const int32_t row : step.logit_rows) {
      require(row == segment.rows - 1, "only the last row's logits");
      std::vector<float> logits(vocabulary, 0.0f);
      logits[static_cast<size_t>(next(history_))] = 5.0f;
      if (change_row) change_row(logits, std::ssize(history_));
      logits_.insert(logits_.end(), logits.begin(), logits.end());
    }
  }
  std::span<const float> logits() const override { return logits_; }

 private:
  static void require(bool holds, const char* what) {
    if (!holds) throw std::logic_error(std::string("the step breaks a rule: ") + what);
  }

  std::vector<int32_t> history_;
  std::vector<float> logits_;
};

}  // namespace tandem::engine
