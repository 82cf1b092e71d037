// Steps of one stream and of eight in turn, on one thread in its own processor time: what else runs on the machine
// costs them caches, but no turns.
#pragma once

#include <vector>

#include "common.h"
#include "forward/text_model.h"
#include "model/shape.h"
#include "model/weights.h"

namespace tandem::bench {

// Rates at which sets as large as what a step of one and of many streams reads are read: the larger may not lie in the
// cache that the smaller one lies in.
struct StreamMachines {
  StreamMachines(const model::Shape& shape, const model::TextWeights& weights, int64_t position, int64_t streams)
      : one_cost(forward::step_cost(shape, weights, position, 1, 1)),
        many_cost(forward::step_cost(shape, weights, position, 1, 1, streams)),
        one(one_cost.bytes()),
        many(many_cost.bytes()) {}
  void measure(device::Threads& threads, NowMs now_ms) {
    one.measure(threads, now_ms);
    many.measure(threads, now_ms);
  }
  // How many times the tokens of one stream a second the floors allow.
  double floors(int64_t streams) const {
    return static_cast<double>(streams) * one.floor_of(one_cost) / many.floor_of(many_cost);
  }

  forward::Cost one_cost, many_cost;
  Machine one, many;
};

class StreamSteps {
 public:
  StreamSteps(const model::Shape& shape, const model::TextWeights& weights, int32_t streams, int32_t prompt,
              int32_t tokens)
      : streams_(streams),
        prompt_(prompt),
        tokens_(tokens),
        vocabulary_(shape.vocab_size),
        pages_((prompt + tokens + page_rows - 1) / page_rows),
        text_(shape, weights, threads_,
              {.slots = streams + 1,
               .pages = 1 + (streams + 1) * pages_,
               .max_stream_pages = pages_,
               .max_rows = std::max(prompt, streams),
               .max_logit_rows = streams}),
        machines_(shape, weights, prompt + tokens / 2, streams) {}

  // The machine, then all tokens of all streams: runs of steps of the first stream and of the others together in turn.
  void round() {
    machines_.measure(threads_, own_ms);
    for (int32_t slot = 0; slot <= streams_; ++slot) run(slot, 1, 0, prompt_);
    constexpr int32_t steps = 16;
    for (int32_t from = 0; from < tokens_; from += steps) {
      const int32_t end = std::min(tokens_, from + steps);
      for (int32_t i = from; i < end; ++i) one_ms.push_back(run(0, 1, prompt_ + i, 1));
      for (int32_t i = from; i < end; ++i) many_ms.push_back(run(1, streams_, prompt_ + i, 1));
    }
  }
  double measured() const { return streams_ * median(one_ms) / median(many_ms); }
  double floors() const { return machines_.floors(streams_); }

  std::vector<double> one_ms, many_ms;

 private:
  static constexpr auto page_rows = static_cast<int32_t>(forward::TextModel::page_rows);

  // A step of `count` streams from `slot` on, `rows` rows of each; its milliseconds.
  double run(int32_t slot, int32_t count, int32_t position, int32_t rows) {
    step_.clear();
    for (int32_t i = 0; i < count; ++i) {
      const int32_t own = slot + i;
      step_.segments.push_back({own, i * pages_, pages_, i * rows, rows, rows, position, 0});
      for (int32_t page = 0; page < pages_; ++page) step_.page_tables.push_back(1 + own * pages_ + page);
      for (int32_t p = position; p < position + rows; ++p) {
        step_.tokens.push_back(static_cast<int32_t>((p * 7919 + own * 104729 + 13) % (vocabulary_ * 9 / 10)));
        step_.positions.push_back(p);
      }
      step_.logit_rows.push_back((i + 1) * rows - 1);
    }
    const double start = own_ms();
    text_.run(step_);
    return own_ms() - start;
  }

  int32_t streams_, prompt_, tokens_;
  int64_t vocabulary_;
  int32_t pages_;
  device::Threads threads_{1};
  forward::TextModel text_;
  StreamMachines machines_;
  forward::Step step_;
};

}  // namespace tandem::bench
