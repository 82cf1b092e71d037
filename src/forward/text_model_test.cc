// Bits of the whole model that must not depend on how the work was cut, shared or threaded.
#include "forward/text_model.h"

#include <cstring>
#include <limits>

#include "base/error.h"
#include "device/threads.h"
#include "forward/test_models.h"
#include "ops/simd/kernels.h"

namespace tandem::forward::text_model_test {
namespace {

// Everything that a run leaves behind: logits of every row, the KDA states, compared bit for bit.
struct Trace {
  std::vector<float> logits, hidden, state, conv;

  bool operator==(const Trace& other) const {
    const auto same = [](const std::vector<float>& a, const std::vector<float>& b) {
      return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
    };
    return same(logits, other.logits) && same(hidden, other.hidden) && same(state, other.state) &&
           same(conv, other.conv);
  }
};

class Stream {
 public:
  Stream(const std::string& model, int threads = 2, int32_t max_rows = 256)
      : loaded_(loaded(model)),
        threads_(threads),
        text_(loaded_.shape, loaded_.weights, threads_,
              Capacity{.slots = 2, .pages = 9, .max_rows = max_rows, .max_logit_rows = max_rows}) {}

  // Runs tokens at `position`; all rows but the last `uncertain` ones are certain.
  void run(std::span<const int32_t> tokens, int64_t position, int32_t uncertain = 0) {
    Step step = single_stream_step(tokens, position, 4);
    step.segments[0].certain_rows -= uncertain;
    for (size_t i = 0; i < tokens.size(); ++i) step.logit_rows.push_back(static_cast<int32_t>(i));
    text_.run(step);
  }
  void keep(Trace& trace, size_t rows) const {
    const auto vocab = static_cast<size_t>(loaded_.shape.vocab_size),
               hidden = static_cast<size_t>(loaded_.shape.hidden_size);
    trace.logits.insert(trace.logits.end(), text_.logits().begin(),
                        text_.logits().begin() + static_cast<std::ptrdiff_t>(rows * vocab));
    trace.hidden.insert(trace.hidden.end(), text_.hidden().begin(),
                        text_.hidden().begin() + static_cast<std::ptrdiff_t>(rows * hidden));
  }
  void keep_states(Trace& trace, int32_t slot = 0) const {
    const model::Shape& s = loaded_.shape;
    int64_t kda_layer = 0;
    for (const model::AttentionKind kind : s.layer_types) {
      if (kind != model::AttentionKind::kda) continue;
      std::vector<float> state(static_cast<size_t>(s.kda_width() * s.kda_head_dim)),
          conv(static_cast<size_t>(3 * s.kda_width() * (s.short_conv_kernel_size - 1)));
      text_.read_kda_state(slot, kda_layer++, state, conv);
      trace.state.insert(trace.state.end(), state.begin(), state.end());
      trace.conv.insert(trace.conv.end(), conv.begin(), conv.end());
    }
  }
  TextModel& text() { return text_; }
  const model::Shape& shape() const { return loaded_.shape; }

