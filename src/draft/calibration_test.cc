// The procedure of 5.3 with a clock that the test sets: batches are never mixed, and the choice is the stated one.
#include "draft/calibration.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>

#include "base/error.h"
#include "draft/step_timer.h"
#include "draft/timing_file.h"

namespace tandem::draft::calibration_test {
namespace {

class FakeTimer : public PieceTimer {
 public:
  // ms of (batch, pass, piece).
  std::function<double(int32_t, int32_t, const Piece&)> ms;
  std::vector<std::string> calls;

  void begin_pass(int32_t pass) override {
    if (pass == 0) ++batch_;
    pass_ = pass;
    calls.emplace_back("pass");
  }
  double time(const Piece& piece) override {
    calls.push_back(name_of(piece));
    return ms(batch_, pass_, piece);
  }

 private:
  int32_t batch_ = -1, pass_ = 0;
};

constexpr CalibrationOptions everything = {.rows = 4, .mtp_drafts = 3, .blocks = true, .overhead_ms = 0.25};

double plain(const Piece& piece) {
  switch (piece.kind) {
    case Piece::Kind::verify: return 10 + 2 * piece.count;
    case Piece::Kind::mtp: return 1 + 0.5 * (piece.count - 1);
    case Piece::Kind::mtp_absorb: return 1 + 0.1 * (piece.count - 1);
    case Piece::Kind::block: return 3;
  }
  return 0;
}

TEST(Calibration, TimesAllPiecesInTurn) {
  FakeTimer timer;
  timer.ms = [](int32_t, int32_t, const Piece& piece) { return plain(piece); };
  int progress = 0;
  const Calibration result = calibrate(timer, everything, [&](int32_t, int32_t) { ++progress; });
  EXPECT_EQ(progress, 27);
  ASSERT_EQ(timer.calls.size(), 27u * 9);
  EXPECT_EQ(std::vector<std::string>(timer.calls.begin() + 9, timer.calls.begin() + 18),
            (std::vector<std::string>{"pass", "v1", "v2", "v3", "v4", "m1", "m3", "absorb6", "block"}));
  EXPECT_EQ(result.table.verify_ms, (std::vector<double>{12, 14, 16, 18}));
  EXPECT_DOUBLE_EQ(result.table.mtp_ms, 1);
  EXPECT_DOUBLE_EQ(result.table.mtp_step_ms, 0.5);
  EXPECT_DOUBLE_EQ(result.table.mtp_row_ms, 0.1);
  EXPECT_DOUBLE_EQ(result.table.block_ms, 3);
  EXPECT_DOUBLE_EQ(result.table.overhead_ms, 0.25);
  EXPECT_EQ(result.chosen, 0);
  EXPECT_FALSE(result.doubtful);
  EXPECT_EQ(result.table.id, id_of(result.table));
  EXPECT_EQ(pieces_of({.rows = 2}).size(), 2u);
  EXPECT_EQ(pieces_of({.rows = 2, .mtp_drafts = 1}).size(), 4u);
  EXPECT_THROW(pieces_of({.rows = 0}), Error);
}

TEST(Calibration, TakesTheFastestOfSevenAfterTwoToWarmUp) {
  FakeTimer timer;
  timer.ms = [](int32_t, int32_t pass, const Piece& piece) {
    return pass < 2 ? 0.001 : plain(piece) * (pass == 5 ? 1.0 : 1.0 + 0.1 * pass);
  };
  const Calibration result = calibrate(timer, everything);
  EXPECT_EQ(result.table.verify_ms, (std::vector<double>{12, 14, 16, 18}));
  EXPECT_EQ(result.batches[0].samples[0].size(), 9u);
  EXPECT_EQ(result.batches[0].samples[0][0], 0.001);
}

TEST(Calibration, NeverMixesBatches) {
  // Batch 1 has the smallest sum; single pieces are faster in the others.
  FakeTimer timer;
  timer.ms = [](int32_t batch, int32_t, const Piece& piece) {
    const double factor = batch == 1 ? 1.0 : piece.kind == Piece::Kind::verify && piece.count > 1 ? 1.5 : 0.5;
    return plain(piece) * factor;
  };
  const Calibration result = calibrate(timer, everything);
  EXPECT_EQ(result.chosen, 1);
  EXPECT_EQ(result.table.verify_ms, (std::vector<double>{12, 14, 16, 18}));
  EXPECT_DOUBLE_EQ(result.table.mtp_ms, 1);
  EXPECT_DOUBLE_EQ(result.table.block_ms, 3);
}

TEST(Calibration, DiscardsBatchesThatDoNotAscend) {
  FakeTimer timer;
  double dip = 0.97;
  timer.ms = [&](int32_t batch, int32_t, const Piece& piece) {
    const bool dips = batch == 0 && piece == Piece{Piece::Kind::verify, 4};
    return dips ? plain({Piece::Kind::verify, 3}) * dip : plain(piece) * (1 + 0.01 * batch);
  };
  Calibration result = calibrate(timer, everything);
  EXPECT_FALSE(result.batches[0].ascends);  // the smallest sum, but a fourth row makes it 3 % faster
  EXPECT_EQ(result.chosen, 1);
  dip = 0.99;
  FakeTimer within;
  within.ms = timer.ms;
  result = calibrate(within, everything);
  EXPECT_TRUE(result.batches[0].ascends);
  EXPECT_EQ(result.chosen, 0);
}

TEST(Calibration, SaysSoWhenNoBatchAscends) {
  FakeTimer timer;
  timer.ms = [](int32_t batch, int32_t, const Piece& piece) {
    return piece.kind == Piece::Kind::verify ? (batch == 2 ? 9.0 : 10.0) / piece.count : 1.0;
  };
  const Calibration result = calibrate(timer, everything);
  EXPECT_TRUE(result.doubtful);
  EXPECT_EQ(result.chosen, 2);
  for (size_t i = 1; i < 4; ++i) EXPECT_GE(result.table.verify_ms[i], result.table.verify_ms[i - 1]);
}

TEST(Calibration, TheChoiceIsTheFirstOfEquals) {
  const auto batch = [](double sum, bool ascends) {
    CalibrationBatch made;
    made.verify_sum = sum;
    made.ascends = ascends;
    return made;
  };
  EXPECT_EQ(choose_batch({batch(3, true), batch(2, true), batch(2, true)}), 1);
  EXPECT_EQ(choose_batch({batch(1, false), batch(2, true), batch(3, true)}), 1);
  EXPECT_EQ(choose_batch({batch(3, false), batch(2, false), batch(2, false)}), 1);
  EXPECT_THROW(choose_batch({}), Error);
}

TEST(Calibration, RefusesTimesThatAreNone) {
  for (const double wrong :
       {0.0, -1.0, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    FakeTimer timer;
    timer.ms = [&](int32_t, int32_t pass, const Piece& piece) {
      return pass == 3 && piece.kind == Piece::Kind::block ? wrong : plain(piece);
    };
    try {
      calibrate(timer, everything);
      ADD_FAILURE() << wrong;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::failed_check);
      EXPECT_NE(std::string(error.what()).find("block"), std::string::npos);
    }
  }
}

TEST(Calibration, SmoothingIsALineOfMedians) {
  EXPECT_EQ(smoothed({10, 13, 15, 17, 19}), (std::vector<double>{10, 13, 15, 17, 19}));
  const std::vector<double> outlier = smoothed({10, 13, 15, 30, 19, 21});
  EXPECT_EQ(outlier[0], 10);
  for (size_t i = 1; i < 6; ++i) EXPECT_NEAR(outlier[i], 11 + 2 * static_cast<double>(i), 1e-9);
  EXPECT_EQ(smoothed({10}), (std::vector<double>{10}));
  EXPECT_EQ(smoothed({10, 9}), (std::vector<double>{10, 10}));
  EXPECT_EQ(smoothed({10, 5, 4, 3}), (std::vector<double>{10, 10, 10, 10}));  // ascending, whatever was measured
}

Calibration measured() {
  FakeTimer timer;
  std::mt19937 random(3);
  timer.ms = [&](int32_t, int32_t, const Piece& piece) {
    return plain(piece) * (1 + static_cast<double>(random() % 1000) / 100000 / 3);
  };
  return calibrate(timer, everything);
}

std::string refusal(const std::string& text, std::string_view key = "key") {
  try {
    parse_timing(text, key, "timing.json");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::bad_file);
    EXPECT_EQ(error.where().rfind("timing.json", 0), 0u) << error.where();
    return error.what();
  }
  return "";
}

TEST(TimingFile, KeepsTheTableBitByBit) {
  const Calibration calibration = measured();
  const TimingTable table = parse_timing(timing_json(calibration, "k\"ey"), "k\"ey", "timing.json");
  EXPECT_EQ(table.id, calibration.table.id);
  EXPECT_EQ(table.verify_ms, calibration.table.verify_ms);
  EXPECT_EQ(table.mtp_ms, calibration.table.mtp_ms);
  EXPECT_EQ(table.mtp_step_ms, calibration.table.mtp_step_ms);
  EXPECT_EQ(table.mtp_row_ms, calibration.table.mtp_row_ms);
  EXPECT_EQ(table.block_ms, calibration.table.block_ms);
  EXPECT_EQ(table.overhead_ms, calibration.table.overhead_ms);
}

TEST(TimingFile, NamesWhatIsWrong) {
  const std::string good = timing_json(measured(), "key");
  EXPECT_EQ(refusal(good), "");
  EXPECT_NE(refusal(good, "other").find("key: 'key'; expected 'other'"), std::string::npos) << refusal(good, "other");
  for (size_t size = 0; size + 2 < good.size(); size += 1 + size / 7)
    EXPECT_NE(refusal(good.substr(0, size)), "") << size;
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return refusal(text.replace(at, from.size(), to));
  };
  EXPECT_NE(changed("tandem.timing/1", "tandem.timing/2").find("schema"), std::string::npos);
  EXPECT_NE(changed("\"block_ms\"", "\"blocks\"").find("block_ms"), std::string::npos);
  EXPECT_NE(changed("\"block_ms\":", "\"block_ms\":-").find("block_ms"), std::string::npos);
  EXPECT_NE(changed("\"block_ms\":", "\"block_ms\":1").find("id"), std::string::npos);  // changed by hand
  EXPECT_NE(changed("\"verify_ms\":[", "\"verify_ms\":[99999,").find("verify_ms[1]"), std::string::npos);
  EXPECT_NE(changed("\"verify_ms\":[", "\"verify_ms\":[0,").find("verify_ms[0]"), std::string::npos);
  EXPECT_NE(changed("\"verify_ms\":[", "\"verify_ms\":[\"a\",").find("verify_ms[0]"), std::string::npos);
  EXPECT_NE(changed("\"verify_ms\":[", "\"verify_ms\":[],\"b\":[").find("verify_ms"), std::string::npos);
  EXPECT_NE(changed("\"key\":\"key\"", "\"key\":7").find("key"), std::string::npos);
  EXPECT_NE(refusal("[]"), "");
  EXPECT_NE(refusal("{}").find("schema"), std::string::npos);
  EXPECT_NE(refusal(std::string(500000, '[')), "");
  EXPECT_NE(refusal("{\"a\":" + std::string(200, '[') + std::string(200, ']') + "}").find("128"), std::string::npos);
  EXPECT_NE(refusal(good + std::string(1, '\0')), "");
  EXPECT_NE(refusal("{\"schema\":\"\xff\"}"), "");
  EXPECT_NE(refusal(std::string(5 << 20, ' ')).find("bytes"), std::string::npos);
}

