// The feed-forward against spec/model.md 5 in double precision, and the order of its sums.
#include "ops/experts/experts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>
#include <vector>

#include "ops/linear/linear.h"
#include "ops/simd/kernels.h"
#include "ops/test_random.h"

namespace tandem::ops::experts_test {
namespace {

using test::Random;
using test::same_bits;

struct StoredMlp {
  test::StoredMatrix gate, up, down;
  Mlp view() const { return {gate.view, up.view, down.view}; }
};

StoredMlp random_mlp(Random& random, WeightFormat format, int64_t hidden, int64_t width, int64_t leaf = -1) {
  const float scale = 1.0f / std::sqrt(static_cast<float>(hidden));
  StoredMlp mlp;
  mlp.gate = test::random_matrix(random, format, width, hidden, {.scale = scale, .misaligned = 1});
  mlp.up = test::random_matrix(random, format, width, hidden, {.scale = scale});
  mlp.down = test::random_matrix(random, format, hidden, width, {.scale = scale, .leaf_columns = leaf});
  return mlp;
}

// One layer and the rows that go through it.
struct Layer {
  int64_t hidden = 0, width = 0, shared_width = 0, per_token = 0, rows = 0;
  float limit = 1.0f;
  std::vector<StoredMlp> routed;
  std::optional<StoredMlp> shared;
  std::vector<int32_t> chosen;
  std::vector<float> weights, x;