 private:
  const Loaded& loaded_;
  device::Threads threads_;
  TextModel text_;
};

// Runs the ids cut before each position in `cuts`.
Trace run_cut(Stream& stream, const std::vector<int32_t>& ids, const std::vector<size_t>& cuts) {
  Trace trace;
  size_t begin = 0;
  const auto piece = [&](size_t end) {
    stream.run(std::span(ids).subspan(begin, end - begin), static_cast<int64_t>(begin));
    stream.keep(trace, end - begin);
    begin = end;
  };
  for (const size_t cut : cuts) {
    if (cut > begin && cut < ids.size()) piece(cut);
  }
  piece(ids.size());
  stream.keep_states(trace);
  return trace;
}

std::vector<size_t> every(size_t chunk, size_t n) {
  std::vector<size_t> cuts;
  for (size_t cut = chunk; cut < n; cut += chunk) cuts.push_back(cut);
  return cuts;
}

struct SequenceCase {
  const char* model;
  const char* name;
};

class OneArithmetic : public ::testing::TestWithParam<SequenceCase> {
 protected:
  const std::vector<int32_t> ids = golden_ids(GetParam().model, GetParam().name);
};

TEST_P(OneArithmetic, TokenByTokenEqualsOneShot) {
  Stream stream(GetParam().model);
  const Trace one_shot = run_cut(stream, ids, {});
  EXPECT_TRUE(run_cut(stream, ids, every(1, ids.size())) == one_shot);
}

TEST_P(OneArithmetic, ChunksAtEveryOffsetEqualOneShot) {
  Stream stream(GetParam().model);
  const Trace one_shot = run_cut(stream, ids, {});
  for (size_t offset = 1; offset <= 9; ++offset) {
    EXPECT_TRUE(run_cut(stream, ids, {offset}) == one_shot) << "first chunk of " << offset;
    EXPECT_TRUE(run_cut(stream, ids, every(offset, ids.size())) == one_shot) << "chunks of " << offset;
  }
}

TEST_P(OneArithmetic, ThreadsDoNotMatter) {
  Stream one(GetParam().model, 1), three(GetParam().model, 3);
  EXPECT_TRUE(run_cut(one, ids, {7}) == run_cut(three, ids, {20}));
}

INSTANTIATE_TEST_SUITE_P(Sequences, OneArithmetic,
                         ::testing::Values(SequenceCase{"tinyA", "case_T46"}, SequenceCase{"tinyA", "case_T130"},
                                           SequenceCase{"tinyB", "case_T200"}, SequenceCase{"nano", "case_T40"}));

TEST(TextModel, InstructionSetsGiveTheSameBits) {
  const std::vector<int32_t> ids = golden_ids("tinyA", "case_T67");
  const ops::SimdLevel best = ops::kernels().level;
  ops::use_simd_level(ops::SimdLevel::scalar);
  Stream stream("tinyA");
  const Trace scalar = run_cut(stream, ids, {5});
  for (const ops::SimdLevel level : {ops::SimdLevel::neon, ops::SimdLevel::avx2, ops::SimdLevel::avx512}) {
    if (!ops::simd_level_available(level)) continue;
    ops::use_simd_level(level);
    EXPECT_TRUE(run_cut(stream, ids, {5}) == scalar) << "level " << static_cast<int>(level);
  }
  ops::use_simd_level(best);
}

// At every position a window of wrong drafts is run and dropped; what is kept must be what serial decoding leaves.
TEST(TextModel, DroppedRowsLeaveNoTrace) {
  const std::vector<int32_t> ids = golden_ids("tinyA", "case_T67");
  Stream stream("tinyA");
  const Trace serial = run_cut(stream, ids, every(1, ids.size()));
  for (const int32_t drafts : {1, 3, 7, 15, 16}) {
    Trace trace;
    for (size_t p = 0; p < ids.size(); ++p) {
      std::vector<int32_t> window{ids[p]};
      for (int32_t i = 0; i < drafts; ++i) window.push_back((ids[p] + 31 * i + 1) % 203);
      if (p + 1 == ids.size()) window.resize(1);
      stream.run(window, static_cast<int64_t>(p), static_cast<int32_t>(window.size()) - 1);
      stream.keep(trace, 1);
    }
    stream.keep_states(trace);
    EXPECT_TRUE(trace == serial) << drafts << " drafts";
  }
}

// Right drafts, kept in part: the window advances by `kept` rows each step.
TEST(TextModel, KeptDraftsEqualSerial) {
  const std::vector<int32_t> ids = golden_ids("tinyA", "case_T130");
  Stream stream("tinyA");
  const Trace serial = run_cut(stream, ids, every(1, ids.size()));
  for (const size_t window : {2u, 5u, 8u, 17u}) {
    for (const size_t kept : {size_t{1}, window / 2, window}) {
      Trace trace;
      for (size_t p = 0; p < ids.size(); p += std::max<size_t>(1, kept)) {
        const size_t rows = std::min(window, ids.size() - p);
        stream.run(std::span(ids).subspan(p, rows), static_cast<int64_t>(p), static_cast<int32_t>(rows) - 1);
        stream.keep(trace, std::min({std::max<size_t>(1, kept), rows}));
      }
      stream.keep_states(trace);
      EXPECT_TRUE(trace == serial) << "window " << window << ", kept " << kept;
    }
  }
}

TEST(TextModel, StreamsOfOneStepDoNotSeeEachOther) {
  const std::vector<int32_t> a = golden_ids("tinyA", "case_T67"), b = golden_ids("tinyA", "case_T46");
  Stream stream("tinyA");
  const Trace alone_a = run_cut(stream, a, {40}), alone_b = run_cut(stream, b, {});
  const auto both = [&](std::span<const int32_t> x, int64_t at_x, std::span<const int32_t> y, int64_t at_y) {
    Step step;
    step.tokens.assign(x.begin(), x.end());
    step.tokens.insert(step.tokens.end(), y.begin(), y.end());
    for (size_t i = 0; i < x.size(); ++i) step.positions.push_back(at_x + static_cast<int64_t>(i));
    for (size_t i = 0; i < y.size(); ++i) step.positions.push_back(at_y + static_cast<int64_t>(i));
    step.page_tables = {5, 2, 3, 4};  // physical numbers in no order
    const auto rows_x = static_cast<int32_t>(x.size()), rows_y = static_cast<int32_t>(y.size());
    step.segments.push_back({.slot = 1,
                             .page_table = 0,
                             .pages = 2,
                             .first_row = 0,
                             .rows = rows_x,
                             .certain_rows = rows_x,
                             .position = at_x});
    step.segments.push_back({.slot = 0,
                             .page_table = 2,
                             .pages = 2,
                             .first_row = rows_x,
                             .rows = rows_y,
                             .certain_rows = rows_y,
                             .position = at_y});
    for (int32_t i = 0; i < rows_x + rows_y; ++i) step.logit_rows.push_back(i);
    stream.text().run(step);
  };
  Trace states_a, states_b;
  both(std::span(a).first(40), 0, std::span(b).first(9), 0);
  both(std::span(a).subspan(40), 40, std::span(b).subspan(9), 9);
  stream.keep_states(states_a, 1);
  stream.keep_states(states_b, 0);
  const auto vocab = static_cast<size_t>(stream.shape().vocab_size);
  const size_t rows_a = a.size() - 40, rows_b = b.size() - 9;
  EXPECT_EQ(std::memcmp(stream.text().logits().data(), alone_a.logits.data() + 40 * vocab, rows_a * vocab * 4), 0);
  EXPECT_EQ(std::memcmp(stream.text().logits().data() + rows_a * vocab, alone_b.logits.data() + 9 * vocab,
                        rows_b * vocab * 4),
            0);
  EXPECT_EQ(states_a.state, alone_a.state);
  EXPECT_EQ(states_b.state, alone_b.state);
  EXPECT_EQ(states_b.conv, alone_b.conv);
}

TEST(TextModel, MtpRowsInChunksEqualOneShot) {
  const std::vector<int32_t> ids = golden_ids("tinyA", "case_T46");
  Stream stream("tinyA");
  stream.run(ids, 0);
  const std::vector<float> hidden(stream.text().hidden().begin(), stream.text().hidden().end());
  const auto width = static_cast<size_t>(stream.shape().hidden_size);
  const auto mtp = [&](size_t begin, size_t end, std::vector<float>& out) {
    const Step step =
        single_stream_step(std::span(ids).subspan(begin + 1, end - begin), static_cast<int64_t>(begin), 1);
    stream.text().run_mtp(step, std::span(hidden).subspan(begin * width));
    out.insert(out.end(), stream.text().mtp_hidden().begin(), stream.text().mtp_hidden().end());
  };
  std::vector<float> one_shot, chunked;
  mtp(0, 45, one_shot);
  for (size_t begin = 0; begin < 45; begin += 3) mtp(begin, begin + 3, chunked);
  EXPECT_EQ(one_shot, chunked);
}

TEST(TextModel, AStepThatBreaksTheRulesIsRefused) {
  Stream stream("tinyA");
  const std::vector<int32_t> ids = golden_ids("tinyA", "case_T15");
  const auto refused = [&](auto change) {
    Step step = single_stream_step(ids, 0, 1);
    change(step);
    EXPECT_THROW(stream.text().run(step), Error);
  };
  refused([](Step& s) { s.tokens[3] = 203; });
  refused([](Step& s) { s.tokens[3] = -1; });
  refused([](Step& s) { s.segments[0].slot = 2; });
  refused([](Step& s) { s.segments[0].rows = 14; });
  refused([](Step& s) { s.segments[0].position = 5; });
  refused([](Step& s) { s.positions[4] = 5; });
  refused([](Step& s) { s.segments[0].position = std::numeric_limits<int64_t>::max(); });
  refused([](Step& s) { s.segments[0].position = -1; });
  refused([](Step& s) { s.segments[0].first_row = std::numeric_limits<int32_t>::max(); });
  refused([](Step& s) { s.segments[0].page_table = std::numeric_limits<int32_t>::max(); });
  refused([](Step& s) { s.segments[0].pages = std::numeric_limits<int32_t>::max(); });
  refused([](Step& s) { s.segments[0].certain_rows = 16; });
  refused([](Step& s) { s.page_tables[0] = 0; });
  refused([](Step& s) { s.page_tables[0] = 9; });
  refused([](Step& s) { s.page_tables.clear(); });
  refused([](Step& s) { s.logit_rows = {15}; });
  refused([](Step& s) {  // the engine chooses from logits, and has another runner for what cannot
    s.logit_rows = {0};
    s.samples = {{.size = 1}};
  });
  refused([](Step& s) { s.segments.clear(); });
  refused([](Step& s) { s.tokens.clear(), s.positions.clear(), s.segments.clear(); });
  stream.run(ids, 0);
  EXPECT_THROW(stream.run(std::span(ids).first(1), 14), Error);  // row 14 was certain
  EXPECT_THROW(stream.run(std::span(ids).first(1), 16), Error);  // row 15 is missing
  stream.run(std::span(ids).first(1), 15);
}

TEST(TextModel, PlannedBytesGrowWithEveryPart) {
  const model::Shape& shape = loaded("tinyA").shape;
  const auto capacity = [](int32_t slots, int64_t pages, int32_t rows, int32_t logit_rows) {
    return Capacity{.slots = slots, .pages = pages, .max_rows = rows, .max_logit_rows = logit_rows};
  };
  const int64_t base = TextModel::planned_bytes(shape, capacity(1, 2, 16, 1));
  EXPECT_EQ(TextModel::planned_bytes(shape, capacity(1, 3, 16, 1)) - base,
            // a page: latent and pooled rows of two DSA layers and the MTP layer, and the scores of one thread
            3 * 256 * 4 * 72 + 3 * 64 * 4 * 32 + 64 * 8);
  EXPECT_GT(TextModel::planned_bytes(shape, capacity(2, 2, 16, 1)), base);
  EXPECT_GT(TextModel::planned_bytes(shape, capacity(1, 2, 17, 1)), base);
  EXPECT_GT(TextModel::planned_bytes(shape, capacity(1, 2, 16, 2)), base);
  Capacity kept = capacity(1, 2, 16, 1);
  kept.kept_states = 2;
  EXPECT_EQ(TextModel::planned_bytes(shape, kept) - base, 2 * TextModel::kept_state_bytes(shape));
}

}  // namespace
}  // namespace tandem::forward::text_model_test
