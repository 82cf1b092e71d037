// Two ranks, each with the whole drafter and half of the target's vocabulary, give the lattice bits of one.
#include "cluster/rank_group.h"
#include "forward/dflash2_test_streams.h"

namespace tandem::cluster::dflash2_ranks_test {
namespace {

using forward::Anchor;
using forward::block_step;
using forward::Lattice;
using forward::lattice_of;
using forward::nano_drafter;
using forward::Rows;
using forward::Step;

constexpr int32_t pages = 8;

// The step with the pages of two pools: entry j is a page of rank j mod 2's.
Step shared_pages_of(Step step) {
  for (int32_t& page : step.page_tables) page = 1 + (page - 1) / pages * pages / 2 + (page - 1) % pages / 2;
  return step;
}

std::vector<Lattice> lattices_of(GroupSize size, forward::CacheType type,
                                 forward::Compute compute = forward::Compute::f32) {
  const forward::DrafterModel drafter{&nano_drafter().shape, &nano_drafter().weights};
  const forward::Loaded& target = forward::loaded("nano");
  RankGroup group(target.shape, target.weights, size,
                  {.slots = 2,
                   .pages = 1 + 2 * pages,
                   .max_stream_pages = pages,
                   .max_rows = 200,
                   .max_logit_rows = 4,
                   .kept_states = 1,
                   .page_rows = 64,
                   .cache_type = type,
                   .compute = compute},
                  1, forward::Mutation::none, drafter);
  const auto run = [&](const Step& step) {
    group.run(size.decode_context_parallel_size == 2 ? shared_pages_of(step) : step);
  };
  const std::span<const int32_t> ids(forward::long_chat());
  const std::vector<Rows> prompts = {{0, ids.first(120), 0, 0, 0}, {1, ids.subspan(200, 50), 0, 0, 7}};
  run(forward::text_step(prompts, pages));
  const std::vector<Anchor> first = {{0, 11, 120}, {1, 12, 50}};
  std::vector<Lattice> lattices;
  const auto blocks = [&](std::span<const Anchor> anchors) {
    run(block_step(anchors));
    for (int64_t i = 0; i < std::ssize(anchors); ++i) lattices.push_back(lattice_of(group.lattices(), i));
  };
  blocks(first);
  const Rows drafts{0, ids.subspan(120, 16), 120, 15, 0};
  run(forward::text_step({&drafts, 1}, pages));
  Step moves;
  moves.keeps = {{0, 0, 125}};
  moves.restores = {{1, 0, 125}};
  run(moves);
  const std::vector<Anchor> second = {{0, 13, 125}, {1, 13, 125}};
  blocks(second);
  return lattices;
}

TEST(Dflash2Ranks, TwoRanksGiveTheLatticesOfOne) {
  for (const forward::CacheType type : {forward::CacheType::f32, forward::CacheType::bf16}) {
    const std::vector<Lattice> one = lattices_of({1, 1}, type);
    ASSERT_EQ(one.size(), 4u);
    EXPECT_EQ(one[2], one[3]) << "kept and restored";
    EXPECT_NE(one[0], one[2]);
    EXPECT_EQ(lattices_of({2, 1}, type), one);
    EXPECT_EQ(lattices_of({2, 2}, type), one);
  }
  constexpr auto bf16 = forward::CacheType::bf16;
  const std::vector<Lattice> rounded = lattices_of({1, 1}, bf16, forward::Compute::bf16);
  EXPECT_NE(rounded, lattices_of({1, 1}, bf16));
  EXPECT_EQ(lattices_of({2, 1}, bf16, forward::Compute::bf16), rounded);
}

TEST(Dflash2Ranks, EveryRankHasTheWholeDrafter) {
  const model::Shape& target = forward::loaded("nano").shape;
  const model::DrafterShape& drafter = nano_drafter().shape;
  const auto more = [&](GroupSize size) {
    return RankGroup::planned_bytes(target, size, {}, 1, &drafter) - RankGroup::planned_bytes(target, size, {}, 1);
  };
  EXPECT_EQ(more({2, 1}), 2 * more({1, 1}));
}

}  // namespace
}  // namespace tandem::cluster::dflash2_ranks_test
