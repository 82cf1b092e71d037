// Feed-forward layers on the CPU.
#include <algorithm>

#include "ops/divide_up.h"
#include "ops/experts/experts.h"
#include "ops/linear/multiply.h"
#include "ops/row_tasks.h"

namespace tandem::ops {
namespace {

constexpr int64_t width_piece = 32;   // hidden activations of a task
constexpr int64_t output_piece = 64;  // outputs of a task
constexpr int64_t rows_of_task = 8;   // of sums over experts

int64_t leaf_of(int32_t expert, int64_t experts) { return expert >= (experts + 1) / 2 ? 1 : 0; }

}  // namespace

ExpertScratch::ExpertScratch(int64_t max_rows, int64_t hidden, int64_t experts, int64_t per_token, int64_t width,
                             int64_t shared_width) {
  const auto size = [](int64_t n) { return static_cast<size_t>(n); };
  const int64_t routed_rows = experts > 0 ? max_rows * per_token : 0;
  packed_x_.resize(size(routed_rows * hidden));
  activation_.resize(size(routed_rows * width));
  up_.resize(size(routed_rows * width));
  output_.resize(size(routed_rows * hidden));
  shared_activation_.resize(size(max_rows * shared_width));
  shared_up_.resize(size(max_rows * shared_width));
  shared_output_.resize(size(2 * max_rows * hidden));
  first_.resize(size(experts + 1));
  fill_.resize(size(experts + 1));
  row_of_.resize(size(routed_rows));
  place_of_.resize(size(routed_rows));
}

int64_t ExpertScratch::bytes(int64_t max_rows, int64_t hidden, int64_t experts, int64_t per_token, int64_t width,
                             int64_t shared_width) {
  const int64_t routed_rows = experts > 0 ? max_rows * per_token : 0;
  return 4 * (routed_rows * (2 * hidden + 2 * width + 2) + max_rows * 2 * (shared_width + hidden) + 2 * (experts + 1));
}

// One call of experts(): rows are packed by expert, every expert runs once over its rows.
struct ExpertRun {
  device::Threads& threads;
  const Experts& a;
  ExpertScratch& s = *a.scratch;
  bool one_leaf = false;  // only one leaf is here: the shared expert's sum is not cut
  int64_t active = 0;     // experts with rows, counted from first_routed, in s.fill_[0 … active)

  void pack() {
    const int64_t here = a.routed_count;
    std::fill_n(s.first_.begin(), here + 1, 0);
    const int64_t places = a.rows * a.per_token;
    const auto expert = [this](int64_t i) { return a.chosen[i] - a.first_routed; };
    const auto is_here = [&](int64_t i) { return expert(i) >= 0 && expert(i) < here; };
    for (int64_t i = 0; i < places; ++i) {
      if (is_here(i)) ++s.first_[static_cast<size_t>(expert(i)) + 1];
    }
    for (int64_t e = 0; e < here; ++e) s.first_[static_cast<size_t>(e) + 1] += s.first_[static_cast<size_t>(e)];
    std::copy_n(s.first_.begin(), here + 1, s.fill_.begin());
    for (int64_t i = 0; i < places; ++i) {
      if (!is_here(i)) continue;
      const int32_t place = s.fill_[static_cast<size_t>(expert(i))]++;
      s.place_of_[static_cast<size_t>(i)] = place;
      s.row_of_[static_cast<size_t>(place)] = static_cast<int32_t>(i / a.per_token);
    }
    for (int64_t e = 0; e < here; ++e) {
      if (s.first_[static_cast<size_t>(e)] < s.first_[static_cast<size_t>(e) + 1])
        s.fill_[static_cast<size_t>(active++)] = static_cast<int32_t>(e);
    }
    for (int64_t place = 0; place < s.first_[static_cast<size_t>(here)]; ++place) {
      std::copy_n(a.x + s.row_of_[static_cast<size_t>(place)] * a.hidden, a.hidden,
                  s.packed_x_.begin() + place * a.hidden);
    }
  }

  // A group of rows that share an MLP: routed experts first, the shared one last.
  struct Group {
    const Mlp* mlp;
    const float* x;
    float *activation, *up, *output;
    int64_t rows;
    bool leaves;  // write the two leaves of down apart
  };
  int64_t groups() const { return active + (a.shared != nullptr ? 1 : 0); }
  Group group(int64_t i) const {
    if (i == active) {
      return {a.shared, a.x, s.shared_activation_.data(), s.shared_up_.data(), s.shared_output_.data(), a.rows, true};
    }
    const int64_t e = s.fill_[static_cast<size_t>(i)], first = s.first_[static_cast<size_t>(e)];
    const int64_t width = a.routed[e].gate.out_features;
    return {a.routed + e,
            s.packed_x_.data() + first * a.hidden,
            s.activation_.data() + first * width,
            s.up_.data() + first * width,
            s.output_.data() + first * a.hidden,
            s.first_[static_cast<size_t>(e) + 1] - first,
            false};
  }

  // How the outputs of a group are cut into tasks.
  struct Pieces {
    int64_t outputs, piece;
  };

