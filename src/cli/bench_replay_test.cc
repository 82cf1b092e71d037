// A served conversation is recorded and replayed; a changed result is found at its step.
#include "cli/bench_replay.h"

#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <limits>

#include "base/error.h"
#include "base/log.h"
#include "cli/loaded_model.h"
#include "engine/run_request.h"
#include "engine/step_recording.h"

namespace tandem::cli::bench_replay_test {
namespace {

class BenchReplayTest : public ::testing::Test {
 protected:
  void SetUp() override { set_log_level(LogLevel::error); }
  void TearDown() override { std::filesystem::remove(file_); }

  void record(int32_t ranks) {
    LoadOptions options;
    options.model = model_;
    options.kv_cache_memory = int64_t{8} << 20;
    options.kept_states_memory = int64_t{4} << 20;
    options.max_num_seqs = 2;
    options.tensor_parallel_size = options.decode_context_parallel_size = ranks;
    options.threads = 1;
    options.record_steps = file_;
    LoadedModel model(options);
    for (int i = 0; i < 3; ++i) {  // the same prompt again: a restored state and a head row
      engine::Request request;
      request.prompt_ids = model.tokenizer().encode("What is 12 + 30?", text::AddedTokens::recognise);
      request.sampling.temperature = 1;
      request.max_tokens = 8;
      engine::run_request(model.engine(), std::move(request));
    }
  }
  void replay() { run_bench_replay({.file = file_, .model = model_, .threads = 2, .json = false}); }

  const std::filesystem::path model_ = TANDEM_SOURCE_DIR "/models/nano";
  const std::filesystem::path file_ =
      std::filesystem::temp_directory_path() / ("tandem_replay_" + std::to_string(::getpid()));
};

TEST_F(BenchReplayTest, AReplayEqualsItsRecording) {
  record(1);
  EXPECT_NO_THROW(replay());
}

TEST_F(BenchReplayTest, OnTwoRanks) {
  record(2);
  EXPECT_NO_THROW(replay());
}

TEST_F(BenchReplayTest, AChangedResultIsAFailedCheckAtItsStep) {
  record(1);
  std::fstream file(file_, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-1, std::ios::end);  // the last byte of the last step's checksum
  const int last = file.peek();
  file.put(static_cast<char>(last ^ 1));
  file.close();
  try {
    replay();
    FAIL() << "was not noticed";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::failed_check);
    EXPECT_EQ(e.where().find("step "), 0u) << e.what();
  }
}

std::string error_of_replay(const std::filesystem::path& file, const std::filesystem::path& model, ErrorCode code) {
  try {
    run_bench_replay({.file = file, .model = model, .threads = 1, .json = false});
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), code) << e.what();
    return e.what();
  }
  ADD_FAILURE() << "was not refused";
  return {};
}

// Records nothing but a header, or one step, as a server with such sizes would.
class NoModel : public engine::StepRunner {
 public:
  void run(const forward::Step&) override {}
  std::span<const float> logits() const override { return {}; }
};

TEST_F(BenchReplayTest, AbsurdSizesAreRefusedBeforeMemoryIsTaken) {
  const auto header = [&] {
    engine::RecordingHeader h;
    h.capacity.max_stream_pages = 1;
    h.model = "nano";
    h.config_crc = config_crc(model_);
    return h;
  };
  const auto refused = [&](const engine::RecordingHeader& h, ErrorCode code, const std::string& words) {
    NoModel none;
    { const engine::StepRecorder recorder(none, file_, h); }
    const std::string message = error_of_replay(file_, model_, code);
    EXPECT_NE(message.find(words), std::string::npos) << message;
  };
  refused(header(), ErrorCode::bad_file, "has no step");  // sizes that are right
  auto h = header();
  h.capacity.pages = int64_t{1} << 31;
  refused(h, ErrorCode::does_not_fit, "beside the weights");
  h = header();
  h.capacity.kept_states = std::numeric_limits<int32_t>::max();
  refused(h, ErrorCode::does_not_fit, "beside the weights");
  h = header();
  h.capacity.max_stream_pages = int64_t{1} << 31;
  refused(h, ErrorCode::bad_file, "window");
  h = header();
  h.capacity.max_stream_pages = 0;  // as many as there are pages
  h.capacity.pages = int64_t{1} << 31;
  refused(h, ErrorCode::bad_file, "window");
  h = header();
  h.capacity.page_rows = 255;
  refused(h, ErrorCode::bad_file, "index_kpool");
}

TEST_F(BenchReplayTest, AStepThatTheModelRefusesIsABadFile) {
  for (const int32_t ranks : {1, 2}) {
    NoModel none;
    engine::RecordingHeader h;
    h.capacity.max_stream_pages = 1;
    h.ranks = {0, ranks, ranks};
    h.config_crc = config_crc(model_);
    {
      engine::StepRecorder recorder(none, file_, h);
      recorder.run(forward::single_stream_step(std::vector<int32_t>{1, 2, 3}, 7, 1));  // nothing was run before it
    }
    const std::string message = error_of_replay(file_, model_, ErrorCode::bad_file);
    EXPECT_NE(message.find("step 0: the model refuses it"), std::string::npos) << message;
  }
}

TEST_F(BenchReplayTest, ACutRecordingSaysHowFarItWasEqual) {
  record(1);
  const auto size = std::filesystem::file_size(file_);
  const auto replayed = [&](uintmax_t length) {
    std::filesystem::resize_file(file_, length);
    testing::internal::CaptureStdout();
    std::string out;
    try {
      replay();
    } catch (const Error& e) {
      out = e.code() == ErrorCode::bad_file ? e.what() : "?";
    }
    std::fflush(stdout);
    const std::string printed = testing::internal::GetCapturedStdout();
    return out.empty() ? printed : out;
  };
  EXPECT_NE(replayed(size).find("all equal to the recording\n"), std::string::npos);
  EXPECT_NE(replayed(size - 3).find("cut within the result of the next one"), std::string::npos);
  EXPECT_NE(replayed(size - 8).find("ends in the next one"), std::string::npos);
  EXPECT_NE(replayed(size - 20).find("cut within the next one"), std::string::npos);
  EXPECT_NE(replayed(100).find("is cut within its first step"), std::string::npos);
}

TEST_F(BenchReplayTest, AnotherModelsRecordingIsRefused) {
  record(1);
  std::filesystem::path other = TANDEM_SOURCE_DIR "/tests/golden/tinyA";
  try {
    run_bench_replay({.file = file_, .model = other, .threads = 1, .json = false});
    FAIL() << "was not refused";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::bad_file);
    EXPECT_NE(std::string(e.what()).find("nano"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace tandem::cli::bench_replay_test
