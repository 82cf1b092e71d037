// A model for the engine's tests: its next token is a known function of the tokens before. It stores tokens where the
// real one stores rows (in pages, in slots, in kept-state records) and works from what it finds there, so that a wrong
// page, a missing copy or a stale state changes tokens; and it checks every step's rules.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine/step_runner.h"

namespace tandem::engine {

struct FakeModelOptions {
  int32_t slots = 8;
  int32_t pages = 512;  // of a group, the null page included
  int32_t groups = 1;
  int32_t page_rows = 256;
  int32_t records = 16;
  bool keep_steps = true;  // remember every step; costs memory
};

class FakeModel : public StepRunner {
 public:
  static constexpr int32_t vocabulary = 64;

  explicit FakeModel(const FakeModelOptions& options = {})
      : options_(options),
        slots_(static_cast<size_t>(options.slots)),
        records_(static_cast<size_t>(options.records)),
        rows_(static_cast<size_t>(options.groups) * static_cast<size_t>(options.pages) *
                  static_cast<size_t>(options.page_rows),
              -1) {
    logits_.reserve(static_cast<size_t>(options.slots) * 16 * vocabulary);
    row_.reserve(vocabulary);
    heads_.reserve(4096);
  }

  // The token that follows `history` greedily; never 0, so that tests can use 0 as a stop token of their own choosing.
  static int32_t next(const std::vector<int32_t>& history) {
    uint64_t hash = start;
    for (const int32_t token : history) hash = after(hash, token);
    return token_of(hash);
  }
  // The logits row that follows `history`.
  static std::vector<float> logits_after(const std::vector<int32_t>& history) {
    std::vector<float> logits(vocabulary, 0.0f);
    logits[static_cast<size_t>(next(history))] = 5.0f;
    return logits;
  }

  std::function<void(FakeModel&)> before_step;                   // called on the engine's thread
  std::function<void(std::vector<float>&, int64_t)> change_row;  // (logits, position of the token that they choose)
  std::vector<forward::Step> steps;                              // read it only while the engine is idle
  std::atomic<int> step_count{0};

  void run(const forward::Step& step) override {
    ++step_count;
    if (options_.keep_steps) steps.push_back(step);
    if (before_step) before_step(*this);
    move_states(step);
    heads_.clear();
    check_rows(step);
    for (const auto& segment : step.segments) run_segment(step, segment);
    logits_.clear();
    for (const int32_t row : step.logit_rows)
      add_logits(heads_.at(static_cast<size_t>(row)), step.positions.at(static_cast<size_t>(row)) + 1);
    for (const int32_t slot : step.head_slots) add_logits(state(slot).head(), state(slot).end);
  }
  std::span<const float> logits() const override { return logits_; }

 private:
  static constexpr uint64_t start = 1469598103934665603ULL;
  static uint64_t after(uint64_t hash, int32_t token) {
    return (hash ^ static_cast<uint64_t>(token + 1)) * 1099511628211ULL;
  }
  static int32_t token_of(uint64_t hash) { return static_cast<int32_t>(1 + (hash >> 20) % (vocabulary - 1)); }

  // What the real model's recurrent states are: a function of all rows. Like it, it knows its last rows, so that the
  // next step may stand where any of those began that were not certain.
  struct State {
    static constexpr int64_t remembered = 32;
    int64_t end = 0, certain_end = 0;
    std::array<uint64_t, remembered> hashes{}, heads{};  // after the row at position p mod remembered

    uint64_t hash_before(int64_t position) const {
      return position == 0 ? start : hashes[static_cast<size_t>((position - 1) % remembered)];
    }
    uint64_t head() const { return heads[static_cast<size_t>((end - 1) % remembered)]; }
    void add(uint64_t hash, uint64_t head) {
      hashes[static_cast<size_t>(end % remembered)] = hash;
      heads[static_cast<size_t>(end % remembered)] = head;
      ++end;
    }
  };

  static void require(bool holds, const char* what) {
    if (!holds) throw std::logic_error(std::string("the step breaks a rule: ") + what);
  }
  const State& state(int32_t slot) const { return slots_.at(static_cast<size_t>(slot)); }
  int32_t* page(int64_t group, int32_t number) {
    require(number > 0 && number < options_.pages, "pages exist and are not null");
    return rows_.data() + (group * options_.pages + number) * options_.page_rows;
  }