  int64_t experts() const { return static_cast<int64_t>(routed.size()); }
};

struct Sizes {
  WeightFormat format = WeightFormat::bf16;
  int64_t hidden = 40, width = 24, shared_width = 0, shared_leaf = 0, experts = 0, per_token = 0, rows = 1;
};

Layer make_layer(Random& random, const Sizes& s) {
  Layer layer;
  layer.hidden = s.hidden;
  layer.width = s.width;
  layer.shared_width = s.shared_width;
  layer.per_token = s.per_token;
  layer.rows = s.rows;
  for (int64_t e = 0; e < s.experts; ++e) layer.routed.push_back(random_mlp(random, s.format, s.hidden, s.width));
  if (s.shared_width > 0) layer.shared = random_mlp(random, s.format, s.hidden, s.shared_width, s.shared_leaf);
  for (int64_t r = 0; r < s.rows; ++r) {
    std::vector<int32_t> some;
    while (static_cast<int64_t>(some.size()) < s.per_token) {
      const auto e = static_cast<int32_t>(random.below(s.experts));
      if (std::find(some.begin(), some.end(), e) == some.end()) some.push_back(e);
    }
    std::sort(some.begin(), some.end());
    layer.chosen.insert(layer.chosen.end(), some.begin(), some.end());
  }
  layer.weights = random.uniforms(s.rows * s.per_token, 0.1f, 2.0f);
  layer.x = random.normals(s.rows * s.hidden, 2.0f);
  return layer;
}

// Rows [first, first + rows) as one call.
std::vector<float> run(device::Threads& threads, const Layer& layer, int64_t first, int64_t rows,
                       ExpertScratch* scratch = nullptr) {
  ExpertScratch own(rows, layer.hidden, layer.experts(), layer.per_token, layer.width, layer.shared_width);
  std::vector<Mlp> routed;
  for (const StoredMlp& mlp : layer.routed) routed.push_back(mlp.view());
  const Mlp shared = layer.shared ? layer.shared->view() : Mlp();
  std::vector<float> y = test::unwritten(rows * layer.hidden);
  Experts a;
  a.hidden = layer.hidden;
  a.swiglu_limit = layer.limit;
  a.routed = routed.empty() ? nullptr : routed.data();
  a.experts = a.routed_count = layer.experts();
  a.per_token = layer.per_token;
  a.chosen = layer.chosen.data() + first * layer.per_token;
  a.weights = layer.weights.data() + first * layer.per_token;
  a.shared = layer.shared ? &shared : nullptr;
  a.rows = rows;
  a.x = layer.x.data() + first * layer.hidden;
  a.y = y.data();
  a.scratch = scratch != nullptr ? scratch : &own;
  experts(threads, a);
  return y;
}

std::vector<double> mlp_double(const StoredMlp& mlp, const float* x, double limit, int* clamped) {
  const int64_t width = mlp.gate.view.out_features, hidden = mlp.gate.view.in_features;
  std::vector<double> activation, y;
  for (int64_t i = 0; i < width; ++i) {
    double gate = 0, up = 0;
    for (int64_t k = 0; k < hidden; ++k) gate += mlp.gate.at(i, k) * x[k], up += mlp.up.at(i, k) * x[k];
    *clamped += gate > limit && gate > 0 ? 1 : 0;
    *clamped += std::abs(up) > limit ? 1 : 0;
    activation.push_back(test::silu(std::min(gate, limit)) * std::clamp(up, -limit, limit));
  }
  for (int64_t o = 0; o < hidden; ++o) {
    double sum = 0;
    for (int64_t i = 0; i < width; ++i) sum += mlp.down.at(o, i) * activation[static_cast<size_t>(i)];
    y.push_back(sum);
  }
  return y;
}

std::vector<double> layer_double(const Layer& layer, int* clamped) {
  std::vector<double> out;
  for (int64_t r = 0; r < layer.rows; ++r) {
    const float* x = layer.x.data() + r * layer.hidden;
    std::vector<double> y(static_cast<size_t>(layer.hidden), 0.0);
    for (int64_t i = r * layer.per_token; i < (r + 1) * layer.per_token; ++i) {
      const auto at = static_cast<size_t>(i);
      const std::vector<double> e =
          mlp_double(layer.routed[static_cast<size_t>(layer.chosen[at])], x, layer.limit, clamped);
      for (size_t d = 0; d < y.size(); ++d) y[d] += layer.weights[at] * e[d];
    }
    if (layer.shared) {
      const std::vector<double> e = mlp_double(*layer.shared, x, layer.limit, clamped);
      for (size_t d = 0; d < y.size(); ++d) y[d] += e[d];
    }
    out.insert(out.end(), y.begin(), y.end());
  }
  return out;
}

constexpr Sizes shapes[] = {
    {.experts = 6, .per_token = 3, .rows = 1},                                         // routed only
    {.shared_width = 48, .shared_leaf = 48, .experts = 5, .per_token = 2, .rows = 7},  // shared expert, one leaf
    {.hidden = 33, .width = 35, .shared_width = 50, .shared_leaf = 21, .experts = 7, .per_token = 7, .rows = 9},
    {.hidden = 128, .width = 64, .shared_width = 256, .shared_leaf = 128, .experts = 12, .per_token = 2, .rows = 70},
    {.hidden = 70, .width = 0, .shared_width = 90, .shared_leaf = 90, .rows = 3},      // dense
    {.hidden = 130, .width = 0, .shared_width = 384, .shared_leaf = 256, .rows = 67},  // dense, two leaves
    {.experts = 9, .per_token = 1, .rows = 70},
};

TEST(Experts, AgainstDouble) {
  device::Threads threads(3);
  for (const WeightFormat format : {WeightFormat::bf16, WeightFormat::f32, WeightFormat::fp8_block}) {
    for (Sizes sizes : shapes) {
      sizes.format = format;
      Random random(static_cast<uint64_t>(sizes.hidden + sizes.rows));
      Layer layer = make_layer(random, sizes);
      for (const float limit : {1.0f, 10.0f}) {
        layer.limit = limit;
        int clamped = 0;
        const std::vector<double> expected = layer_double(layer, &clamped);
        EXPECT_TRUE(test::close(run(threads, layer, 0, layer.rows), expected, 2e-6))
            << sizes.hidden << " " << sizes.rows;
        if (limit == 1.0f) {
          EXPECT_GT(clamped, layer.rows * 5) << "the clamp must bind for this test to see it";
        }
      }
    }
  }
}

// Experts ascending into the leaf that owns them (the first half, rounded up, is leaf 0), one fma each; then the shared
// expert's part of that leaf; then leaf 0 + leaf 1, where an empty leaf is skipped.
std::vector<float> in_written_order(const Layer& layer, int64_t row) {
  device::Threads one(1);
  const float* x = layer.x.data() + row * layer.hidden;
  const auto activation = [&](const StoredMlp& mlp) {
    const int64_t width = mlp.gate.view.out_features;
    std::vector<float> gate(static_cast<size_t>(width)), up = gate;
    linear(one, mlp.gate.view, x, gate.data(), 1);
    linear(one, mlp.up.view, x, up.data(), 1);
    kernels().clamped_swiglu(gate.data(), up.data(), layer.limit, width, gate.data());
    return gate;
  };
  std::vector<float> leaves[2];
  for (int64_t i = row * layer.per_token; i < (row + 1) * layer.per_token; ++i) {
    const int32_t e = layer.chosen[static_cast<size_t>(i)];
    const StoredMlp& mlp = layer.routed[static_cast<size_t>(e)];
    std::vector<float> y(static_cast<size_t>(layer.hidden));
    linear(one, mlp.down.view, activation(mlp).data(), y.data(), 1);
    std::vector<float>& leaf = leaves[e < (layer.experts() + 1) / 2 ? 0 : 1];
    leaf.resize(y.size(), 0.0f);
    for (size_t d = 0; d < y.size(); ++d) leaf[d] = std::fma(layer.weights[static_cast<size_t>(i)], y[d], leaf[d]);
  }
  if (layer.shared) {
    const Matrix& down = layer.shared->down.view;
    const std::vector<float> a = activation(*layer.shared);
    for (int64_t which = 0; which < 2; ++which) {
      const int64_t begin = which == 0 ? 0 : down.leaf_columns, end = which == 0 ? down.leaf_columns : down.in_features;
      if (begin == end) continue;
      std::vector<float> y(static_cast<size_t>(layer.hidden));
      kernels().matmul({&down, 0, layer.hidden, begin, end, a.data(), down.in_features, 1, y.data(), layer.hidden});
      std::vector<float>& leaf = leaves[which];
      for (size_t d = 0; d < y.size() && !leaf.empty(); ++d) y[d] = leaf[d] + y[d];
      leaf = y;
    }
  }
  if (leaves[0].empty() || leaves[1].empty()) return leaves[leaves[0].empty() ? 1 : 0];
  for (size_t d = 0; d < leaves[0].size(); ++d) leaves[0][d] += leaves[1][d];
  return leaves[0];
}

TEST(Experts, SumsInTheWrittenOrder) {
  device::Threads threads(3);
  for (const Sizes& sizes : shapes) {
    Random random(static_cast<uint64_t>(100 + sizes.hidden + sizes.rows));
    Layer layer = make_layer(random, sizes);
    if (sizes.experts >= 5 && sizes.per_token == 2) {  // rows whose routed experts are all in one leaf
      layer.chosen[0] = 0, layer.chosen[1] = 1;
      layer.chosen[2] = static_cast<int32_t>(sizes.experts) - 2,
      layer.chosen[3] = static_cast<int32_t>(sizes.experts) - 1;
    }
    const std::vector<float> y = run(threads, layer, 0, layer.rows);
    for (int64_t r = 0; r < layer.rows; ++r) {
      ASSERT_TRUE(same_bits(y.data() + r * layer.hidden, in_written_order(layer, r).data(), layer.hidden))
          << sizes.hidden << " row " << r;
    }
  }
}

// Sizes that NVFP4 and EXL3 can be cut at; EXL3 pads the widths that are no multiple of 128.
const Sizes coded_shapes[] = {
    {.hidden = 160, .width = 48, .shared_width = 256, .shared_leaf = 128, .experts = 5, .per_token = 2, .rows = 7},
    {.hidden = 128, .width = 0, .shared_width = 384, .shared_leaf = 256, .rows = 67},
};

TEST(Experts, CodedFormatsAgainstDouble) {
  device::Threads threads(3);
  for (const WeightFormat format : {WeightFormat::nvfp4, WeightFormat::exl3}) {
    for (Sizes sizes : coded_shapes) {
      sizes.format = format;
      Random random(static_cast<uint64_t>(300 + sizes.hidden));
      Layer layer = make_layer(random, sizes);
      layer.limit = 10.0f;
      int clamped = 0;
      EXPECT_TRUE(test::close(run(threads, layer, 0, layer.rows), layer_double(layer, &clamped), 1e-5))
          << static_cast<int>(format) << " " << sizes.hidden;
    }
  }
}

TEST(Experts, BitsDoNotDependOnTheOtherRowsAndThreads) {
  device::Threads one(1), three(3);
  for (const WeightFormat format :
       {WeightFormat::bf16, WeightFormat::fp8_block, WeightFormat::nvfp4, WeightFormat::exl3}) {
    const bool coded = format == WeightFormat::nvfp4 || format == WeightFormat::exl3;
    for (Sizes sizes : coded ? std::span<const Sizes>(coded_shapes) : std::span<const Sizes>(shapes)) {
      sizes.format = format;
      sizes.rows = 70;
      Random random(static_cast<uint64_t>(200 + sizes.hidden));
      const Layer layer = make_layer(random, sizes);
      const std::vector<float> all = run(three, layer, 0, layer.rows);
      ASSERT_TRUE(same_bits(run(one, layer, 0, layer.rows), all));
      for (int64_t rows = 1; rows < 70; rows = rows < 5 ? rows + 1 : 2 * rows + 1) {
        const int64_t first = random.below(70 - rows);
        ASSERT_TRUE(
            same_bits(run(three, layer, first, rows).data(), all.data() + first * layer.hidden, rows * layer.hidden))
            << sizes.hidden << ": " << rows << " rows at " << first;
      }
    }
  }
}

// The router may send every row to one expert, and most experts get none.
TEST(Experts, OneBusyExpert) {
  device::Threads threads(3);
  Random random(5);
  Layer layer = make_layer(random, {.shared_width = 32, .shared_leaf = 16, .experts = 10, .per_token = 2, .rows = 68});
  for (int64_t r = 0; r < layer.rows; ++r) {
    layer.chosen[static_cast<size_t>(2 * r)] = 3;
    layer.chosen[static_cast<size_t>(2 * r + 1)] = 9;
  }
  int clamped = 0;
  EXPECT_TRUE(test::close(run(threads, layer, 0, layer.rows), layer_double(layer, &clamped), 2e-6));
}

// Scratch is allocated once for the largest step and used again by smaller and larger ones.
TEST(Experts, ScratchIsUsedAgain) {
  device::Threads threads(2);
  Random random(6);
  const Layer layer =
      make_layer(random, {.shared_width = 48, .shared_leaf = 24, .experts = 6, .per_token = 3, .rows = 40});
  ExpertScratch scratch(40, layer.hidden, 6, 3, layer.width, layer.shared_width);
  const std::vector<float> all = run(threads, layer, 0, 40);
  for (const int64_t rows : {40, 1, 17, 3, 40}) {
    EXPECT_TRUE(same_bits(run(threads, layer, 0, rows, &scratch).data(), all.data(), rows * layer.hidden)) << rows;
  }
}

// As two ranks do it: each has its half of the experts and its columns of the shared expert, and the caller adds the
// leaves that a row has.
std::vector<float> run_by_leaves(device::Threads& threads, const Layer& layer) {
  const int64_t border = (layer.experts() + 1) / 2, hidden = layer.hidden;
  std::vector<float> leaves[2];
  bool shared_has[2] = {};
  for (int64_t leaf = 0; leaf < 2; ++leaf) {
    std::vector<Mlp> routed;
    for (int64_t e = leaf * border; e < (leaf == 0 ? border : layer.experts()); ++e)
      routed.push_back(layer.routed[static_cast<size_t>(e)].view());
    Mlp shared;
    if (layer.shared) {
      const Mlp whole = layer.shared->view();
      const int64_t first = leaf * whole.down.leaf_columns;
      const int64_t count = leaf == 0 ? whole.down.leaf_columns : layer.shared_width - first;
      shared = {rows_of(whole.gate, first, count), rows_of(whole.up, first, count),
                columns_of(whole.down, first, count)};
      shared_has[leaf] = count > 0;
    }
    ExpertScratch scratch(layer.rows, hidden, layer.experts(), layer.per_token, layer.width, layer.shared_width);
    leaves[leaf] = test::unwritten(layer.rows * hidden);
    Experts a;
    a.hidden = hidden;
    a.swiglu_limit = layer.limit;
    a.routed = routed.data();
    a.experts = layer.experts();
    a.per_token = layer.per_token;
    a.first_routed = leaf * border;
    a.routed_count = std::ssize(routed);
    a.chosen = layer.chosen.data();
    a.weights = layer.weights.data();
    a.shared = shared_has[leaf] ? &shared : nullptr;
    a.rows = layer.rows;
    a.x = layer.x.data();
    a.y = leaves[leaf].data();
    a.scratch = &scratch;
    experts_leaf(threads, a, leaf);
  }
  std::vector<float> y;
  for (int64_t r = 0; r < layer.rows; ++r) {
    const auto has = [&](int64_t leaf) {
      return has_leaf(layer.chosen.data() + r * layer.per_token, layer.per_token, layer.experts(), shared_has[leaf],
                      leaf);
    };
    for (int64_t d = r * hidden; d < (r + 1) * hidden; ++d) {
      const float values[2] = {leaves[0][static_cast<size_t>(d)], leaves[1][static_cast<size_t>(d)]};
      EXPECT_EQ(std::isnan(values[0]), !has(0));
      EXPECT_EQ(std::isnan(values[1]), !has(1));
      y.push_back(has(0) && has(1) ? values[0] + values[1] : values[has(0) ? 0 : 1]);
    }
  }
  return y;
}

TEST(Experts, LeavesApartGiveTheSameBits) {
  device::Threads threads(3);
  for (const WeightFormat format : {WeightFormat::bf16, WeightFormat::fp8_block}) {
    for (Sizes sizes : shapes) {
      sizes.format = format;
      Random random(static_cast<uint64_t>(300 + sizes.hidden + sizes.rows));
      const Layer layer = make_layer(random, sizes);
      EXPECT_TRUE(same_bits(run_by_leaves(threads, layer), run(threads, layer, 0, layer.rows))) << sizes.hidden;
    }
  }
  Random random(7);
  const Layer one = make_layer(random, {.experts = 1, .per_token = 1, .rows = 3});  // rank 1 has nothing at all
  EXPECT_TRUE(same_bits(run_by_leaves(threads, one), run(threads, one, 0, 3)));
}

TEST(Experts, BytesAreThoseOfTheArrays) {
  // 4 bytes a number: packed x and output [rows·k, hidden], two activations [rows·k, width], two index lists
  // [rows·k]; shared: two activations [rows, shared width], two leaves [rows, hidden]; two lists [experts + 1].
  EXPECT_EQ(ExpertScratch::bytes(10, 96, 6, 3, 32, 64), 4 * (30 * (2 * 96 + 2 * 32 + 2) + 10 * 2 * (64 + 96) + 14));
  EXPECT_EQ(ExpertScratch::bytes(10, 96, 0, 0, 0, 64), 4 * (10 * 2 * (64 + 96) + 2));
}

}  // namespace
}  // namespace tandem::ops::experts_test
