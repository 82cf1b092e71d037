// Streams with a model that checks what drafters may ask of it: the rules of forward/step.h and of
// spec/speculation.md 2.3, whatever the schedule.
#pragma once

#include <algorithm>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "draft/model_drafter.h"

namespace tandem::draft {

// What the engine knows of a stream, and what the model holds of it.
struct TestStream {
  std::vector<int32_t> ids;
  int64_t prompt = 0, length = 0;
  std::vector<int32_t> page_table;
  Choice choice = Choice::none;
  double temperature = 0;
  uint64_t seed = 0;
  bool draws = false, ran = false, settle = false;
  int32_t most = 0;
  Proposal proposal;

  int64_t step_first = 0, step_end = 0;  // rows that the last step of this stream ran, dropped ones included
  int64_t ring_end = 0;                  // rows below it, 32 of them, are in the head ring
  int64_t absorbed = 0;                  // MTP rows of true tokens
  int64_t resumed = -1;                  // a row that is absorbed once more
  int64_t chain = -1;                    // position of the next chained row

  StreamView view(int32_t slot) {
    return {.slot = slot,
            .ids = ids,
            .prompt = prompt,
            .length = length,
            .page_table = page_table,
            .ran = ran,
            .settle = settle,
            .most = most,
            .choice = choice,
            .temperature = temperature,
            .seed = seed,
            .draws = draws,
            .proposal = &proposal};
  }
};

class FakeDraftModel : public forward::StepRunner {
 public:
  static constexpr int32_t vocabulary = 64;
  static constexpr int64_t top_k = 4;

  explicit FakeDraftModel(const ModelDrafterOptions& options) : options_(options) {
    streams.resize(static_cast<size_t>(options.slots));
    logits_.reserve(static_cast<size_t>(options.slots * vocabulary));
    const auto nodes = static_cast<size_t>(options.slots * (options.block_rows - 1) * top_k);
    ids_.reserve(nodes);
    unary_.reserve(nodes);
    edges_.reserve(nodes * top_k);
  }

  std::vector<TestStream> streams;  // by slot
  std::vector<int64_t> kinds = std::vector<int64_t>(4);
  int64_t most_segments = 0;
  std::function<void(std::vector<int32_t>&)> change_ids;  // of a lattice

  void run(const forward::Step& step) override {
    ++kinds[static_cast<size_t>(step.kind)];
    most_segments = std::max(most_segments, static_cast<int64_t>(step.segments.size()));
    require(!step.tokens.empty() && std::ssize(step.tokens) <= options_.max_rows, "a step has 1 to max_rows rows");
    require(step.tokens.size() == step.positions.size(), "a position for each row");
    require(step.keeps.empty() && step.restores.empty() && step.head_slots.empty(), "no moves");
    logits_.clear();
    ids_.clear();
    unary_.clear();
    edges_.clear();
    int32_t row = 0;
    size_t logit = 0;
    std::vector<uint8_t> seen;
    if (check_slots) seen.resize(streams.size());
    for (const forward::Segment& segment : step.segments) {
      require(segment.first_row == row && segment.rows >= 1, "segments cover the rows in order");
      if (check_slots) {
        require(seen.at(static_cast<size_t>(segment.slot)) == 0, "segments are of different slots");
        seen[static_cast<size_t>(segment.slot)] = 1;
      }
      TestStream& stream = streams.at(static_cast<size_t>(segment.slot));
      check_pages(step, segment, stream);
      switch (step.kind) {
        case forward::StepKind::text: require(false, "drafters run no text"); break;
        case forward::StepKind::mtp_absorb: absorb(step, segment, stream); break;
        case forward::StepKind::mtp_chain: chain(step, segment, stream); break;
        case forward::StepKind::dflash2: block(step, segment, stream); break;
      }
      row += segment.rows;
      for (; logit < step.logit_rows.size() && step.logit_rows[logit] < row; ++logit) {
        require(step.logit_rows[logit] == row - 1, "logits of a segment's last row");
        add_logits(segment.slot, segment.position + segment.rows - 1 + 2);
      }
    }
    require(row == std::ssize(step.tokens), "segments cover the rows");
    require(logit == step.logit_rows.size(), "logit rows are rows");
    if (change_ids) change_ids(ids_);
  }
  std::span<const float> logits() const override { return logits_; }
  forward::DraftLattices lattices() const override {
    const int64_t rows = options_.block_rows - 1;
    return {.streams = std::ssize(ids_) / (rows * top_k),
            .rows = rows,
            .top_k = top_k,
            .ids = ids_,
            .unary = unary_,
            .edges = edges_};
  }
  bool check_slots = true;  // off: run() allocates nothing

