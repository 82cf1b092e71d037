// MTP steps: absorbed rows against the golden vectors however they are cut, chains against rows whose hidden is given
// explicitly, and a text model that does not notice them (spec/model.md 6).
#include <cmath>
#include <functional>

#include "base/error.h"
#include "cache/slots.h"
#include "forward/mtp_test_streams.h"

namespace tandem::forward::mtp_test {
namespace {

struct MtpCase {
  const char *model, *name;
};

class Absorb : public ::testing::TestWithParam<MtpCase> {
 protected:
  const Ids ids = mtp_ids(GetParam().model, GetParam().name);
  const int64_t n = std::ssize(ids) - 1;  // rows whose next token is known
};

HiddenRows golden_rows(const model::Checkpoint& file, const std::string& name) {
  const model::Tensor& tensor = file.at(name);
  HiddenRows rows(static_cast<size_t>(tensor.elements()));
  std::memcpy(rows.data(), tensor.data.data(), tensor.data.size());
  return rows;
}
std::vector<int32_t> golden_positions(const model::Checkpoint& file, const std::string& name) {
  const model::Tensor& tensor = file.at(name);
  std::vector<int32_t> positions(static_cast<size_t>(tensor.elements()));
  std::memcpy(positions.data(), tensor.data.data(), tensor.data.size());
  return positions;
}

void expect_near(const HiddenRows& expected, const HiddenRows& found, double tolerance, const std::string& what) {
  ASSERT_EQ(expected.size(), found.size()) << what;
  double largest = 0, difference = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    largest = std::max(largest, std::abs(static_cast<double>(expected[i])));
    difference = std::max(difference, std::abs(static_cast<double>(expected[i]) - found[i]));
  }
  EXPECT_LE(difference, tolerance * largest) << what;
}

TEST_P(Absorb, OnePassMatchesTheGoldenVectors) {
  const auto file =
      model::Checkpoint::open(golden + GetParam().model + std::string("/") + GetParam().name + ".safetensors");
  const double tolerance = GetParam().model == std::string("nano") ? 1e-5 : 3e-5;
  for (const bool zero : {true, false}) {
    MtpStreams s(GetParam().model, {.zero_first_embedding = zero});
    s.text(ids, 0, n + 1);
    const HiddenRows all = s.absorb(0, ids, 0, n);
    const auto width = static_cast<size_t>(s.shape().hidden_size), vocab = static_cast<size_t>(s.shape().vocab_size);
    const auto pick = [&](const char* positions, size_t at, size_t size) {
      HiddenRows rows;
      for (const int32_t p : golden_positions(file, positions)) {
        const auto begin = all.begin() + static_cast<std::ptrdiff_t>(at + static_cast<size_t>(p) * size);
        if (p < n) rows.insert(rows.end(), begin, begin + static_cast<std::ptrdiff_t>(size));
      }
      return rows;
    };
    const char* name = zero ? "mtp_hidden_zero0" : "mtp_hidden";
    expect_near(golden_rows(file, name), pick("stream_pos", 0, width), tolerance, name);
    if (!zero && file.find("mtp_logits") != nullptr) {
      expect_near(golden_rows(file, "mtp_logits"), pick("logits_pos", static_cast<size_t>(n) * width, vocab), tolerance,
                  "mtp_logits");
    }
  }
}

// Text chunks of text_rows(i) rows, after every `every`-th of which what is known is absorbed, in steps of
// absorb_rows(i).
HiddenRows in_pieces(MtpStreams& s, const Ids& ids, int64_t every, const std::function<int64_t(int64_t)>& text_rows,
                     const std::function<int64_t(int64_t)>& absorb_rows) {
  const int64_t n = std::ssize(ids) - 1;
  std::vector<HiddenRows> rows;
  int64_t done = 0, number = 0;
  for (int64_t begin = 0, i = 0; begin <= n; ++i) {
    const int64_t end = std::min(n + 1, begin + text_rows(i));
    s.text(ids, begin, end);
    begin = end;
    if (i % every != every - 1 && end <= n) continue;
    while (done < std::min(n, end)) {
      const int64_t count = std::min(absorb_rows(number++), std::min(n, end) - done);
      const HiddenRows all = s.absorb(0, ids, done, done + count);
      for (int64_t row = 0; row < count; ++row) rows.push_back(mtp_row(s.shape(), all, count, row));
      done += count;
    }
  }
  HiddenRows hidden, logits;
  for (const HiddenRows& row : rows) {
    hidden.insert(hidden.end(), row.begin(), row.begin() + s.shape().hidden_size);
    logits.insert(logits.end(), row.begin() + s.shape().hidden_size, row.end());
  }
  hidden.insert(hidden.end(), logits.begin(), logits.end());
  return hidden;
}

TEST_P(Absorb, CutsDoNotMatter) {
  for (const CacheType type : {CacheType::f32, CacheType::bf16}) {
    const MtpSetting setting{.cache_type = type};
    MtpStreams s(GetParam().model, setting);
    s.text(ids, 0, n + 1);
    const HiddenRows whole = s.absorb(0, ids, 0, n);
    const auto always = [](int64_t rows) { return [rows](int64_t) { return rows; }; };
    const auto random = [](int64_t most, uint32_t seed) {
      return
          [most, seed](int64_t i) { return 1 + static_cast<int64_t>((seed + i) * 2654435761u % 4294967296u) % most; };
    };
    EXPECT_TRUE(in_pieces(s, ids, 1, always(400), random(9, 1)) == whole) << "chunks after one text step";
    EXPECT_TRUE(in_pieces(s, ids, 1, random(37, 2), random(11, 3)) == whole) << "chunks after chunks";
    EXPECT_TRUE(in_pieces(s, ids, 3, random(10, 4), always(400)) == whole) << "from the head rows";
    if (n > 150) continue;  // a long prompt need not be read row by row
    EXPECT_TRUE(in_pieces(s, ids, 1, always(1), always(1)) == whole) << "row by row";
    EXPECT_TRUE(in_pieces(s, ids, 32, always(1), always(7)) == whole) << "all of the head ring";
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, Absorb,
                         ::testing::Values(MtpCase{"tinyA", "case_T3"}, MtpCase{"tinyA", "case_T12"},
                                           MtpCase{"tinyA", "case_T15"}, MtpCase{"tinyA", "case_T67"},
                                           MtpCase{"tinyA", "case_T130"}, MtpCase{"nano", "case_T40"},
                                           MtpCase{"nano", "case_T259"}));

// Chains of three after `from` absorbed rows, against rows whose hidden is the row's before.
void expect_chains_of_explicit_rows(const std::string& model, const Ids& ids, const MtpSetting& setting,
                                    std::span<const int64_t> lengths) {
  MtpStreams s(model, setting), cold(model, setting);
  const auto width = static_cast<std::ptrdiff_t>(s.shape().hidden_size);
  for (const int64_t length : lengths) {
    s.text(ids, 0, length);
    HiddenRows found = mtp_row(s.shape(), s.absorb(0, ids, 0, length), length, length - 1);
    cold.text(ids, 0, length);
    const HiddenRows hidden(cold.model().hidden().begin(), cold.model().hidden().end());
    HiddenRows expected =
        mtp_row(s.shape(), cold.explicit_rows(0, std::span(ids).subspan(1, static_cast<size_t>(length)), 0, hidden),
                length, length - 1);
    ASSERT_EQ(found, expected);
    for (int64_t i = 0; i < 3; ++i) {
      const int32_t draft = some_token(s.shape(), length + i);
      const HiddenRows last(expected.begin(), expected.begin() + width);
      found = s.chain(0, draft, length + i);
      expected = cold.explicit_rows(0, std::span(&draft, 1), length + i, last);
      ASSERT_TRUE(found == expected) << model << ", " << length << " rows, chain row " << i;
    }
  }
}

TEST(MtpChain, InTheDenseRegimeIsTheDirectComposition) {
  // tinyA attends to everything up to 15 tokens, nano up to 259: the last chain row is the last dense one.
  expect_chains_of_explicit_rows("tinyA", mtp_ids("tinyA", "case_T46"), {}, std::vector<int64_t>{1, 2, 3, 4, 5, 8, 12});
  expect_chains_of_explicit_rows("nano", mtp_ids("nano", "case_T700"), {}, std::vector<int64_t>{1, 16, 63, 256});
  expect_chains_of_explicit_rows("tinyA", mtp_ids("tinyA", "case_T46"), {.cache_type = CacheType::bf16},
                                 std::vector<int64_t>{3, 9});
}

TEST(MtpChain, WithoutSharingEachRowSelectsForItself) {
  const std::vector<int64_t> lengths{12, 13, 14, 15, 16, 17, 18, 40, 64};
  expect_chains_of_explicit_rows("tinyA", mtp_ids("tinyA", "case_T130"), {.share = false}, lengths);
  expect_chains_of_explicit_rows("nano", mtp_ids("nano", "case_T700"), {.share = false},
                                 std::vector<int64_t>{258, 301});
}

// Two streams in one step have the bits of each alone.
TEST(MtpSteps, StreamsOfOneStep) {
  const Ids a = mtp_ids("tinyA", "case_T67"), b = mtp_ids("tinyA", "case_T46");
  MtpStreams alone("tinyA"), both("tinyA");
  const auto one = [&](int32_t slot, const Ids& ids, int64_t length) {
    alone.text(slot, std::span(ids).first(static_cast<size_t>(length)), 0);
    std::vector<HiddenRows> rows{mtp_row(alone.shape(), alone.absorb(slot, ids, 0, length), length, length - 1)};
    for (int64_t i = 0; i < 2; ++i) rows.push_back(alone.chain(slot, some_token(alone.shape(), i), length + i));
    return rows;
  };
  const std::vector<HiddenRows> of_a = one(1, a, 40), of_b = one(0, b, 9);
  Step text, absorb, chain;
  both.add(text, 1, std::span(a).first(40), 0);
  both.add(text, 0, std::span(b).first(9), 0);
  both.run(text);
  both.add_absorb(absorb, 0, b, 0, 9);  // in another order than the text rows
  both.add_absorb(absorb, 1, a, 0, 40);
  const HiddenRows all = both.run_mtp_step(absorb);
  EXPECT_EQ(mtp_row(both.shape(), all, 49, 8), of_b[0]);
  EXPECT_EQ(mtp_row(both.shape(), all, 49, 48), of_a[0]);
  for (size_t i = 0; i < 2; ++i) {
    const int32_t draft = some_token(both.shape(), static_cast<int64_t>(i));
    chain.clear();
    chain.kind = StepKind::mtp_chain;
    both.add(chain, 1, std::span(&draft, 1), 40 + static_cast<int64_t>(i));
    both.add(chain, 0, std::span(&draft, 1), 9 + static_cast<int64_t>(i));
    const HiddenRows rows = both.run_mtp_step(chain);
    EXPECT_EQ(mtp_row(both.shape(), rows, 2, 0), of_a[i + 1]);
    EXPECT_EQ(mtp_row(both.shape(), rows, 2, 1), of_b[i + 1]);
  }
}

// Absorbed in two steps, chained in one; and logits of the wanted rows alone.
TEST(MtpSteps, AChainGoesOnFromAnEarlierStepOfTheRound) {
  const Ids a = mtp_ids("tinyA", "case_T67"), b = mtp_ids("tinyA", "case_T46");
  MtpStreams s("tinyA");
  Step text, chain;
  s.add(text, 0, std::span(a).first(20), 0);
  s.add(text, 1, std::span(b).first(22), 0);
  s.run(text);
  s.absorb(0, a, 0, 20);
  s.absorb(1, b, 0, 22);
  const int32_t draft = 5;
  chain.kind = StepKind::mtp_chain;
  s.add(chain, 0, std::span(&draft, 1), 20);
  s.add(chain, 1, std::span(&draft, 1), 22);
  const HiddenRows both = s.run_mtp_step(chain);
  s.run(text);
  s.absorb(0, a, 0, 20);
  EXPECT_EQ(s.chain(0, draft, 20), mtp_row(s.shape(), both, 2, 0));
  Step some;
  s.add_absorb(some, 1, b, 0, 22);
  some.logit_rows = {21};
  const HiddenRows last = s.run(some);
  EXPECT_EQ(std::ssize(last), s.shape().vocab_size);
  some.logit_rows.clear();
  EXPECT_TRUE(s.run(some).empty());
  EXPECT_EQ(s.chain(1, draft, 22), mtp_row(s.shape(), both, 2, 1));
}

// A round: the pending token and wrong drafts are run, rows are absorbed, three are chained. The text model has the
// bits of a stream without any of it.
TEST(MtpSteps, TheTextModelDoesNotNotice) {
  for (const auto& [model, name] : {std::pair{"tinyA", "case_T67"}, std::pair{"nano", "case_T40"}}) {
    const Ids ids = mtp_ids(model, name);
    MtpStreams s(model), plain(model, {.mtp = false});
    const HiddenRows whole = plain.text(ids, 0, std::ssize(ids));
    const int64_t vocab = s.shape().vocab_size;
    for (int64_t p = 0; p + 1 < std::ssize(ids); ++p) {
      Ids window{ids[static_cast<size_t>(p)]};
      for (int64_t i = 0; i < 3; ++i) window.push_back(some_token(s.shape(), p + i));
      const HiddenRows logits = s.text(0, window, p, 3);
      const auto expected = whole.begin() + p * vocab;
      ASSERT_TRUE(std::equal(expected, expected + vocab, logits.begin())) << model << " " << p;
      s.absorb(0, ids, p, p + 1);
      for (int64_t i = 1; i <= 3; ++i) s.chain(0, some_token(s.shape(), p * i), p + i);
    }
    s.text(ids, std::ssize(ids) - 1, std::ssize(ids));
    EXPECT_EQ(s.states(0), plain.states(0)) << model;
  }
}

TEST(MtpSteps, StepsThatBreakTheRulesAreRefused) {
  const Ids ids = mtp_ids("tinyA", "case_T67");
  MtpStreams s("tinyA");
  const auto absorb_refused = [&](int64_t from, int64_t to) { EXPECT_THROW(s.absorb(0, ids, from, to), Error); };
  const auto chain_refused = [&](int64_t position) { EXPECT_THROW(s.chain(0, 1, position), Error); };
  absorb_refused(0, 1);  // no text rows yet
  chain_refused(0);
  s.text(ids, 0, 40);
  s.text(ids, 40, 44);
  chain_refused(44);  // nothing absorbed
  absorb_refused(44, 45);
  absorb_refused(40, 45);
  absorb_refused(11, 13);  // gone from the head ring
  s.absorb(0, ids, 12, 44);
  chain_refused(43);
  chain_refused(45);
  EXPECT_THROW(s.chain(1, 1, 0), Error);
  Step two;  // two rows of one chain
  two.kind = StepKind::mtp_chain;
  s.add(two, 0, std::vector<int32_t>{1, 2}, 44);
  EXPECT_THROW(s.run(two), Error);
  for (int64_t i = 0; i < cache::max_window - 1; ++i) s.chain(0, 1, 44 + i);
  s.chain(0, 1, 43 + cache::max_window);
  chain_refused(44 + cache::max_window);  // the ring would lose the last true pool
  s.text(ids, 44, 45);
  chain_refused(44 + cache::max_window);  // another round
  const auto refused = [&](auto change) {
    Step step;
    s.add_absorb(step, 0, ids, 40, 44);
    change(step);
    EXPECT_THROW(s.run(step), Error);
  };
  refused([](Step& step) { step.tokens[1] = 203; });
  refused([](Step& step) { step.logit_rows = {4}; });
  refused([](Step& step) { step.page_tables[0] = 0; });
  refused([](Step& step) { step.head_slots = {1}; });
  refused([](Step& step) { step.keeps = {{0, 0, 45}}; });
  refused([](Step& step) { step.page_copies = {{1, 2, 3, 0}}; });
  refused([](Step& step) { step.segments.clear(); });
  refused([](Step& step) { step.tokens.clear(), step.positions.clear(), step.segments.clear(); });
  s.absorb(0, ids, 40, 45);  // nothing is broken
  Step start;                // a window that was rolled back has overwritten older head rows
  s.add(start, 0, std::vector<int32_t>(17, 3), 45, 16);
  s.run(start);
  s.text(ids, 46, 47);
  s.absorb(0, ids, 30, 47);
  absorb_refused(29, 47);
}

TEST(MtpSteps, WithoutTheLayerNothingIsAllocatedForIt) {
  const model::Shape& shape = loaded("tinyA").shape;
  Capacity with = MtpStreams::capacity({}), without = MtpStreams::capacity({.mtp = false});
  model::Shape none = shape;
  none.num_nextn_predict_layers = 0;
  EXPECT_LT(TextModel::planned_bytes(shape, without), TextModel::planned_bytes(shape, with));
  EXPECT_EQ(TextModel::planned_bytes(shape, without), TextModel::planned_bytes(none, with));
  EXPECT_EQ(TextModel::kept_state_bytes(shape, {}, false), TextModel::kept_state_bytes(none));
  with.pages = without.pages = 50;
  const auto page = [&](Capacity capacity) {
    const int64_t before = TextModel::planned_bytes(shape, capacity);
    ++capacity.pages;
    return TextModel::planned_bytes(shape, capacity) - before;
  };
  EXPECT_EQ(page(with) * 2, page(without) * 3);  // two DSA layers, and the MTP layer
  const Ids ids = mtp_ids("tinyA", "case_T15");
  MtpStreams s("tinyA", {.mtp = false});
  s.text(ids, 0, 10);
  EXPECT_THROW(s.absorb(0, ids, 0, 10), Error);
  EXPECT_THROW(s.chain(0, 1, 10), Error);
  MtpStreams no_layer("tinyB");
  no_layer.text(ids, 0, 10);
  EXPECT_THROW(no_layer.absorb(0, ids, 0, 10), Error);
}

}  // namespace
}  // namespace tandem::forward::mtp_test
