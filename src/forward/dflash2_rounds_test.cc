// Blocks over the life of a stream: windows, wraps, drafts that are dropped, kept states, several streams at a time.
#include "base/error.h"
#include "forward/dflash2_transcription.h"

namespace tandem::forward::dflash2_rounds_test {
namespace {

model::DrafterShape with_window(int64_t window) {
  model::DrafterShape shape = nano_drafter().shape;
  shape.sliding_window = window;
  return shape;
}

std::span<const int32_t> chat(int64_t first, int64_t rows) {
  return std::span(long_chat()).subspan(static_cast<size_t>(first), static_cast<size_t>(rows));
}

Anchor anchor_at(int64_t position, int32_t slot = 0) {
  return {slot, long_chat()[static_cast<size_t>(position)], position};
}

void expect_close(const Lattice& found, const Transcription::Result& expected) {
  const auto difference = [](const std::vector<float>& a, const Values& b) {
    EXPECT_EQ(a.size(), b.size());
    double worst = 0, largest = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      worst = std::max(worst, std::abs(a[i] - b[i]));
      largest = std::max(largest, std::abs(b[i]));
    }
    return worst / largest;
  };
  EXPECT_EQ(found.ids, expected.ids);
  EXPECT_LT(difference(found.unary, expected.unary), 2e-5);
  EXPECT_LT(difference(found.edges, expected.edges), 2e-5);
}

// A window of 20 in a ring of 35 rows that wraps several times: each block sees the rows of 1.5 and no others. One row
// more or less at the edge would be seen: the last of the tests below asks for it.
TEST(Dflash2Rounds, WindowEdgeAndRingWrapFollowTheFormulas) {
  const model::DrafterShape shape = with_window(20);
  DraftedNano nano(shape);
  TapRecorder taps(shape);
  const Transcription slow(shape, nano_drafter().weights, taps);
  for (int64_t position = 0; position < 130; position += 13) {
    const Rows rows{0, chat(position, 13), position};
    taps.begin(position);
    nano.text().run(text_step({&rows, 1}, DraftedNano::pages), &taps);
    if (position % 39 != 0) continue;
    SCOPED_TRACE(position);
    expect_close(nano.block(anchor_at(position + 13)), slow.block(anchor_at(position + 13)));
  }
}

TEST(Dflash2Rounds, OneRowMoreOrLessAtTheEdgeIsAnotherLattice) {
  std::vector<Lattice> lattices;
  for (const int64_t window : {19, 20, 21}) {
    DraftedNano nano(with_window(window));
    nano.feed(chat(0, 60));
    lattices.push_back(nano.block(anchor_at(60)));
  }
  EXPECT_NE(lattices[0].unary, lattices[1].unary);
  EXPECT_NE(lattices[1].unary, lattices[2].unary);
}

TEST(Dflash2Rounds, WithoutContextAndWithSomeOfIt) {
  const model::DrafterShape& shape = nano_drafter().shape;
  TapRecorder taps(shape);
  const Transcription slow(shape, nano_drafter().weights, taps);
  for (const int64_t from : {int64_t{0}, int64_t{22}, int64_t{25}, int64_t{1000}}) {
    SCOPED_TRACE(from);
    DraftedNano nano;
    const Rows rows{0, chat(0, 25), 0, 0, from};
    taps.begin(0);
    nano.text().run(text_step({&rows, 1}, DraftedNano::pages), &taps);
    expect_close(nano.block(anchor_at(25)), slow.block(anchor_at(25), std::min<int64_t>(from, 25)));
  }
}

// spec/speculation.md 8, 2: base tap 0 = 1, everything else 0.
TEST(Dflash2Rounds, IdentityConvolutionsArePlainDFlash) {
  model::DrafterWeights weights = nano_drafter().weights;
  const std::vector<std::byte> zeros(64 * 256 * 2);
  for (model::DrafterLayer& layer : weights.layers) {
    for (model::DrafterConvolution* conv : {&layer.attention_conv, &layer.mlp_conv}) {
      for (size_t i = 0; i < conv->base_kernel.size(); ++i) conv->base_kernel[i] = i / 256 % 2 == 0 ? 1.0f : 0.0f;
      conv->kernel_projection.data = zeros.data();
    }
  }
  const model::DrafterShape& shape = nano_drafter().shape;
  device::Threads threads(2);
  TextModel text(loaded("nano").shape, loaded("nano").weights, threads, {.pages = 9, .max_rows = 64}, Mutation::none,
                 {&shape, &weights});
  TapRecorder taps(shape);
  taps.begin(0);
  text.run(single_stream_step(chat(0, 30), 0, 1), &taps);
  const Anchor anchor = anchor_at(30);
  text.run(block_step({&anchor, 1}));
  expect_close(lattice_of(text.lattices(), 0), Transcription(shape, weights, taps, true).block(anchor));
}

TEST(Dflash2Rounds, CutsOfThePromptAndThreadsDoNotMatter) {
  const model::DrafterShape shape = with_window(64);
  DraftedNano whole(shape);
  whole.feed(chat(0, 130), 130);
  const Lattice expected = whole.block(anchor_at(130));
  for (const int64_t chunk : {1, 17, 100}) {
    DraftedNano cut(shape, 1, CacheType::f32, 2, chunk == 17 ? 1 : 3);
    cut.feed(chat(0, 130), chunk);
    EXPECT_EQ(cut.block(anchor_at(130)), expected) << chunk;
  }
  EXPECT_EQ(whole.block(anchor_at(130)), expected) << "a block leaves nothing behind";
}

TEST(Dflash2Rounds, OnlyTheLastRowsOfThePromptMustBeCaptured) {
  for (const CacheType type : {CacheType::f32, CacheType::bf16}) {
    DraftedNano all(with_window(40), 1, type), last(with_window(40), 1, type), fewer(with_window(40), 1, type);
    all.feed(chat(0, 200), 70);
    last.feed(chat(0, 200), 70, 0, 200 - 39);
    fewer.feed(chat(0, 200), 70, 0, 200 - 38);
    const Lattice expected = all.block(anchor_at(200));
    EXPECT_EQ(last.block(anchor_at(200)), expected);
    EXPECT_NE(fewer.block(anchor_at(200)), expected);
  }
}

TEST(Dflash2Rounds, SeveralBlocksEqualEachAlone) {
  const std::vector<int64_t> lengths = {150, 3, 61};
  const auto three = [&](int32_t max_logit_rows) {
    DraftedNano nano(with_window(50), 3, CacheType::f32, 2, 2, max_logit_rows);
    for (int32_t slot = 0; slot < 3; ++slot) nano.feed(chat(slot * 200, lengths[static_cast<size_t>(slot)]), 40, slot);
    const std::vector<Anchor> anchors = {{2, 77, 61}, {0, 78, 150}, {1, 79, 3}};
    return nano.blocks(anchors);
  };
  const std::vector<Lattice> together = three(32);
  EXPECT_EQ(three(5), together) << "the head takes rows in other pieces";
  for (const auto& [at, slot] : {std::pair{0, 2}, {1, 0}, {2, 1}}) {
    DraftedNano alone(with_window(50));
    alone.feed(chat(slot * 200, lengths[static_cast<size_t>(slot)]), 40);
    const Anchor anchor{0, 77 + at, lengths[static_cast<size_t>(slot)]};
    EXPECT_EQ(alone.block(anchor), together[static_cast<size_t>(at)]) << slot;
  }
}

// Text steps of several streams at a time leave the context that each alone leaves.
TEST(Dflash2Rounds, RowsOfSeveralStreamsInOneStep) {
  DraftedNano both(with_window(30), 2);
  const std::vector<Rows> rows = {{1, chat(0, 40), 0, 0, 0}, {0, chat(100, 25), 0, 0, 5}};
  both.text().run(text_step(rows, DraftedNano::pages));
  const std::vector<Rows> more = {{0, chat(125, 16), 25, 15, 0}, {1, chat(40, 3), 40, 2, 0}};
  both.text().run(text_step(more, DraftedNano::pages));
  const std::vector<Anchor> anchors = {{0, 9, 30}, {1, 10, 42}};
  const std::vector<Lattice> together = both.blocks(anchors);
  DraftedNano first(with_window(30)), second(with_window(30));
  first.feed(chat(100, 25), 25, 0, 5);
  first.feed(chat(125, 5), 5, 0, 0, 25);
  EXPECT_EQ(first.block({0, 9, 30}), together[0]);
  second.feed(chat(0, 42));
  EXPECT_EQ(second.block({0, 10, 42}), together[1]);
}

// 15 wrong drafts in every round, at every number of kept ones, over the ring's end and block ends.
TEST(Dflash2Rounds, RejectedRowsLeaveNoTrace) {
  DraftedNano drafted(with_window(24)), serial(with_window(24));
  drafted.feed(chat(0, 50));
  serial.feed(chat(0, 50));
  int64_t length = 50;
  for (int64_t round = 0; round < 16; ++round) {
    std::vector<int32_t> window(chat(length, round + 1).begin(), chat(length, round + 1).end());  // these are kept
    while (window.size() < 16) window.push_back(static_cast<int32_t>(1000 + round * 16 + std::ssize(window)));
    drafted.run({0, window, length, 15});
    serial.run({0, chat(length, round + 1), length});
    length += round + 1;
    ASSERT_EQ(drafted.block(anchor_at(length)), serial.block(anchor_at(length))) << round;
  }
}

TEST(Dflash2Rounds, ResumedFromAKeptStateEqualsCold) {
  for (const CacheType type : {CacheType::f32, CacheType::bf16}) {
    const model::DrafterShape shape = with_window(40);
    DraftedNano cold(shape, 1, type);
    cold.feed(chat(0, 100));
    const Lattice at_100 = cold.block(anchor_at(100));
    cold.feed(chat(100, 30), 30, 0, 0, 100);
    const Lattice at_130 = cold.block(anchor_at(130));

    DraftedNano again(shape, 2, type);
    again.feed(chat(0, 100));
    Step moves;
    moves.keeps = {{0, 1, 100}};
    again.text().run(moves);
    again.feed(chat(200, 90), 45, 0, 0, 100);  // the slot goes on elsewhere
    again.feed(chat(500, 70), 70, 1);          // and the other one holds another stream
    Step restore;
    restore.restores = {{1, 1, 100}};
    again.text().run(restore);
    EXPECT_EQ(again.block(anchor_at(100, 1)), at_100);
    // The restored slot needs its pages: those of slot 0, whose first 100 rows are still the prompt's.
    const Rows rows{1, chat(100, 30), 100};
    Step step = text_step({&rows, 1}, DraftedNano::pages);
    for (int32_t& page : step.page_tables) page -= DraftedNano::pages;
    again.text().run(step);
    EXPECT_EQ(again.block(anchor_at(130, 1)), at_130);
  }
}

TEST(Dflash2Rounds, ResultsAreOfTheLastRun) {
  DraftedNano nano;
  nano.feed(chat(0, 20));
  EXPECT_EQ(nano.text().lattices().streams, 0);
  nano.block(anchor_at(20));
  const DraftLattices lattices = nano.text().lattices();
  EXPECT_EQ(lattices.streams, 1);
  EXPECT_EQ(lattices.rows, 7);
  EXPECT_EQ(lattices.top_k, 16);
  EXPECT_EQ(lattices.edges.size(), 7u * 16 * 16);
  EXPECT_TRUE(nano.text().logits().empty());
  nano.feed(chat(20, 1), 1, 0, 0, 20);
  EXPECT_EQ(nano.text().lattices().streams, 0);
}

TEST(Dflash2Rounds, StepsThatBreakTheRules) {
  DraftedNano nano(nano_drafter().shape, 2);
  nano.feed(chat(0, 20));
  nano.run({0, chat(20, 8), 20, 7});
  const Anchor good{0, 5, 24};
  const auto refused = [&](auto change) {
    Step step = block_step({&good, 1});
    change(step);
    EXPECT_THROW(nano.text().run(step), Error);
  };
  refused([](Step& s) { s.tokens[0] = 2048; });
  refused([](Step& s) { s.tokens[0] = -1; });
  refused([](Step& s) { s.positions[0] = s.segments[0].position = 20; });  // below what is certain
  refused([](Step& s) { s.positions[0] = s.segments[0].position = 29; });  // beyond the end
  refused([](Step& s) { s.positions[0] = 25; });
  refused([](Step& s) { s.segments[0].slot = 2; });
  refused([](Step& s) { s.segments[0].slot = -1; });
  refused([](Step& s) { s.segments[0].rows = 2; });
  refused([](Step& s) { s.segments.push_back(s.segments[0]); });
  refused([](Step& s) { s.logit_rows = {0}; });
  refused([](Step& s) { s.head_slots = {0}; });
  refused([](Step& s) { s.keeps = {{0, 0, 24}}; });
  refused([](Step& s) { s = Step{}, s.kind = StepKind::dflash2; });
  const std::vector<Anchor> twice = {good, good};
  EXPECT_THROW(nano.text().run(block_step(twice)), Error);
  EXPECT_NO_THROW(nano.block({0, 5, 21}));
  EXPECT_NO_THROW(nano.block({0, 5, 28}));

  device::Threads threads(1);
  TextModel without(loaded("nano").shape, loaded("nano").weights, threads, {});
  without.run(single_stream_step(chat(0, 20), 0, 1));
  EXPECT_THROW(without.run(block_step({&good, 1})), Error);
}

TEST(Dflash2Rounds, ADrafterThatDoesNotFitIsRefused) {
  model::DrafterShape shape = nano_drafter().shape;
  shape.target_layer_ids = {1, 3, 8};
  EXPECT_THROW(DraftedNano nano(shape), Error);
  device::Threads threads(1);
  EXPECT_THROW(TextModel(loaded("tinyA").shape, loaded("tinyA").weights, threads, {}, Mutation::none,
                         {&nano_drafter().shape, &nano_drafter().weights}),
               Error);
}

TEST(Dflash2Bf16, BlocksAreNearThoseOfFp32AndDoNotDependOnTheCut) {
  const std::span<const int32_t> ids(long_chat());
  const auto run = [&](Compute compute, int64_t chunk) {
    DraftedNano nano(nano_drafter().shape, 1, CacheType::bf16, 2, 2, 32, compute);
    nano.feed(ids.first(120), chunk);
    return nano.block({0, ids[120], 120});
  };
  const Lattice one_shot = run(Compute::bf16, 300);
  EXPECT_EQ(run(Compute::bf16, 11), one_shot);
  EXPECT_EQ(run(Compute::bf16, 1), one_shot);
  const Lattice exact = run(Compute::f32, 300);
  EXPECT_NE(exact, one_shot);
  ASSERT_EQ(exact.unary.size(), one_shot.unary.size());
  for (size_t i = 0; i < exact.unary.size(); ++i) EXPECT_NEAR(exact.unary[i], one_shot.unary[i], 0.5f) << i;
}

}  // namespace
}  // namespace tandem::forward::dflash2_rounds_test
