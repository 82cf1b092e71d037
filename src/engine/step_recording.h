// A recorded list of steps: what was run, and a checksum of what came out, so that a bug replays without HTTP and
// without the engine (design.md 3). Layout in docs/internals/formats.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/step_runner.h"
#include "forward/text_model.h"

namespace tandem::engine {

struct RecordingHeader {
  forward::Capacity capacity;           // of each rank
  forward::Ranks ranks;                 // sizes
  std::string model;                    // name, for people
  uint32_t config_crc = 0;              // CRC32C of config.json
  std::optional<uint32_t> drafter_crc;  // of the DFlash2 drafter's; none: there was none
};

// Throws Error(usage) for a file that is not empty and not a recording: recording would destroy it. What does not
// exist, and what is no regular file, is passed.
void check_recording_file(const std::filesystem::path& file);

// Runs steps on another runner and writes them down. A step is in the file before it runs. A file that cannot be
// written any longer ends the recording, not the engine.
class StepRecorder : public StepRunner {
 public:
  // `runner` must outlive the recorder. An earlier recording is replaced. Throws Error: usage as above; resource when
  // the file cannot be made or another program is recording into it, or when it is a pipe that nobody reads.
  StepRecorder(StepRunner& runner, const std::filesystem::path& file, const RecordingHeader& header);

  void run(const forward::Step& step) override;
  std::span<const float> logits() const override { return runner_.logits(); }
  std::span<const ops::Sampled> sampled() const override { return runner_.sampled(); }
  forward::DraftLattices lattices() const override { return runner_.lattices(); }
  std::string not_finite(const forward::Step& step) override { return runner_.not_finite(step); }
  forward::RunnerCounts counts() const override { return runner_.counts(); }

 private:
  void write(std::span<const std::byte> bytes);

  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  StepRunner& runner_;
  const std::string name_;
  std::unique_ptr<std::FILE, Close> file_;  // null: the recording has ended
  std::vector<std::byte> step_;
};

struct RecordedStep {
  forward::Step step;
  std::optional<uint32_t> result_crc;  // absent: the step did not end
};

class RecordingReader {
 public:
  // `bytes` must outlive the reader; `name` is for errors. Throws Error(bad_file), as next() does, naming the byte.
  RecordingReader(std::span<const std::byte> bytes, std::string name);

  const RecordingHeader& header() const { return header_; }
  // False at the end of the file. `recorded` keeps its memory.
  bool next(RecordedStep& recorded);
  // The writer was stopped in the middle of a step's bytes; what came before is whole.
  bool is_cut_off() const { return is_cut_off_; }

 private:
  [[noreturn]] void bad(const std::string& found, const std::string& expected) const;
  void read_header();

  std::span<const std::byte> bytes_;
  std::string name_;
  size_t at_ = 0;
  RecordingHeader header_;
  bool is_cut_off_ = false;
};

// Of the logits of its last run, then, for each token that the model chose, of the CRC32C so far, the token and its
// status; or of the lattices (CRC32C of the CRC32Cs of ids, unary and edges).
uint32_t crc_of_result(const StepRunner& runner);

}  // namespace tandem::engine