  // Runs task(group, first output, piece, first row, rows) for all groups, their pieces and tiles of rows.
  template <typename PiecesOf, typename Task>
  void for_tiles(const PiecesOf& pieces_of, const Task& task) {
    int64_t total = 0;
    for (int64_t i = 0; i < groups(); ++i) total += tasks_of(i, pieces_of);
    threads.run(total, [&](int64_t index) {
      int64_t i = 0;
      while (index >= tasks_of(i, pieces_of)) index -= tasks_of(i++, pieces_of);
      const Group g = group(i);
      const int64_t tiles = divide_up(g.rows, max_tile_rows), piece = pieces_of(g).piece;
      const int64_t row = index % tiles * max_tile_rows;
      task(g, index / tiles * piece, piece, row, std::min(max_tile_rows, g.rows - row));
    });
  }
  template <typename PiecesOf>
  int64_t tasks_of(int64_t i, const PiecesOf& pieces_of) const {
    const Group g = group(i);
    const Pieces pieces = pieces_of(g);
    return divide_up(pieces.outputs, pieces.piece) * divide_up(g.rows, max_tile_rows);
  }

  static MatmulTile tile(const Matrix& w, const float* x, float* y, int64_t first_output, int64_t piece, int64_t row,
                         int64_t rows) {
    MatmulTile t;
    t.w = &w;
    t.first_output = first_output;
    t.last_output = std::min(first_output + piece, w.out_features);
    t.last_column = w.in_features;
    t.x = x + row * w.in_features;
    t.x_stride = w.in_features;
    t.rows = rows;
    t.y = y + row * w.out_features;
    t.y_stride = w.out_features;
    return t;
  }

  void gate_and_up() {
    for_tiles(
        [](const Group& g) {
          const int64_t unit = std::max(output_unit(g.mlp->gate), output_unit(g.mlp->up));
          return Pieces{g.mlp->gate.out_features, std::max(width_piece, unit)};
        },
        [&](const Group& g, int64_t first, int64_t piece, int64_t row, int64_t rows) {
          const MatmulTile gate = tile(g.mlp->gate, g.x, g.activation, first, piece, row, rows);
          const MatmulTile up = tile(g.mlp->up, g.x, g.up, first, piece, row, rows);
          multiply(gate);
          multiply(up);
          for (int64_t r = 0; r < rows; ++r) {
            float* y = gate.y + r * gate.y_stride + first;
            const int64_t n = gate.last_output - first;
            kernels().clamped_swiglu(y, up.y + r * up.y_stride + first, a.swiglu_limit, n, y);
            round_values(a.compute, RoundingPoint::activation, y, n);
          }
        });
  }

  void down() {
    for_tiles(
        [](const Group& g) {
          return Pieces{g.mlp->down.out_features, std::max(output_piece, output_unit(g.mlp->down))};
        },
        [&](const Group& g, int64_t first, int64_t piece, int64_t row, int64_t rows) {
          MatmulTile t = tile(g.mlp->down, g.activation, g.output, first, piece, row, rows);
          if (!g.leaves) return multiply(t);
          t.last_column = g.mlp->down.leaf_columns;
          multiply(t);
          if (g.mlp->down.leaf_columns == g.mlp->down.in_features) return;
          t.first_column = g.mlp->down.leaf_columns;
          t.last_column = g.mlp->down.in_features;
          t.y += a.rows * a.hidden;
          multiply(t);
        });
  }

  // One leaf of one row into y; false if the leaf is empty.
  bool leaf(int64_t row, int64_t which, float* y) const {
    const Kernels& k = kernels();
    bool any = false;
    for (int64_t i = row * a.per_token; i < (row + 1) * a.per_token; ++i) {
      if (leaf_of(a.chosen[i], a.experts) != which) continue;
      if (!any) std::fill_n(y, a.hidden, 0.0f);
      any = true;
      k.accumulate(a.weights[i], s.output_.data() + s.place_of_[static_cast<size_t>(i)] * a.hidden, a.hidden, y);
    }
    const int64_t part = one_leaf ? 0 : which;  // of the shared expert's outputs
    if (a.shared == nullptr || (part == 1 && a.shared->down.leaf_columns == a.shared->down.in_features)) return any;
    const float* shared = s.shared_output_.data() + (part * a.rows + row) * a.hidden;
    if (any) {
      k.add(y, shared, a.hidden, y);
    } else {
      std::copy_n(shared, a.hidden, y);
    }
    return true;
  }

  void combine() {
    for_rows(threads, a.rows, rows_of_task, [&](int64_t row) {
      float* y = a.y + row * a.hidden;
      // The shared expert's leaf-0 rows are free once leaf 0 has been summed: they hold leaf 1.
      float* second = s.shared_output_.data() + row * a.hidden;
      const bool has0 = leaf(row, 0, y);
      const bool has1 = leaf(row, 1, has0 ? second : y);
      if (has0 && has1) kernels().add(y, second, a.hidden, y);
      if (!has0 && !has1) std::fill_n(y, a.hidden, 0.0f);
      round_values(a.compute, RoundingPoint::feed_forward, y, a.hidden);
    });
  }
};

void experts(device::Threads& threads, const Experts& args) {
  ExpertRun run{threads, args};
  if (args.experts > 0) run.pack();
  run.gate_and_up();
  run.down();
  run.combine();
}

void experts_leaf(device::Threads& threads, const Experts& args, int64_t leaf) {
  ExpertRun run{threads, args};
  run.one_leaf = true;
  if (args.experts > 0) run.pack();
  run.gate_and_up();
  run.down();
  for_rows(threads, args.rows, rows_of_task, [&](int64_t row) { run.leaf(row, leaf, args.y + row * args.hidden); });
}

bool has_leaf(const int32_t* chosen, int64_t per_token, int64_t experts, bool shared_has_leaf, int64_t leaf) {
  return shared_has_leaf ||
         std::any_of(chosen, chosen + per_token, [&](int32_t expert) { return leaf_of(expert, experts) == leaf; });
}

}  // namespace tandem::ops