TEST(TimingFile, IsWrittenWholeOrNotAtAll) {
  const auto folder = std::filesystem::temp_directory_path() / ("tandem_timing_" + std::to_string(::getpid()));
  std::filesystem::create_directories(folder);
  const auto path = folder / "timing.json";
  const Calibration calibration = measured();
  write_timing(path, calibration, "key");
  write_timing(path, calibration, "key");  // over the one that is there
  EXPECT_EQ(read_timing(path, "key").id, calibration.table.id);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator()), 1);
  std::ofstream(path, std::ios::trunc).close();
  EXPECT_THROW(read_timing(path, "key"), Error);
  EXPECT_THROW(read_timing(folder / "none.json", "key"), Error);
  try {
    write_timing(folder / "no" / "timing.json", calibration, "key");
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::resource);
  }
  std::filesystem::create_directories(folder / "folder");
  EXPECT_THROW(write_timing(folder / "folder", calibration, "key"), Error);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator()), 2);
  std::filesystem::remove_all(folder);
}

// A model of which every step takes a known time, and that checks what is run.
class ClockedModel : public forward::StepRunner {
 public:
  static constexpr int32_t vocabulary = 32;
  double now = 0;
  int64_t certain = 0, end = 0, chain = -1;
  std::vector<int64_t> places;

