// Reads a step, runs it, compares the checksum of its logits.
#include "cli/bench_replay.h"

#include <fmt/core.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/mapped_file.h"
#include "cli/loaded_model.h"
#include "cli/standard_io.h"
#include "engine/step_recording.h"
#include "engine/step_runner.h"
#include "model/checkpoint.h"

namespace tandem::cli {
namespace {

using Clock = std::chrono::steady_clock;

struct Outcome {
  int64_t steps = 0, rows = 0, unfinished = 0;
  double seconds = 0;  // inside the model
};

void run_step(engine::StepRunner& runner, const engine::RecordedStep& recorded, Outcome& outcome) {
  const auto begin = Clock::now();
  runner.run(recorded.step);
  outcome.seconds += std::chrono::duration<double>(Clock::now() - begin).count();
  ++outcome.steps;
  outcome.rows += std::ssize(recorded.step.tokens);
  if (!recorded.logits_crc) {
    ++outcome.unfinished;  // the program ended in this step; this time it did not
    return;
  }
  const uint32_t crc = engine::crc_of_logits(runner.logits());
  if (crc != *recorded.logits_crc)
    throw Error(ErrorCode::failed_check, fmt::format("step {}", outcome.steps - 1),
                fmt::format("logits with the checksum {:08x}", crc), fmt::format("{:08x}", *recorded.logits_crc));
}

std::string report(const Outcome& outcome, const engine::RecordingReader& reader, bool json) {
  const double seconds = std::max(outcome.seconds, 1e-9);
  const double steps_s = static_cast<double>(outcome.steps) / seconds;
  const double rows_s = static_cast<double>(outcome.rows) / seconds;
  if (json) {
    const nlohmann::ordered_json object = {{"schema", "tandem.bench.replay/1"},
                                           {"model", reader.header().model},
                                           {"steps", outcome.steps},
                                           {"rows", outcome.rows},
                                           {"seconds", outcome.seconds},
                                           {"steps_per_second", steps_s},
                                           {"rows_per_second", rows_s},
                                           {"steps_without_result", outcome.unfinished},
                                           {"cut_off", reader.is_cut_off()}};
    return object.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  }
  return fmt::format("{} steps, {} rows, all equal to the recording{}{}\n{:.1f} steps/s, {:.1f} rows/s\n",
                     outcome.steps, outcome.rows, outcome.unfinished > 0 ? "; the last one had not ended there" : "",
                     reader.is_cut_off() ? "; the file ends within a step" : "", steps_s, rows_s);
}

}  // namespace

int run_bench_replay(const BenchReplayOptions& options) {
  const auto file = MappedFile::open(options.file);
  engine::RecordingReader reader(file.bytes(), options.file.string());
  const auto folder = checked_folder(options.model);
  if (config_crc(folder) != reader.header().config_crc)
    throw Error(ErrorCode::bad_file, options.file.string(),
                fmt::format("was made with another config.json than {} has", folder.string()),
                fmt::format("the model folder of \"{}\"", reader.header().model));
  const auto shape = model::read_shape(folder);
  const auto checkpoint = model::Checkpoint::open(folder);
  const auto weights = model::load_text_weights(checkpoint, shape);
  const auto runner = engine::run_on_cpu(shape, weights, reader.header().capacity, reader.header().ranks,
                                         checked_threads(options.threads));
  Outcome outcome;
  engine::RecordedStep recorded;
  while (reader.next(recorded)) run_step(*runner, recorded, outcome);
  write_out(report(outcome, reader, options.json));
  return 0;
}

}  // namespace tandem::cli
