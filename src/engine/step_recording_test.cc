// Recordings: what was written is read, replays give the same checksums, and damaged files are refused.
#include "engine/step_recording.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <functional>
#include <limits>

#include "base/error.h"
#include "base/log.h"
#include "engine/scheduler_fixture.h"

namespace tandem::engine::step_recording_test {
namespace {

class RecordingTest : public ::testing::Test {
 protected:
  void SetUp() override { set_log_level(LogLevel::error); }
  void TearDown() override { std::filesystem::remove(path_); }

  // A few requests on a recorded model.
  std::vector<std::byte> record(bool last_step_fails = false) {
    FakeModel model(model_options_);
    StepRecorder recorder(model, path_, header());
    Scheduler scheduler(options_for(model_options_, 16));
    for (int i = 0; i < 4; ++i)
      scheduler.submit(
          greedy(some_prompt(20 + i, i / 2), 6), [](const Event&) {}, Time{0});
    while (const forward::Step* step = scheduler.schedule(Time{0})) {
      recorder.run(*step);
      scheduler.complete(recorder.logits(), Time{0});
    }
    steps_ = model.steps;
    if (last_step_fails) {
      model.before_step = [](FakeModel&) { throw std::runtime_error("a fault"); };
      EXPECT_THROW(recorder.run(steps_.back()), std::runtime_error);
    }
    std::ifstream file(path_, std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    const auto bytes = std::as_bytes(std::span(text));
    return {bytes.begin(), bytes.end()};
  }
  RecordingHeader header() const {
    RecordingHeader header;
    header.capacity = options_for(model_options_, 16).capacity;
    header.capacity.cache_type = forward::CacheType::nvfp4;
    header.capacity.compute = compute_;
    header.capacity.latent_scales = {0x1p-9f, 0x1p-10f};
    header.ranks.tensor_parallel_size = 2;
    header.model = "fake";
    header.config_crc = 0x12345678;
    return header;
  }

  const FakeModelOptions model_options_{.slots = 2, .page_rows = 16, .records = 4};
  const std::filesystem::path path_ =
      std::filesystem::temp_directory_path() / ("tandem_recording_" + std::to_string(::getpid()));
  forward::Compute compute_ = forward::Compute::f32;
  std::vector<forward::Step> steps_;
};

TEST_F(RecordingTest, KnowsTheArithmetic) {
  for (const forward::Compute compute : {forward::Compute::bf16, forward::Compute::f32}) {
    compute_ = compute;
    const auto bytes = record();
    EXPECT_EQ(RecordingReader(bytes, "file").header().capacity.compute, compute);
  }
}

TEST_F(RecordingTest, ReplaysGiveTheSameChecksums) {
  const auto bytes = record();
  RecordingReader reader(bytes, "file");
  EXPECT_EQ(reader.header().model, "fake");
  EXPECT_EQ(reader.header().config_crc, 0x12345678u);
  EXPECT_EQ(reader.header().capacity.slots, 2);
  EXPECT_EQ(reader.header().capacity.pages, model_options_.pages);
  EXPECT_EQ(reader.header().capacity.cache_type, forward::CacheType::nvfp4);
  EXPECT_EQ(reader.header().capacity.latent_scales, (std::vector<float>{0x1p-9f, 0x1p-10f}));
  EXPECT_EQ(reader.header().ranks.tensor_parallel_size, 2);
  FakeModel model(model_options_);
  RecordedStep recorded;
  size_t count = 0;
  for (; reader.next(recorded); ++count) {
    ASSERT_LT(count, steps_.size());
    EXPECT_EQ(recorded.step, steps_[count]);
    model.run(recorded.step);
    ASSERT_TRUE(recorded.result_crc);
    EXPECT_EQ(*recorded.result_crc, crc_of_result(model));
  }
  EXPECT_EQ(count, steps_.size());
  EXPECT_GT(count, 10u);
  EXPECT_FALSE(reader.is_cut_off());
}

// Steps that chose tokens: they are in the recording, their results in the checksum, and a host's sampler replays them.
TEST_F(RecordingTest, TokensChosenInTheStep) {
  FakeModel model(model_options_);
  SampleOnHost sampled(model, FakeModel::vocabulary, 32);
  SchedulerOptions options = options_for(model_options_, 16);
  options.samples_in_step = true;
  {
    StepRecorder recorder(sampled, path_, header());
    Scheduler scheduler(options);
    Request drawn = greedy(some_prompt(20, 1), 6);
    drawn.sampling.temperature = 1;
    scheduler.submit(
        drawn, [](const Event&) {}, Time{0});
    while (const forward::Step* step = scheduler.schedule(Time{0})) {
      recorder.run(*step);
      scheduler.complete(recorder.logits(), recorder.sampled(), Time{0});
    }
  }
  std::ifstream file(path_, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  RecordingReader reader(std::as_bytes(std::span(text)), "file");
  FakeModel again(model_options_);
  SampleOnHost replayed(again, FakeModel::vocabulary, 32);
  FakeModel other(model_options_);  // a model runs a step once
  SampleOnHost differently(other, FakeModel::vocabulary, 32);
  RecordedStep recorded;
  int64_t samples = 0;
  while (reader.next(recorded)) {
    replayed.run(recorded.step);
    ASSERT_TRUE(recorded.result_crc);
    EXPECT_EQ(*recorded.result_crc, crc_of_result(replayed));
    samples += std::ssize(recorded.step.samples);
    const bool chooses = !recorded.step.samples.empty();
    if (chooses) recorded.step.samples[0].size = 1;  // another token
    differently.run(recorded.step);
    EXPECT_EQ(crc_of_result(differently) != crc_of_result(replayed), chooses);
  }
  EXPECT_EQ(samples, 6);
}

TEST_F(RecordingTest, AFailedStepIsTheLastOneAndHasNoResult) {
  const auto bytes = record(true);
  RecordingReader reader(bytes, "file");
  RecordedStep recorded;
  size_t count = 0;
  while (reader.next(recorded)) EXPECT_EQ(recorded.result_crc.has_value(), ++count <= steps_.size());
  EXPECT_EQ(count, steps_.size() + 1);
  EXPECT_EQ(recorded.step, steps_.back());
  EXPECT_FALSE(reader.is_cut_off());
}

TEST_F(RecordingTest, ACutOffFileIsReadToItsLastWholeStep) {
  const auto bytes = record();
  size_t last = 0;
  for (size_t length = 100; length < bytes.size(); ++length) {
    RecordingReader reader(std::span<const std::byte>(bytes).first(length), "file");
    RecordedStep recorded;
    size_t count = 0;
    while (reader.next(recorded)) EXPECT_EQ(recorded.step, steps_[count++]);
    EXPECT_GE(count, last);
    last = count;
  }
}

TEST_F(RecordingTest, DamageIsFound) {
  const auto bytes = record();
  const auto refused = [](std::vector<std::byte> damaged) {
    try {
      RecordingReader reader(damaged, "file");
      RecordedStep recorded;
      while (reader.next(recorded)) {
      }
      return reader.is_cut_off();  // a length beyond the file
    } catch (const Error& e) {
      return e.code() == ErrorCode::bad_file && e.where().find("file: byte ") == 0;
    }
  };
  for (size_t at = 0; at < std::min<size_t>(bytes.size(), 1500); ++at) {
    auto damaged = bytes;
    damaged[at] ^= std::byte{0x40};
    const bool is_crc_of_result = !refused(damaged);
    if (!is_crc_of_result) continue;
    // The checksums of results are what a replay compares; all else is covered.
    RecordingReader whole(bytes, "file"), other(damaged, "file");
    RecordedStep a, b;
    bool differs = false;
    while (whole.next(a) && other.next(b)) differs = differs || a.result_crc != b.result_crc;
    EXPECT_TRUE(differs) << at;
  }
  EXPECT_TRUE(refused({}));
  EXPECT_TRUE(refused(std::vector<std::byte>(200)));
}

TEST_F(RecordingTest, AFileThatCannotBeMadeIsAResourceError) {
  FakeModel model(model_options_);
  try {
    const StepRecorder recorder(model, "/nowhere/at/all", header());
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::resource);
  }
}

template <typename Make>
ErrorCode error_of(const Make& make) {
  try {
    make();
  } catch (const Error& e) {
    return e.code();
  }
  return ErrorCode::failed_check;  // stands for: no error
}

TEST_F(RecordingTest, OnlyARecordingIsReplaced) {
  FakeModel model(model_options_);
  const auto start = [&] { const StepRecorder recorder(model, path_, header()); };
  for (const std::string& content : {std::string("notes"), std::string("TNDMSTE"), std::string(4096, '\0')}) {
    std::ofstream(path_, std::ios::binary) << content;
    EXPECT_EQ(error_of(start), ErrorCode::usage);
    EXPECT_EQ(std::filesystem::file_size(path_), content.size());
  }
  std::ofstream(path_, std::ios::trunc).close();
  EXPECT_NO_THROW(start());  // an empty file
  const size_t first = std::filesystem::file_size(path_);
  std::ofstream(path_, std::ios::app) << "more";
  EXPECT_NO_THROW(start());
  EXPECT_EQ(std::filesystem::file_size(path_), first);
}

TEST_F(RecordingTest, ARecordingHasOneWriter) {
  FakeModel model(model_options_);
  const auto start = [&] { const StepRecorder recorder(model, path_, header()); };
  {
    StepRecorder recorder(model, path_, header());
    recorder.run(forward::single_stream_step(std::vector<int32_t>{1, 2, 3}, 0, 1));
    const size_t size = std::filesystem::file_size(path_);
    EXPECT_EQ(error_of(start), ErrorCode::resource);
    EXPECT_EQ(std::filesystem::file_size(path_), size);
  }
  EXPECT_NO_THROW(start());
}

TEST_F(RecordingTest, APipeNeedsAReader) {
  FakeModel model(model_options_);
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  const auto start = [&] { const StepRecorder recorder(model, path_, header()); };
  EXPECT_EQ(error_of(start), ErrorCode::resource);
  const int reader = ::open(path_.c_str(), O_RDONLY | O_NONBLOCK);
  EXPECT_NO_THROW(start());
  std::string begin(8, ' ');
  EXPECT_EQ(::read(reader, begin.data(), begin.size()), 8);
  EXPECT_EQ(begin, "TNDMSTEP");
  ::close(reader);
}

// A header whose checksum holds and whose sizes no server has.
TEST_F(RecordingTest, SizesOfTheHeaderAreBounded) {
  constexpr int32_t most = std::numeric_limits<int32_t>::max();
  const std::vector<std::function<void(RecordingHeader&)>> changes = {
      [](RecordingHeader& h) { h.capacity.slots = most; },
      [](RecordingHeader& h) { h.capacity.slots = 0; },
      [](RecordingHeader& h) { h.capacity.max_rows = 1 << 20; },
      [](RecordingHeader& h) { h.capacity.max_rows = -1; },
      [](RecordingHeader& h) { h.capacity.max_logit_rows = most; },
      [](RecordingHeader& h) { h.capacity.kept_states = -1; },
      [](RecordingHeader& h) { h.capacity.page_rows = 257; },
      [](RecordingHeader& h) { h.capacity.page_rows = 0; },
      [](RecordingHeader& h) { h.capacity.pages = (int64_t{1} << 31) + 1; },
      [](RecordingHeader& h) { h.capacity.max_stream_pages = std::numeric_limits<int64_t>::max(); },
      [](RecordingHeader& h) { h.ranks.tensor_parallel_size = 3; },
      [](RecordingHeader& h) { h.ranks.tensor_parallel_size = 0; },
      [](RecordingHeader& h) {
        h.ranks = {0, 1, 2};
      },
  };
  FakeModel model(model_options_);
  const auto read = [&](const RecordingHeader& written) {
    { const StepRecorder recorder(model, path_, written); }
    std::ifstream file(path_, std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    const RecordingReader reader(std::as_bytes(std::span(text)), "file");
  };
  EXPECT_NO_THROW(read(header()));
  for (size_t i = 0; i < changes.size(); ++i) {
    RecordingHeader changed = header();
    changes[i](changed);
    EXPECT_EQ(error_of([&] { read(changed); }), ErrorCode::bad_file) << i;
  }
}

TEST_F(RecordingTest, AFullDiskEndsTheRecordingAndNotTheEngine) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  FakeModel model(model_options_);
  StepRecorder recorder(model, "/dev/full", header());
  recorder.run(forward::single_stream_step(std::vector<int32_t>{1, 2, 3}, 0, 1));
  EXPECT_EQ(model.step_count, 1);
}

// With SIGPIPE ignored, as the program has it.
TEST_F(RecordingTest, AReaderThatLeavesEndsTheRecordingAndNotTheEngine) {
  auto* const before = std::signal(SIGPIPE, SIG_IGN);
  const auto path = std::filesystem::temp_directory_path() / ("tandem-steps-" + std::to_string(::getpid()));
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  const int reader = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  ASSERT_GE(reader, 0);
  testing::internal::CaptureStderr();
  {
    FakeModel model(model_options_);
    StepRecorder recorder(model, path, header());
    const auto step = forward::single_stream_step(std::vector<int32_t>{1, 2, 3}, 0, 1);
    recorder.run(step);
    ::close(reader);
    for (int i = 0; i < 3; ++i) recorder.run(step);
    EXPECT_EQ(model.step_count, 4);
  }
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1) << log;
  EXPECT_NE(log.find("the recording of steps ends here"), std::string::npos) << log;
  std::filesystem::remove(path);
  std::signal(SIGPIPE, before);
}

}  // namespace
}  // namespace tandem::engine::step_recording_test
