// A served conversation is recorded and replayed; a changed result is found at its step.
#include "cli/bench_replay.h"

#include <unistd.h>

#include <cstdio>
#include <fstream>

#include "base/error.h"
#include "base/log.h"
#include "cli/loaded_model.h"
#include "engine/run_request.h"
#include "engine/step_recording.h"

namespace tandem::cli {
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
}  // namespace tandem::cli