  void run(const forward::Step& step) override {
    const auto rows = static_cast<int32_t>(step.tokens.size());
    ASSERT_EQ(step.segments.size(), 1u);
    const forward::Segment& segment = step.segments[0];
    ASSERT_EQ(segment.pages, (segment.position + rows + 15) / 16);
    ASSERT_EQ(segment.rows, rows);
    logits_.assign(static_cast<size_t>(vocabulary) * step.logit_rows.size(), 0.0f);
    const int64_t position = segment.position;
    switch (step.kind) {
      case forward::StepKind::text:
        ASSERT_TRUE(position == 0 || (position >= certain && position <= end)) << position;
        certain = position + segment.certain_rows;
        end = position + rows;
        if (segment.certain_rows == 0 && rows == 1) places.push_back(position);
        now += 10 + 2 * rows;
        for (size_t i = 0; i < step.logit_rows.size(); ++i)
          logits_[i * vocabulary + next(step.tokens[static_cast<size_t>(step.logit_rows[i])])] = 1;
        break;
      case forward::StepKind::mtp_absorb:
        ASSERT_LE(position + rows, certain);
        ASSERT_GE(position, std::max<int64_t>(0, end - 32));
        chain = position + rows;
        now += 1 + 0.1 * (rows - 1);
        break;
      case forward::StepKind::mtp_chain:
        ASSERT_EQ(position, chain++);
        now += 0.5;
        break;
      case forward::StepKind::dflash2:
        ASSERT_EQ(position, certain);
        now += 3;
        break;
    }
    sampled_.clear();
    for (const forward::RowSample& sample : step.samples) {
      const float* row = logits_.data() + sample.row * vocabulary;
      sampled_.push_back({static_cast<int32_t>(std::max_element(row, row + vocabulary) - row), 0, 1});
    }
    if (!sampled_.empty()) {
      EXPECT_EQ(step.samples.size(), step.logit_rows.size()) << "all rows or none";
      logits_.clear();
    }
  }
  std::span<const float> logits() const override { return logits_; }
  std::span<const ops::Sampled> sampled() const override { return sampled_; }
  static size_t next(int32_t token) { return static_cast<size_t>(token * 7 + 3) % vocabulary; }

