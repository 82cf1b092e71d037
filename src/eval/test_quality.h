// A source of made-up logits, and windows without a tokenizer, for the tests of quality runs.
#pragma once

#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "eval/quality.h"
#include "eval/quality_text.h"

namespace tandem::eval {

// Windows of these sizes with ids that count up, modulo `vocab`.
inline Windows counted_windows(const std::vector<int64_t>& sizes, int64_t vocab, int64_t size = 16) {
  Windows windows;
  windows.size = size;
  windows.texts = {"counted"};
  int64_t next = 0;
  for (const int64_t tokens : sizes) {
    Window window;
    window.first_token = next;
    for (int64_t i = 0; i < tokens; ++i) window.ids.push_back(static_cast<int32_t>(next++ % vocab));
    windows.windows.push_back(window);
  }
  windows.token_hash[0] = static_cast<std::byte>(windows.tokens() & 0xFF);
  return windows;
}

// Logits of all positions, given as a table.
class TableSource : public LogitSource {
 public:
  TableSource(std::string name, int64_t vocab, std::vector<float> table)
      : logits(std::move(table)), name_(std::move(name)), vocab_(vocab) {}

  std::vector<float> logits;  // [positions of all windows, vocab]

  const std::string& name() const override { return name_; }
  int64_t vocab_size() const override { return vocab_; }
  void start(const Windows& windows, size_t window) override {
    at_ = 0;
    for (size_t i = 0; i < window; ++i) at_ += windows.windows[i].positions();
  }
  std::span<const float> next(int64_t rows) override {
    const auto part =
        std::span<const float>(logits).subspan(static_cast<size_t>(at_ * vocab_), static_cast<size_t>(rows * vocab_));
    at_ += rows;
    return part;
  }

 private:
  std::string name_;
  int64_t vocab_, at_ = 0;
};

inline std::vector<float> random_logits(int64_t count, uint32_t seed, float scale = 4) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> logits(static_cast<size_t>(count));
  for (float& z : logits) z = normal(generator);
  return logits;
}

}  // namespace tandem::eval
