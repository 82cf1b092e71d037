// The model's drafters under every schedule: what they ask of the model keeps its rules, and they propose what they
// should.
#include "draft/model_drafter.h"

#include <random>

#include "base/error.h"
#include "draft/drafter_fixture.h"

namespace tandem::draft::model_drafter_test {
namespace {

ModelDrafterOptions options_of(bool mtp, bool dflash2, bool copy = false) {
  ModelDrafterOptions options;
  options.slots = 4;
  options.max_rows = 100;
  options.page_rows = 8;
  options.max_stream_pages = 200;
  options.vocab_size = FakeDraftModel::vocabulary;
  options.copy = copy;
  options.mtp = mtp;
  options.dflash2 = dflash2;
  options.policy.kind = Policy::Kind::fixed;
  options.copies.window = 256;
  return options;
}

// One stream after its prompt.
struct Single {
  explicit Single(const ModelDrafterOptions& options, Choice choice, int64_t prompt = 20)
      : model(options), drafter(model, options) {
    TestStream& stream = model.streams[0];
    for (int64_t i = 0; i < prompt; ++i) stream.ids.push_back(static_cast<int32_t>(i % 7 * 9 + i % 5));
    stream.prompt = prompt;
    for (int32_t page = 1; page < 100; ++page) stream.page_table.push_back(page);
    stream.choice = choice;
    drafter.start(0, stream.ids, 0);
    ran(prompt, prompt);
    stream.ids.push_back(3);
    stream.most = most_drafts;
  }
  TestStream& stream() { return model.streams[0]; }
  void ran(int64_t rows, int64_t kept) {
    TestStream& s = stream();
    s.step_first = s.length;
    s.step_end = s.ring_end = s.length + rows;
    s.length += kept;
    s.ran = true;
  }
  void propose() {
    const StreamView view = stream().view(0);
    drafter.propose({&view, 1}, picker);
  }
  const Proposal& proposal() { return stream().proposal; }