 private:
  std::vector<float> logits_;
  std::vector<ops::Sampled> sampled_;
};

// From logits, or from tokens that the steps choose.
class TimedSteps : public ::testing::TestWithParam<bool> {};

TEST_P(TimedSteps, TimesTheModelsOwnContinuation) {
  ClockedModel model;
  const std::vector<int32_t> prompt = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17};
  StepTimerOptions options{.page_rows = 16,
                           .max_rows = 20,
                           .vocab_size = ClockedModel::vocabulary,
                           .samples_in_step = GetParam(),
                           .now_ms = [&] { return model.now; }};
  StepTimer timer(model, options, prompt);
  for (size_t i = prompt.size(); i < timer.text().size(); ++i)
    ASSERT_EQ(static_cast<size_t>(timer.text()[i]), ClockedModel::next(timer.text()[i - 1]));
  CalibrationOptions calibration{.rows = 16, .mtp_drafts = 3, .blocks = true};
  const Calibration result = calibrate(timer, calibration);
  for (int64_t rows = 1; rows <= 16; ++rows)
    EXPECT_NEAR(result.table.verify(rows), 10 + 2 * static_cast<double>(rows), 1e-9);
  EXPECT_NEAR(result.table.mtp_ms, 1, 1e-9);
  EXPECT_NEAR(result.table.mtp_step_ms, 0.5, 1e-9);
  EXPECT_NEAR(result.table.mtp_row_ms, 0.1, 1e-9);
  EXPECT_NEAR(result.table.block_ms, 3, 1e-9);
  ASSERT_EQ(model.places.size(), 2 * 27u);  // each piece once to warm up, once timed
  for (size_t i = 0; i < 2 * 27; ++i) EXPECT_EQ(model.places[i], 17 + 8 * static_cast<int64_t>(i / 2 % 9));
  EXPECT_GE(StepTimer::pages(options, 17) * 16, 17 + 8 * 8 + 16);
  EXPECT_THROW(StepTimer(model, options, std::span(prompt).first(7)), Error);
}

INSTANTIATE_TEST_SUITE_P(Results, TimedSteps, ::testing::Bool(),
                         [](const auto& one) { return std::string(one.param ? "tokens" : "logits"); });

}  // namespace
}  // namespace tandem::draft::calibration_test
