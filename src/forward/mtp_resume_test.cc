// What the MTP layer remembers: rows absorbed over a chain's, through rejected windows, around the ring and from kept
// states give the bits of a stream that ran cold and never chained (spec/model.md 4.7, 6.3).
#include "base/error.h"
#include "cache/slots.h"
#include "forward/mtp_test_streams.h"

namespace tandem::forward::mtp_resume_test {
namespace {

struct ResumeCase {
  const char *model, *name;
  MtpSetting setting = {};
};

class Rounds : public ::testing::TestWithParam<ResumeCase> {
 protected:
  const Ids ids = mtp_ids(GetParam().model, GetParam().name, 80);
};

// Rounds of verification: a pending row, `depth` drafts of which some are right, absorbed rows, a chain. Every absorbed
// row and every chain is what it is without the rounds before.
TEST_P(Rounds, AbsorbedRowsEqualThoseOfAStreamThatNeverChained) {
  MtpStreams cold(GetParam().model, GetParam().setting), s(GetParam().model, GetParam().setting);
  const int64_t n = std::ssize(ids) - 1;
  cold.text(ids, 0, n + 1);
  const HiddenRows whole = cold.absorb(0, ids, 0, n);
  const model::Shape& shape = s.shape();
  for (const int64_t depth : {1, 3, 7, 15}) {
    for (uint32_t seed = 1; seed <= (GetParam().model == std::string("nano") ? 1u : 4u); ++seed) {
      int64_t length = 1 + seed % 4;
      s.text(ids, 0, length);
      s.absorb(0, ids, 0, length);
      uint32_t random = seed;
      while (length < n) {
        for (int64_t i = 0; i < depth; ++i) s.chain(0, some_token(shape, length + i), length + i);
        random = random * 1664525u + 1013904223u;
        const int64_t right = std::min<int64_t>((random >> 16) % (depth + 1), n - length - 1);
        Ids window(ids.begin() + length, ids.begin() + length + 1 + right);
        while (std::ssize(window) < depth + 1) window.push_back(some_token(shape, random % 100 + std::ssize(window)));
        s.text(0, window, length, static_cast<int32_t>(depth));
        const int64_t kept = right + 1;
        const HiddenRows rows = s.absorb(0, ids, length, length + kept);
        for (int64_t i = 0; i < kept; ++i) {
          ASSERT_TRUE(mtp_row(shape, rows, kept, i) == mtp_row(shape, whole, n, length + i))
              << "depth " << depth << ", row " << length + i;
        }
        length += kept;
      }
    }
  }
}

// The chain itself, after rounds, is the chain after one pass.
TEST_P(Rounds, ChainsEqualThoseAfterOnePass) {
  MtpStreams cold(GetParam().model, GetParam().setting), s(GetParam().model, GetParam().setting);
  const int64_t n = std::min<int64_t>(std::ssize(ids) - 1, 50);
  s.text(ids, 0, 1);
  s.absorb(0, ids, 0, 1);
  for (int64_t length = 1; length < n; ++length) {
    cold.text(ids, 0, length);
    cold.absorb(0, ids, 0, length);
    for (int64_t i = 0; i < 3; ++i) {
      const int32_t draft = some_token(s.shape(), length + i);
      ASSERT_TRUE(s.chain(0, draft, length + i) == cold.chain(0, draft, length + i)) << length << ", row " << i;
    }
    s.text(0, Ids{ids[static_cast<size_t>(length)], 1, 2, 3}, length, 3);
    s.absorb(0, ids, length, length + 1);
  }
}

// A stream is kept at L and goes on in another slot with another token: row L − 1 is absorbed again from the kept head
// row. Full pages are shared, the page of row L − 1 is the stream's own copy.
TEST_P(Rounds, ResumedEqualsCold) {
  MtpStreams cold(GetParam().model, GetParam().setting), s(GetParam().model, GetParam().setting);
  const int32_t page_rows = s.page_rows();
  const std::vector<int32_t> first = s.table(0), second = s.table(1);
  for (const int64_t length : {1, 2, 3, 4, 5, 7, 8, 12, 15, 16, 17, 20, 31, 32, 33, 36, 48, 63, 64}) {
    if (length + 10 > std::ssize(ids)) break;
    Ids other = ids;  // as the resumed stream goes on
    for (int64_t p = length; p < std::ssize(other); ++p)
      other[static_cast<size_t>(p)] = some_token(s.shape(), 3 * p + length);
    cold.text(other, 0, length);
    std::vector<HiddenRows> expected{mtp_row(cold.shape(), cold.absorb(0, other, 0, length), length, length - 1)};
    for (int64_t i = 0; i < 3; ++i) expected.push_back(cold.chain(0, some_token(cold.shape(), i), length + i));
    cold.text(other, length, length + 6);
    const HiddenRows later = cold.absorb(0, other, length, length + 6);

    // The first stream goes on, chains, and is kept only then by the step that takes its next rows.
    s.text(ids, 0, length);
    s.absorb(0, ids, 0, length);
    for (int64_t i = 0; i < 3; ++i) s.chain(0, 7, length + i);
    Step keep;
    s.add(keep, 0, Ids{ids[static_cast<size_t>(length)], 5, 5}, length, 2);
    keep.keeps = {{0, 1, length}};
    s.run(keep);
    s.absorb(0, ids, length, length + 1);
    Step restore;
    restore.restores = {{1, 1, length}};
    const int64_t last = (length - 1) / page_rows;  // the page of row L − 1
    s.table(1) = second;
    std::copy_n(first.begin(), last, s.table(1).begin());
    restore.page_copies = {{first[static_cast<size_t>(last)], second[static_cast<size_t>(last)],
                            static_cast<int32_t>(length - last * page_rows), 0}};
    s.run(restore);
    EXPECT_THROW(s.chain(1, 1, length), Error);  // before its last row is there again
    if (length > 1) {
      EXPECT_THROW(s.absorb(1, other, length - 2, length), Error);  // one head row is kept
    }
    ASSERT_TRUE(s.absorb(1, other, length - 1, length) == expected[0]) << "resumed at " << length;
    for (size_t i = 0; i < 3; ++i) {
      const auto at = static_cast<int64_t>(i);
      ASSERT_TRUE(s.chain(1, some_token(s.shape(), at), length + at) == expected[i + 1])
          << "resumed at " << length << ", chain row " << i;
    }
    s.text(1, std::span(other).subspan(static_cast<size_t>(length), 6), length);
    ASSERT_TRUE(s.absorb(1, other, length, length + 6) == later) << "resumed at " << length;
  }
}

// The resumed stream's first step runs rows before anything is absorbed: row L − 1 comes from the head ring.
TEST_P(Rounds, ResumedAndRunBeforeAbsorbing) {
  MtpStreams cold(GetParam().model, GetParam().setting), s(GetParam().model, GetParam().setting);
  const std::vector<int32_t> own = s.table(1);
  for (const int64_t length : {1, 4, 16, 18, 32}) {
    cold.text(ids, 0, length + 5);
    const HiddenRows expected = cold.absorb(0, ids, 0, length + 5);
    s.text(ids, 0, length);
    s.absorb(0, ids, 0, length);
    Step step;
    const int64_t last = (length - 1) / s.page_rows();
    s.table(1) = own;
    std::copy_n(s.table(0).begin(), last, s.table(1).begin());
    s.add(step, 1, std::span(ids).subspan(static_cast<size_t>(length), 5), length);
    step.keeps = {{0, 0, length}};
    step.restores = {{1, 0, length}};
    step.page_copies = {{s.table(0)[static_cast<size_t>(last)], own[static_cast<size_t>(last)],
                         static_cast<int32_t>(length - last * s.page_rows()), 0}};
    s.run(step);
    const HiddenRows rows = s.absorb(1, ids, length - 1, length + 5);
    for (int64_t i = 0; i < 6; ++i) {
      ASSERT_TRUE(mtp_row(s.shape(), rows, 6, i) == mtp_row(s.shape(), expected, length + 5, length - 1 + i))
          << "resumed at " << length << ", row " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Rounds,
                         ::testing::Values(ResumeCase{"tinyA", "case_T130"},
                                           ResumeCase{"tinyA", "case_T130", {.cache_type = CacheType::bf16}},
                                           ResumeCase{"tinyA", "case_T130", {.page_rows = 4, .share = false}},
                                           ResumeCase{"nano", "case_T259", {.page_rows = 32}}));

}  // namespace
}  // namespace tandem::forward::mtp_resume_test