  void move_states(const forward::Step& step) {
    for (const auto& move : step.keeps) {
      const State& from = state(move.slot);
      require(move.length >= 1 && move.length >= from.certain_end && move.length <= from.end,
              "a state is kept among the slot's last rows");
      State& to = records_.at(static_cast<size_t>(move.record)) = from;
      to.end = to.certain_end = move.length;
    }
    for (const auto& move : step.restores) {
      const State& record = records_.at(static_cast<size_t>(move.record));
      require(move.length >= 1 && move.length == record.end, "a state is restored at its own length");
      slots_.at(static_cast<size_t>(move.slot)) = record;
    }
    for (const auto& copy : step.page_copies) {
      require(copy.rows > 0 && copy.rows <= options_.page_rows && copy.from != copy.to, "copies of pages");
      int32_t* to = page(copy.group, copy.to);
      std::copy_n(page(copy.group, copy.from), copy.rows, to);
      std::fill(to + copy.rows, to + options_.page_rows, -1);
    }
  }

  void check_rows(const forward::Step& step) {
    require(step.kind == forward::StepKind::text, "rows of the text model");
    require(step.positions.size() == step.tokens.size(), "a position for each row");
    require(std::is_sorted(step.logit_rows.begin(), step.logit_rows.end()), "logit rows ascend");
    int32_t row = 0;
    uint64_t used = 0;  // slots
    for (const auto& segment : step.segments) {
      require(segment.first_row == row && segment.certain_rows > 0 && segment.certain_rows <= segment.rows,
              "rows follow");
      require(segment.rows - segment.certain_rows <= 15, "a window holds 16 rows");
      row += segment.rows;
      require((used >> segment.slot & 1) == 0, "segments of different slots");
      used |= uint64_t{1} << segment.slot;
    }
    require(row == std::ssize(step.tokens), "every row has a segment");
    for (const int32_t slot : step.head_slots) require((used >> slot & 1) == 0, "head slots run no rows");
  }

  void run_segment(const forward::Step& step, const forward::Segment& segment) {
    State& state = slots_.at(static_cast<size_t>(segment.slot));
    if (segment.position == 0) state = {};
    require(segment.position >= state.certain_end && segment.position <= state.end, "rows continue the stream");
    state.end = segment.position;
    state.certain_end = segment.position + segment.certain_rows;
    const int32_t* table = step.page_tables.data() + segment.page_table;
    require(segment.page_table + segment.pages <= std::ssize(step.page_tables), "the page table lies in the step");
    const auto rows_of = [&](int64_t position) {
      const int64_t entry = position / options_.page_rows;
      require(entry < segment.pages, "pages for every row");
      return page(entry % options_.groups, table[entry]) + position % options_.page_rows;
    };
    uint64_t paged = start;  // what the pages say, from the first row on
    for (int64_t position = 0; position < segment.position; ++position) paged = after(paged, *rows_of(position));
    uint64_t hash = state.hash_before(segment.position);
    for (int32_t i = segment.first_row; i < segment.first_row + segment.rows; ++i) {
      const auto row = static_cast<size_t>(i);
      require(step.positions[row] == state.end, "absolute positions");
      *rows_of(state.end) = step.tokens[row];
      paged = after(paged, *rows_of(state.end));
      hash = after(hash, step.tokens[row]);
      state.add(hash, paged == hash ? paged : paged * 31 + hash);
      heads_.push_back(state.head());
    }
  }

  void add_logits(uint64_t head, int64_t position) {
    row_.assign(vocabulary, 0.0f);
    row_[static_cast<size_t>(token_of(head))] = 5.0f;
    if (change_row) change_row(row_, position);
    logits_.insert(logits_.end(), row_.begin(), row_.end());
  }

  const FakeModelOptions options_;
  std::vector<State> slots_, records_;
  std::vector<int32_t> rows_;    // [groups, pages, page_rows] the token of each row
  std::vector<uint64_t> heads_;  // of the step's rows
  std::vector<float> logits_, row_;
};

}  // namespace tandem::engine