  FakeDraftModel model;
  ModelDrafter drafter;
  FakePicker picker;
};

TEST(ModelDrafter, ChainsThreeMtpDrafts) {
  Single single(options_of(true, false), Choice::mtp);
  single.propose();
  EXPECT_EQ(single.stream().absorbed, 20);
  ASSERT_EQ(single.proposal().count, 3);
  EXPECT_EQ(single.proposal().source, Source::mtp);
  for (int32_t i = 0; i < 3; ++i)
    EXPECT_EQ(single.proposal().tokens[static_cast<size_t>(i)], FakeDraftModel::token_at(0, 21 + i));
  EXPECT_EQ(single.model.kinds, (std::vector<int64_t>{0, 1, 2, 0}));
  // A round later: one accepted of three.
  single.drafter.verified(0, single.proposal(), 3, 1);
  single.ran(4, 2);
  single.stream().ids.insert(single.stream().ids.end(), {5, 6});
  single.propose();
  EXPECT_EQ(single.stream().absorbed, 22);
  EXPECT_EQ(single.proposal().count, 3);
  EXPECT_EQ(single.drafter.statistics().total(Source::mtp).accepted, 1);
}

TEST(ModelDrafter, DraftsNoMoreThanAreWanted) {
  Single single(options_of(true, true), Choice::mtp);
  single.stream().most = 1;
  single.propose();
  EXPECT_EQ(single.proposal().count, 1);
  EXPECT_EQ(single.model.kinds, (std::vector<int64_t>{0, 1, 0, 0}));
  single.stream().most = 0;
  single.stream().ran = false;
  single.propose();
  EXPECT_EQ(single.proposal().count, 0);
  EXPECT_EQ(single.proposal().source, Source::none);
  single.stream().most = 4;
  single.stream().choice = Choice::dflash2;
  single.propose();
  EXPECT_EQ(single.proposal().count, 4);
  EXPECT_EQ(single.proposal().source, Source::dflash2);
  EXPECT_EQ(single.proposal().tokens[3], FakeDraftModel::token_at(0, 24));
  EXPECT_EQ(single.model.kinds[3], 1);
}

TEST(ModelDrafter, DraftsAgainWhereNothingRan) {
  Single single(options_of(true, false), Choice::mtp);
  single.propose();
  const Proposal first = single.proposal();
  single.stream().ran = false;
  single.propose();
  EXPECT_EQ(single.proposal().tokens, first.tokens);
  EXPECT_EQ(single.proposal().count, 3);
}

TEST(ModelDrafter, DepthBoundsDrafts) {
  ModelDrafterOptions options = options_of(true, true, true);
  options.policy.depth = 2;
  Single single(options, Choice::dflash2);
  single.propose();
  EXPECT_EQ(single.proposal().count, 2);
  for (int round = 0; round < 20; ++round) single.stream().ids.push_back(3);
  single.ran(20, 20);
  single.propose();
  EXPECT_EQ(single.proposal().source, Source::copy);
  EXPECT_EQ(single.proposal().count, 2);  // of 5: 21 times 3, of which 16 must match
  EXPECT_EQ(single.model.kinds[3], 1);    // no block
}

TEST(ModelDrafter, ChoicesThatAreNotLoadedProposeNothing) {
  for (const Choice choice : {Choice::none, Choice::copy, Choice::mtp, Choice::dflash2, Choice::automatic}) {
    Single single(options_of(false, false), choice);
    single.propose();
    EXPECT_EQ(single.proposal().count, 0);
    EXPECT_EQ(single.model.kinds, std::vector<int64_t>(4));
  }
  Single only_blocks(options_of(false, true), Choice::automatic);
  only_blocks.propose();
  EXPECT_EQ(only_blocks.proposal().source, Source::dflash2);
  Single only_mtp(options_of(true, false), Choice::automatic);
  only_mtp.propose();
  EXPECT_EQ(only_mtp.proposal().source, Source::mtp);
}

TEST(ModelDrafter, AbsorbsWhenItMust) {
  Single single(options_of(true, true), Choice::none);
  single.stream().most = 0;
  single.propose();
  EXPECT_EQ(single.stream().absorbed, 20);  // more than 16 behind
  for (int64_t step = 1; step <= 16; ++step) {
    single.ran(1, 1);
    single.stream().ids.push_back(1);
    single.propose();
    EXPECT_EQ(single.stream().absorbed, 20) << step;
  }
  single.ran(1, 1);
  single.stream().ids.push_back(1);
  single.propose();
  EXPECT_EQ(single.stream().absorbed, 37);
  single.ran(1, 1);
  single.stream().ids.push_back(1);
  single.stream().settle = true;
  single.propose();
  EXPECT_EQ(single.stream().absorbed, 38);
  single.ran(1, 1);  // the reply ended: its last row's next token is not known
  single.propose();
  EXPECT_EQ(single.stream().absorbed, 38);
  EXPECT_EQ(single.drafter.skipped_rows(), 0);
}

TEST(ModelDrafter, AConfidencePolicyEndsTheChain) {
  ModelDrafterOptions options = options_of(true, false);
  options.policy = {.kind = Policy::Kind::confidence, .threshold = 0.5};
  Single single(options, Choice::mtp);
  single.picker.probability = 0.6;
  single.propose();
  EXPECT_EQ(single.proposal().count, 2);  // 0.6 goes on, 0.36 does not
  options.policy = {.kind = Policy::Kind::joint};
  options.table.verify_ms = {1, 1.2, 1.7, 2.2};
  options.table.mtp_ms = options.table.mtp_step_ms = options.table.overhead_ms = 0;
  Single joint(options, Choice::mtp);
  joint.picker.probability = 0.6;  // 0.6 > 0.5 · 1.6 / 1.2 does not hold
  joint.propose();
  EXPECT_EQ(joint.proposal().count, 1);
  joint.picker.probability = 0.99;
  joint.stream().ran = false;
  joint.propose();
  EXPECT_EQ(joint.proposal().count, 3);
}

TEST(ModelDrafter, AChainPassesADraftThatDoesNotPayByItself) {
  ModelDrafterOptions options = options_of(true, false);
  options.policy = {.kind = Policy::Kind::joint};
  options.table.verify_ms = {1, 1.1, 2.0, 2.02};
  options.table.mtp_ms = options.table.mtp_step_ms = options.table.overhead_ms = 0;
  Single sure(options, Choice::mtp);
  sure.picker.probability = 0.99;  // 1.99 / 1.1 > 2.97 / 2.0, but not > 3.96 / 2.02
  sure.propose();
  EXPECT_EQ(sure.proposal().count, 3);
  options.table.verify_ms.back() = 2.4;
  Single dear(options, Choice::mtp);
  dear.picker.probability = 0.99;
  dear.propose();
  EXPECT_EQ(dear.proposal().count, 1);
}

TEST(ModelDrafter, IdsOutsideTheVocabularyCutAndCount) {
  Single single(options_of(true, true), Choice::mtp);
  single.picker.token = [](int32_t, int64_t position) { return position == 22 ? 64 : 5; };
  single.propose();
  EXPECT_EQ(single.proposal().count, 1);
  EXPECT_EQ(single.drafter.invalid_drafts(), 1);
  single.stream().choice = Choice::dflash2;
  single.model.change_ids = [](std::vector<int32_t>& ids) { ids[3 * FakeDraftModel::top_k + 2] = -7; };
  single.propose();
  EXPECT_EQ(single.proposal().count, 3);
  EXPECT_EQ(single.drafter.invalid_drafts(), 2);
  single.model.change_ids = [](std::vector<int32_t>& ids) { ids[0] = 1 << 30; };
  single.propose();
  EXPECT_EQ(single.proposal().count, 0);
}

TEST(ModelDrafter, LatticesThatAreNotThereAreAnError) {
  Single single(options_of(false, true), Choice::dflash2);
  single.model.change_ids = [](std::vector<int32_t>& ids) { ids.clear(); };
  EXPECT_THROW(single.propose(), Error);
}

TEST(ModelDrafter, DrawnDraftsTellTheirDistribution) {
  Single single(options_of(true, true), Choice::dflash2);
  single.stream().draws = true;
  single.stream().temperature = 1;
  single.propose();
  ASSERT_EQ(single.proposal().count, 7);
  EXPECT_EQ(single.proposal().drawn_from[6].size, FakeDraftModel::top_k);
  single.stream().choice = Choice::mtp;
  single.stream().ran = false;
  single.propose();
  EXPECT_EQ(single.proposal().drawn_from[2].size, 1);
  single.stream().draws = false;
  single.propose();
  EXPECT_EQ(single.proposal().drawn_from[2].size, 0);
}

TEST(ModelDrafter, AutomaticLearnsTheBetterArm) {
  Single single(options_of(true, true), Choice::automatic);
  int64_t rounds[2] = {};
  for (int round = 0; round < 60; ++round) {
    single.propose();
    const Proposal proposal = single.proposal();
    const bool mtp = proposal.source == Source::mtp;
    ++rounds[mtp];
    const int32_t accepted = mtp ? 3 : 0;
    single.drafter.verified(0, proposal, proposal.count, accepted);
    single.ran(proposal.count + 1, accepted + 1);
    for (int32_t i = 0; i <= accepted; ++i) single.stream().ids.push_back(i);
  }
  EXPECT_GE(rounds[1], 45);
  EXPECT_GE(rounds[0], 5);  // probes
  // The next stream begins with what this one found.
  single.drafter.start(0, single.stream().ids, single.stream().length);
  single.stream().absorbed = single.stream().length - 1;  // the last row once more, as of a stream that is resumed
  single.propose();
  EXPECT_EQ(single.proposal().source, Source::mtp);
}

TEST(ModelDrafter, ConfidencesLearnFromWhatBecameOfDrafts) {
  Single single(options_of(true, false), Choice::mtp);
  single.propose();
  EXPECT_NEAR(single.proposal().confidence[0], 0.9, 1e-12);
  for (int round = 0; round < 20; ++round) single.drafter.verified(0, single.proposal(), 3, 0);
  single.stream().ran = false;
  single.propose();
  EXPECT_LT(single.proposal().confidence[0], 0.3);
  EXPECT_NEAR(single.proposal().confidence[1], 0.9, 1e-12);  // was never judged
}

TEST(ModelDrafter, RefusesOptionsThatCannotBe) {
  const auto refused = [](const std::function<void(ModelDrafterOptions&)>& change) {
    ModelDrafterOptions options = options_of(true, true, true);
    change(options);
    FakeDraftModel model(options_of(true, true));
    try {
      ModelDrafter drafter(model, options);
    } catch (const Error& error) {
      return error.code() == ErrorCode::usage;
    }
    return false;
  };
  EXPECT_FALSE(refused([](ModelDrafterOptions&) {}));
  EXPECT_TRUE(refused([](ModelDrafterOptions& options) { options.policy.depth = -1; }));
  EXPECT_TRUE(refused([](ModelDrafterOptions& options) { options.policy.depth = 16; }));
  EXPECT_TRUE(refused([](ModelDrafterOptions& options) { options.mtp_depth = 0; }));
  EXPECT_TRUE(refused([](ModelDrafterOptions& options) { options.block_rows = 1; }));
  EXPECT_TRUE(refused([](ModelDrafterOptions& options) { options.block_rows = 17; }));
  EXPECT_TRUE(refused([](ModelDrafterOptions& options) { options.vocab_size = 0; }));
  EXPECT_TRUE(refused([](ModelDrafterOptions& options) { options.slots = 0; }));
  EXPECT_TRUE(refused([](ModelDrafterOptions& options) { options.copies.match = 1; }));
}

TEST(ModelDrafter, AFailureOfTheModelIsTold) {
  Single single(options_of(true, true), Choice::mtp);
  single.stream().page_table.resize(1);
  EXPECT_THROW(single.propose(), Error);
  EXPECT_THROW(single.drafter.start(4, {}, 0), Error);
  EXPECT_THROW(single.drafter.start(-1, {}, 0), Error);
}

// Streams that come and go, are resumed, wait, are cut into chunks and change their drafter.
class RandomSchedule {
 public:
  RandomSchedule(uint32_t seed, const ModelDrafterOptions& options)
      : random_(seed), options_(options), model_(options), drafter_(model_, options) {}