  static int32_t token_at(int32_t slot, int64_t position) {
    return static_cast<int32_t>(
        (static_cast<uint64_t>(position) * 2654435761U + static_cast<uint64_t>(slot) * 40503U) >> 7 & 63);
  }

 private:
  static void require(bool holds, const char* what) {
    if (!holds) throw std::logic_error(what);
  }

  void check_pages(const forward::Step& step, const forward::Segment& segment, const TestStream& stream) const {
    const int64_t pages = (segment.position + segment.rows + options_.page_rows - 1) / options_.page_rows;
    require(segment.pages == pages && segment.page_table + segment.pages <= std::ssize(step.page_tables),
            "the page table covers the rows");
    require(std::equal(stream.page_table.begin(), stream.page_table.begin() + pages,
                       step.page_tables.begin() + segment.page_table),
            "the page table is the stream's");
    for (int32_t i = 0; i < segment.rows; ++i)
      require(step.positions[static_cast<size_t>(segment.first_row + i)] == segment.position + i,
              "positions are consecutive");
  }

  void absorb(const forward::Step& step, const forward::Segment& segment, TestStream& stream) {
    for (int64_t i = 0; i < segment.rows; ++i) {
      const int64_t position = segment.position + i;
      const bool again = position == stream.length - 1 && position == stream.absorbed - 1 && !stream.ran;
      require(position == stream.absorbed || again, "each row is absorbed once and in order");
      require(position < stream.length, "rows that are kept");
      require(position + 1 < std::ssize(stream.ids) && step.tokens[static_cast<size_t>(segment.first_row + i)] ==
                                                           stream.ids[static_cast<size_t>(position + 1)],
              "with the true next token");
      const bool in_step = stream.ran && position >= stream.step_first && position < stream.step_end;
      require(in_step || (position < stream.ring_end && position >= stream.ring_end - 32), "the hidden is there");
      stream.absorbed = position + 1;
    }
    stream.chain = segment.position + segment.rows;
  }

  void chain(const forward::Step& step, const forward::Segment& segment, TestStream& stream) {
    require(segment.rows == 1 && segment.position == stream.chain && stream.chain >= stream.length,
            "a chained row follows the stream's last MTP row");
    const auto draft = static_cast<size_t>(segment.position - stream.length);
    require(step.tokens[static_cast<size_t>(segment.first_row)] == stream.proposal.tokens[draft],
            "a chained row has the draft before it");
    ++stream.chain;
  }

  void block(const forward::Step& step, const forward::Segment& segment, const TestStream& stream) {
    require(segment.rows == 1 && segment.position == stream.length && stream.most >= 1, "a block at the pending token");
    require(step.tokens[static_cast<size_t>(segment.first_row)] == stream.ids.back(), "the block starts with it");
    require(step.logit_rows.empty(), "no logits of blocks");
    for (int64_t row = 0; row < options_.block_rows - 1; ++row) {
      for (int64_t candidate = 0; candidate < top_k; ++candidate) {
        ids_.push_back((token_at(segment.slot, stream.length + 1 + row) + static_cast<int32_t>(candidate)) %
                       vocabulary);
        unary_.push_back(-4.0f * static_cast<float>(candidate));
        edges_.insert(edges_.end(), top_k, 0.0f);
      }
    }
  }

  // The row tells what it is of: the picker checks it.
  void add_logits(int32_t slot, int64_t position) {
    logits_.insert(logits_.end(), vocabulary, 0.0f);
    logits_[logits_.size() - vocabulary] = static_cast<float>(slot);
    logits_[logits_.size() - vocabulary + 1] = static_cast<float>(position);
  }

  ModelDrafterOptions options_;
  std::vector<float> logits_;
  std::vector<int32_t> ids_;
  std::vector<float> unary_, edges_;
};

class FakePicker : public TokenPicker {
 public:
  double probability = 0.9;
  std::function<int32_t(int32_t, int64_t)> token = FakeDraftModel::token_at;
  int64_t picks = 0;

  Pick pick(int32_t slot, std::span<const float> logits, int64_t position, DraftDistribution* drawn_from) override {
    ++picks;
    if (logits.size() != FakeDraftModel::vocabulary || logits[0] != static_cast<float>(slot) ||
        logits[1] != static_cast<float>(position))
      throw std::logic_error("the logits are those of the slot and position");
    if (drawn_from != nullptr) drawn_from->size = 1;
    return {token(slot, position), probability};
  }
};

}  // namespace tandem::draft
