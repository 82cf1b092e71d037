// MTP steps of two ranks, and of two ranks that share the pages, have the bits of one rank: absorbed rows, chains whose
// rows share a selection, rounds with rejected drafts, kept states.
#include "cluster/test_streams.h"

namespace tandem::cluster::mtp_ranks_test {
namespace {

using forward::StepKind;

// Adds rows [from, to) of the ids to a step that absorbs.
void add_absorb(const Streams& streams, Step& step, int32_t slot, const Ids& ids, int64_t from, int64_t to) {
  step.kind = StepKind::mtp_absorb;
  streams.add(step, slot, std::span(ids).subspan(static_cast<size_t>(from) + 1, static_cast<size_t>(to - from)), from);
}

// Hidden rows and logits of an MTP step, appended.
void run_mtp(Streams& streams, const Step& step, Rows& out) {
  streams.group().run(step);
  out.insert(out.end(), streams.group().mtp_hidden().begin(), streams.group().mtp_hidden().end());
  out.insert(out.end(), streams.group().logits().begin(), streams.group().logits().end());
}

void absorb(Streams& streams, const Ids& ids, int64_t from, int64_t to, Rows& out) {
  Step step;
  add_absorb(streams, step, 0, ids, from, to);
  run_mtp(streams, step, out);
}

void chain(Streams& streams, int64_t from, int64_t rows, Rows& out) {
  for (int64_t i = 0; i < rows; ++i) {
    const auto token = static_cast<int32_t>((from * 31 + 7 * i) % streams.shape().vocab_size);
    Step step;
    step.kind = StepKind::mtp_chain;
    streams.add(step, 0, std::span(&token, 1), from + i);
    run_mtp(streams, step, out);
  }
}

struct MtpRanksCase {
  const char *model, *name;
  Setting setting = {};
};

class MtpRanks : public ::testing::TestWithParam<MtpRanksCase> {
 protected:
  const Ids ids = ids_of(GetParam().model, GetParam().name);

  template <typename Body>
  void expect_equal(const Body& body) {
    Streams one(GetParam().model, one_rank, GetParam().setting);
    Rows expected;
    body(one, expected);
    ASSERT_FALSE(expected.empty());
    for (const GroupSize size : {two_ranks, shared_pages}) {
      Streams streams(GetParam().model, size, GetParam().setting);
      Rows found;
      body(streams, found);
      EXPECT_TRUE(found == expected) << name_of(size);
    }
  }
};

TEST_P(MtpRanks, ChainsAfterOnePass) {
  expect_equal([&](Streams& streams, Rows& out) {
    Trace text;
    const int64_t n = std::ssize(ids) - 1;
    streams.run(0, ids, 0, text);
    absorb(streams, ids, 0, n, out);
    chain(streams, n, 5, out);
    for (const int64_t length : {int64_t{1}, int64_t{9}, int64_t{18}, n - 3}) {
      if (length < 1 || length > n) continue;
      streams.run(0, std::span(ids).first(static_cast<size_t>(length)), 0, text);
      absorb(streams, ids, 0, length, out);
      chain(streams, length, 3, out);
    }
  });
}

TEST_P(MtpRanks, Rounds) {
  expect_equal([&](Streams& streams, Rows& out) {
    Trace text;
    int64_t length = 10;
    const int64_t end = std::min<int64_t>(std::ssize(ids) - 8, 45);
    streams.run(0, std::span(ids).first(10), 0, text);
    absorb(streams, ids, 0, length, out);
    for (int64_t round = 0; length < end; ++round) {
      chain(streams, length, 3, out);
      const int64_t right = round % 4;
      Ids window(ids.begin() + length, ids.begin() + length + 1 + right);
      window.resize(4, 3);
      streams.run(0, window, length, text, 3);
      absorb(streams, ids, length, length + 1 + right, out);
      length += 1 + right;
    }
    out.insert(out.end(), text.logits.begin(), text.logits.end());
  });
}

// Kept at a page's end: the page of the last row is copied whole within its pool, and the row is absorbed again.
TEST_P(MtpRanks, ResumedAtAPagesEnd) {
  expect_equal([&](Streams& streams, Rows& out) {
    const int32_t page_rows = streams.page_rows();
    for (int64_t length = page_rows; length + 1 < std::ssize(ids) && length <= 3 * page_rows; length += page_rows) {
      Trace text;
      const auto first = std::span(ids).first(static_cast<size_t>(length));
      streams.run(0, first, 0, text);
      Rows whole, again;
      absorb(streams, ids, 0, length, whole);
      Step keep;
      streams.add(keep, 0, Ids{1, 2}, length);
      keep.keeps = {{0, 0, length}};
      streams.run(keep, text, 2);
      // The slot is given back from the record, on a copy of its last page in a page of the other stream.
      const int64_t entry = length / page_rows - 1;
      const auto pool = static_cast<int32_t>(entry % streams.pools());
      const int32_t from = streams.pages(0)[static_cast<size_t>(entry)],
                    to = streams.pages(1)[static_cast<size_t>(entry)];
      Step restore, row;
      restore.restores = {{1, 0, length}};
      restore.page_copies = {{from, to, page_rows, pool}};
      streams.group().run(restore);
      add_absorb(streams, row, 1, ids, length - 1, length);
      std::copy_n(streams.pages(0).begin(), entry, row.page_tables.begin());
      row.page_tables[static_cast<size_t>(entry)] = to;
      run_mtp(streams, row, again);
      const auto width = static_cast<std::ptrdiff_t>(streams.shape().hidden_size);
      EXPECT_TRUE(std::equal(again.begin(), again.begin() + width, whole.begin() + (length - 1) * width)) << length;
      out.insert(out.end(), again.begin(), again.end());
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Models, MtpRanks,
                         ::testing::Values(MtpRanksCase{"tinyA", "case_T67"},
                                           MtpRanksCase{"tinyA", "case_T46", {.page_rows = 4}},
                                           MtpRanksCase{"tinyA", "case_T130", {.cache_type = forward::CacheType::bf16}},
                                           MtpRanksCase{"tinyA", "case_T67", {.compute = forward::Compute::bf16}},
                                           MtpRanksCase{"nano", "case_T700", {.page_rows = 32}}));

}  // namespace
}  // namespace tandem::cluster::mtp_ranks_test