  void run(int rounds) {
    for (size_t slot = 0; slot < model_.streams.size(); ++slot) begin(slot);
    for (int round = 0; round < rounds; ++round) {
      for (size_t slot = 0; slot < model_.streams.size(); ++slot) step(slot);
      propose();
    }
    EXPECT_EQ(drafter_.skipped_rows(), 0);
  }

 private:
  int64_t below(int64_t bound) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(bound)); }
  int32_t token() { return static_cast<int32_t>(below(FakeDraftModel::vocabulary)); }

  void begin(size_t slot) {
    TestStream& stream = model_.streams[slot];
    const std::vector<int32_t> before = stream.ids;
    const int64_t resumed = below(2) == 0 ? std::min<int64_t>(stream.length, below(200)) : 0;
    stream = {};
    stream.ids.assign(before.begin(), before.begin() + resumed);
    stream.length = stream.step_first = stream.step_end = stream.ring_end = resumed;
    stream.absorbed = std::max<int64_t>(0, resumed - 1);
    fresh_[slot] = resumed > 0;
    stream.prompt = resumed + 1 + below(250);
    while (std::ssize(stream.ids) < stream.prompt) stream.ids.push_back(token());
    stream.choice = static_cast<Choice>(below(5));
    for (int32_t page = 1; page <= 200; ++page) stream.page_table.push_back(page + static_cast<int32_t>(slot) * 200);
    drafter_.start(static_cast<int32_t>(slot), stream.ids, resumed);
  }

