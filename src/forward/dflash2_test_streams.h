// For tests of the DFlash2 drafter: nano with its drafter, streams fed in chunks, blocks asked for, lattices copied.
#pragma once

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "device/threads.h"
#include "forward/test_models.h"
#include "forward/text_model.h"
#include "model/drafter.h"

namespace tandem::forward {

struct LoadedDrafter {
  model::DrafterShape shape;
  model::Checkpoint checkpoint;
  model::DrafterWeights weights;

  explicit LoadedDrafter(const std::string& folder)
      : shape(model::read_drafter_shape(folder)),
        checkpoint(model::Checkpoint::open(folder)),
        weights(model::load_drafter_weights(checkpoint, shape)) {}
};

inline const LoadedDrafter& nano_drafter() {
  static const LoadedDrafter drafter(std::string(TANDEM_SOURCE_DIR) + "/models/nano-dflash2");
  return drafter;
}

struct Lattice {  // of one stream
  std::vector<int32_t> ids;
  std::vector<float> unary, edges;
  bool operator==(const Lattice&) const = default;  // bits: lattices of nano hold no NaN and no −0 beside 0
};

inline Lattice lattice_of(const DraftLattices& all, int64_t stream) {
  const auto piece = [stream](auto values, int64_t size) {
    const auto part = values.subspan(static_cast<size_t>(stream * size), static_cast<size_t>(size));
    return std::vector<std::remove_cvref_t<decltype(part[0])>>(part.begin(), part.end());
  };
  const int64_t candidates = all.rows * all.top_k;
  return {piece(all.ids, candidates), piece(all.unary, candidates), piece(all.edges, candidates * all.top_k)};
}

// The greedy path (spec/speculation.md 1.6).
inline std::vector<int32_t> path_of(const Lattice& lattice, int64_t rows, int64_t k) {
  std::vector<int32_t> path;
  int64_t previous = 0;
  for (int64_t r = 0; r < rows; ++r) {
    int64_t best = 0;
    const auto score = [&](int64_t c) {
      return lattice.unary[static_cast<size_t>(r * k + c)] +
             lattice.edges[static_cast<size_t>((r * k + previous) * k + c)];
    };
    for (int64_t c = 1; c < k; ++c) {
      if (score(c) > score(best)) best = c;
    }
    path.push_back(lattice.ids[static_cast<size_t>(r * k + best)]);
    previous = best;
  }
  return path;
}

// Rows of one stream for a step: where they stand, how many of them are drafts, from where they leave context.
struct Rows {
  int32_t slot = 0;
  std::span<const int32_t> tokens;
  int64_t position = 0;
  int32_t drafts = 0;
  int64_t context_from = 0;
};

// Slot i owns pages 1 + i·pages … of a stream.
inline Step text_step(std::span<const Rows> streams, int32_t pages) {
  Step step;
  for (const Rows& s : streams) {
    const auto rows = static_cast<int32_t>(s.tokens.size());
    step.segments.push_back({.slot = s.slot,
                             .page_table = static_cast<int32_t>(step.page_tables.size()),
                             .pages = pages,
                             .first_row = static_cast<int32_t>(step.tokens.size()),
                             .rows = rows,
                             .certain_rows = rows - s.drafts,
                             .position = s.position,
                             .context_from = s.context_from});
    step.tokens.insert(step.tokens.end(), s.tokens.begin(), s.tokens.end());
    for (int64_t i = 0; i < rows; ++i) step.positions.push_back(s.position + i);
    for (int32_t page = 0; page < pages; ++page) step.page_tables.push_back(1 + s.slot * pages + page);
  }
  return step;
}

struct Anchor {
  int32_t slot = 0, pending = 0;
  int64_t position = 0;
};

inline Step block_step(std::span<const Anchor> anchors) {
  Step step;
  step.kind = StepKind::dflash2;
  for (const Anchor& a : anchors) {
    step.segments.push_back({.slot = a.slot,
                             .first_row = static_cast<int32_t>(step.tokens.size()),
                             .rows = 1,
                             .certain_rows = 1,
                             .position = a.position});
    step.tokens.push_back(a.pending);
    step.positions.push_back(a.position);
  }
  return step;
}

// nano and a drafter that may differ from nano's in its shape (the window, say) but not in its tensors.
class DraftedNano {
 public:
  static constexpr int32_t pages = 16;

  explicit DraftedNano(const model::DrafterShape& drafter = nano_drafter().shape, int32_t slots = 1,
                       CacheType type = CacheType::f32, int32_t kept_states = 2, int threads = 2,
                       int32_t max_logit_rows = 32, Compute compute = Compute::f32)
      : drafter_(drafter),
        threads_(threads),
        text_(loaded("nano").shape, loaded("nano").weights, threads_,
              Capacity{.slots = slots,
                       .pages = 1 + slots * pages,
                       .max_stream_pages = pages,
                       .max_rows = 300,
                       .max_logit_rows = max_logit_rows,
                       .kept_states = kept_states,
                       .page_rows = 64,
                       .cache_type = type,
                       .compute = compute},
              Mutation::none, {&drafter_, &nano_drafter().weights}) {}

  // A prompt in chunks.
  void feed(std::span<const int32_t> ids, int64_t chunk = 300, int32_t slot = 0, int64_t context_from = 0,
            int64_t position = 0) {
    while (!ids.empty()) {
      const size_t rows = std::min(ids.size(), static_cast<size_t>(chunk));
      run({slot, ids.first(rows), position, 0, context_from});
      ids = ids.subspan(rows);
      position += static_cast<int64_t>(rows);
    }
  }
  void run(const Rows& rows) { text_.run(text_step({&rows, 1}, pages)); }
  Lattice block(const Anchor& anchor) { return blocks({&anchor, 1}).front(); }
  std::vector<Lattice> blocks(std::span<const Anchor> anchors) {
    text_.run(block_step(anchors));
    std::vector<Lattice> lattices;
    for (int64_t i = 0; i < std::ssize(anchors); ++i) lattices.push_back(lattice_of(text_.lattices(), i));
    return lattices;
  }
  TextModel& text() { return text_; }

 private:
  const model::DrafterShape drafter_;
  device::Threads threads_;
  TextModel text_;
};

// Tokens of a chat of 1,500 rows.
inline const std::vector<int32_t>& long_chat() {
  static const std::vector<int32_t> ids = golden_ids("nano", "case_T1500");
  return ids;
}

}  // namespace tandem::forward