  void step(size_t slot) {
    TestStream& stream = model_.streams[slot];
    stream.ran = false;
    stream.settle = below(8) == 0;
    if (below(6) == 0) return;  // waits
    if (std::ssize(stream.ids) > 700 || below(60) == 0) begin(slot);
    int64_t rows = 1, kept = 1;
    if (stream.length < stream.prompt) {
      rows = kept = std::min<int64_t>(stream.prompt - stream.length, 1 + below(fresh_[slot] ? 30 : 90));
      fresh_[slot] = false;
    } else {
      const auto tried = static_cast<int32_t>(below(stream.proposal.count + 1));
      const auto accepted = static_cast<int32_t>(below(tried + 1));
      drafter_.verified(static_cast<int32_t>(slot), stream.proposal, tried, accepted);
      rows = tried + 1;
      kept = accepted + 1;
      for (int32_t i = 0; i < accepted; ++i) stream.ids.push_back(stream.proposal.tokens[static_cast<size_t>(i)]);
    }
    stream.ran = true;
    stream.step_first = stream.length;
    stream.step_end = stream.ring_end = stream.length + rows;
    stream.length += kept;
    if (stream.length == std::ssize(stream.ids)) stream.ids.push_back(below(3) == 0 ? 1 : token());
    stream.most = stream.length < stream.prompt ? 0 : static_cast<int32_t>(below(16));
    if (below(20) == 0) stream.choice = static_cast<Choice>(below(5));
  }

  void propose() {
    std::vector<StreamView> views;
    for (size_t slot = 0; slot < model_.streams.size(); ++slot)
      views.push_back(model_.streams[slot].view(static_cast<int32_t>(slot)));
    std::shuffle(views.begin(), views.end(), random_);
    drafter_.propose(views, picker_);
    for (const StreamView& view : views) check(view);
  }

  void check(const StreamView& view) {
    const TestStream& stream = model_.streams[static_cast<size_t>(view.slot)];
    const Proposal& proposal = stream.proposal;
    ASSERT_LE(proposal.count, stream.most);
    const Choice choice = stream.choice;
    switch (proposal.source) {
      case Source::none: ASSERT_EQ(proposal.count, 0); break;
      case Source::copy: ASSERT_TRUE(options_.copy && choice != Choice::none); break;
      case Source::mtp: ASSERT_TRUE(options_.mtp && (choice == Choice::mtp || choice == Choice::automatic)); break;
      case Source::dflash2:
        ASSERT_TRUE(options_.dflash2 && (choice == Choice::dflash2 || choice == Choice::automatic));
        break;
    }
    for (int32_t i = 0; i < proposal.count; ++i) {
      ASSERT_GT(proposal.confidence[static_cast<size_t>(i)], 0);
      ASSERT_LE(proposal.confidence[static_cast<size_t>(i)], 1);
    }
    if (options_.mtp && view.settle) {
      ASSERT_GE(stream.absorbed, std::min<int64_t>(stream.length, std::ssize(stream.ids) - 1));
    }
    // A joint policy rests where drafts do not pay.
    const bool rests = options_.policy.kind == Policy::Kind::joint && proposal.source == Source::none;
    if (options_.mtp && stream.most > 0 && choice == Choice::mtp && proposal.source != Source::copy && !rests) {
      ASSERT_EQ(proposal.source, Source::mtp);
      ASSERT_GE(proposal.count, 1);
    }
  }

  std::mt19937 random_;
  ModelDrafterOptions options_;
  FakeDraftModel model_;
  ModelDrafter drafter_;
  FakePicker picker_;
  std::array<bool, 4> fresh_{};  // resumed and without a step yet
};

TEST(ModelDrafter, KeepsTheModelsRulesUnderRandomSchedules) {
  for (uint32_t seed = 1; seed <= 60; ++seed) {
    ModelDrafterOptions options = options_of(seed % 4 != 0, seed % 3 != 0, seed % 2 == 0);
    options.policy.kind = static_cast<Policy::Kind>(seed % 3);
    options.max_rows = seed % 5 == 0 ? 3 : 100;
    RandomSchedule schedule(seed, options);
    ASSERT_NO_THROW(schedule.run(150)) << "seed " << seed;
    if (::testing::Test::HasFatalFailure()) FAIL() << "seed " << seed;
  }
}

TEST(ModelDrafter, AllStreamsShareTheSteps) {
  const ModelDrafterOptions options = options_of(true, true);
  FakeDraftModel model(options);
  ModelDrafter drafter(model, options);
  FakePicker picker;
  std::vector<StreamView> views;
  for (int32_t slot = 0; slot < 4; ++slot) {
    TestStream& stream = model.streams[static_cast<size_t>(slot)];
    stream.ids.assign(static_cast<size_t>(10 + slot), 1);
    stream.prompt = std::ssize(stream.ids);
    for (int32_t page = 1; page < 50; ++page) stream.page_table.push_back(page);
    stream.choice = slot < 2 ? Choice::mtp : Choice::dflash2;
    drafter.start(slot, stream.ids, 0);
    stream.length = stream.step_end = stream.ring_end = stream.prompt;
    stream.ran = true;
    stream.most = 7;
    stream.ids.push_back(slot);
    views.push_back(stream.view(slot));
  }
  drafter.propose(views, picker);
  EXPECT_EQ(model.kinds, (std::vector<int64_t>{0, 1, 2, 1}));
  for (int32_t slot = 0; slot < 4; ++slot)
    EXPECT_EQ(model.streams[static_cast<size_t>(slot)].proposal.count, slot < 2 ? 3 : 7);
}

TEST(ModelDrafter, RowsWhoseHiddenIsGoneAreSkippedAndCounted) {
  // Resumed at 100 rows: after 31 more row 99's hidden is still in the ring of 32, after 32 it is not.
  for (const int64_t rows : {31, 32, 50}) {
    const ModelDrafterOptions options = options_of(true, false);
    FakeDraftModel model(options);
    ModelDrafter drafter(model, options);
    FakePicker picker;
    TestStream& stream = model.streams[0];
    stream.ids.assign(160, 1);
    for (int32_t page = 1; page < 50; ++page) stream.page_table.push_back(page);
    drafter.start(0, stream.ids, 100);
    stream.absorbed = rows == 31 ? 99 : 100;
    stream.step_first = 100;
    stream.length = stream.step_end = stream.ring_end = 100 + rows;
    stream.ran = true;
    const StreamView view = stream.view(0);
    drafter.propose({&view, 1}, picker);
    EXPECT_EQ(drafter.skipped_rows(), rows == 31 ? 0 : 1);
    EXPECT_EQ(stream.absorbed, 100 + rows);
  }
}

}  // namespace
}  // namespace tandem::draft::model_drafter_test
