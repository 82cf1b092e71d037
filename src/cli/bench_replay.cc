// Reads a step, runs it, compares the checksum of its logits.
#include "cli/bench_replay.h"

#include <fmt/core.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/mapped_file.h"
#include "cli/drafting.h"
#include "cli/loaded_model.h"
#include "cli/standard_io.h"
#include "engine/plan.h"
#include "engine/sample_on_host.h"
#include "engine/step_recording.h"
#include "engine/step_runner.h"
#include "model/checkpoint.h"

namespace tandem::cli {
namespace {

using Clock = std::chrono::steady_clock;

struct Replayed {
  int64_t steps = 0, rows = 0, unfinished = 0;
  double seconds = 0;  // inside the model
  int64_t compared() const { return steps - unfinished; }
};

// Refuses a header that this model or machine cannot have before anything of its sizes is allocated. The bounds of
// RecordingReader and of the model's window keep the plan's formulas from overflowing.
void check_header(const engine::RecordingHeader& header, const model::Shape& shape, const Drafting& drafting,
                  int64_t weights, int threads, const std::string& file) {
  const forward::Capacity& capacity = header.capacity;
  const int64_t stream_pages = capacity.max_stream_pages > 0 ? capacity.max_stream_pages : capacity.pages;
  const int64_t most_pages = (shape.max_position_embeddings + capacity.page_rows - 1) / capacity.page_rows;
  if (stream_pages > most_pages)
    throw Error(ErrorCode::bad_file, file, fmt::format("streams of {} pages", stream_pages),
                fmt::format("at most {}, the window of the model", most_pages));
  if (capacity.page_rows % shape.index_kpool != 0)
    throw Error(ErrorCode::bad_file, file, fmt::format("pages of {} tokens", capacity.page_rows),
                fmt::format("a multiple of index_kpool {}", shape.index_kpool));
  const int of_rank = engine::threads_of_rank(threads, header.ranks);
  const int64_t needed =
      header.ranks.tensor_parallel_size *
      forward::TextModel::planned_bytes(shape, capacity, of_rank, header.ranks, drafting.drafter_shape());
  const int64_t left = memory_beside(weights);
  if (left > 0 && needed > left)
    throw Error(ErrorCode::does_not_fit, file, "its streams and pages need " + engine::size_at_least(needed),
                "at most the " + engine::size_at_most(left) + " that this machine has beside the weights");
}

// The drafter that the recording was made with.
Drafting drafting_of(const BenchReplayOptions& options, const engine::RecordingHeader& header,
                     const std::filesystem::path& folder, const model::Shape& shape) {
  if (!header.drafter_crc) return {};
  DraftingFlags flags;
  flags.drafter = "dflash2";
  flags.drafter_model = options.drafter_model;
  Drafting drafting = resolve_drafting(flags, folder, shape, false);
  if (config_crc(drafting.folder) != *header.drafter_crc)
    throw Error(ErrorCode::bad_file, options.file.string(),
                fmt::format("was made with another drafter's config.json than {} has", drafting.folder.string()),
                "--drafter-model with the folder of that drafter");
  return drafting;
}

void run_step(engine::StepRunner& runner, const engine::RecordedStep& recorded, const std::string& file,
              Replayed& outcome) {
  const auto begin = Clock::now();
  try {
    runner.run(recorded.step);
  } catch (const Error& e) {  // what the model says of a step that breaks its rules
    if (e.code() != ErrorCode::internal || e.where() != "step") throw;
    throw Error(ErrorCode::bad_file, fmt::format("{}: step {}", file, outcome.steps),
                "the model refuses it: " + e.found(),
                recorded.result_crc ? "a step that follows from those before" : "");
  }
  outcome.seconds += std::chrono::duration<double>(Clock::now() - begin).count();
  ++outcome.steps;
  outcome.rows += std::ssize(recorded.step.tokens);
  if (!recorded.result_crc) {
    ++outcome.unfinished;  // the program ended in this step; this time it did not
    return;
  }
  const uint32_t crc = engine::crc_of_result(runner);
  if (crc != *recorded.result_crc)
    throw Error(ErrorCode::failed_check, fmt::format("step {}", outcome.steps - 1),
                fmt::format("a result with the checksum {:08x}", crc),
                fmt::format("{:08x}, if all weights are those of the recording", *recorded.result_crc));
}

std::string report(const Replayed& outcome, const engine::RecordingReader& reader, bool json) {
  const double seconds = std::max(outcome.seconds, 1e-9);
  const double steps_s = static_cast<double>(outcome.steps) / seconds;
  const double rows_s = static_cast<double>(outcome.rows) / seconds;
  if (json) {
    const nlohmann::ordered_json object = {{"schema", "tandem.bench.replay/1"},
                                           {"model", reader.header().model},
                                           {"steps", outcome.steps},
                                           {"steps_compared", outcome.compared()},
                                           {"rows", outcome.rows},
                                           {"seconds", outcome.seconds},
                                           {"steps_per_second", steps_s},
                                           {"rows_per_second", rows_s},
                                           {"steps_without_result", outcome.unfinished},
                                           {"cut_off", reader.is_cut_off()}};
    return object.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  }
  if (outcome.unfinished == 0 && !reader.is_cut_off())
    return fmt::format("{} steps, {} rows, all equal to the recording\n{:.1f} steps/s, {:.1f} rows/s\n", outcome.steps,
                       outcome.rows, steps_s, rows_s);
  const char* how = outcome.unfinished == 0 ? "the file is cut within the next one"
                    : reader.is_cut_off()   ? "the file is cut within the result of the next one, which runs to its end"
                                            : "the file ends in the next one, which runs to its end this time";
  return fmt::format("{} steps, {} rows; the first {} are equal to the recording, {}\n{:.1f} steps/s, {:.1f} rows/s\n",
                     outcome.steps, outcome.rows, outcome.compared(), how, steps_s, rows_s);
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
  const auto weights = model::load_text_weights(checkpoint, shape, weight_options(options.nvfp4_nibble_order));
  const int threads = checked_threads(options.threads);
  const std::string file_name = options.file.string();
  const Drafting drafting = drafting_of(options, reader.header(), folder, shape);
  check_header(reader.header(), shape, drafting, checkpoint.total_bytes(), threads, file_name);
  const auto drafter = drafting.shape ? std::make_unique<DrafterFiles>(drafting) : nullptr;
  const auto runner = engine::run_on_cpu(shape, weights, reader.header().capacity, reader.header().ranks, threads,
                                         drafter ? drafter->model() : forward::DrafterModel{});
  Replayed outcome;
  engine::RecordedStep recorded;
  // Steps of a GPU may ask for tokens in place of logits.
  engine::SampleOnHost sampled(*runner, static_cast<int32_t>(shape.vocab_size),
                               reader.header().capacity.max_logit_rows);
  while (reader.next(recorded)) run_step(sampled, recorded, file_name, outcome);
  if (outcome.compared() == 0)
    throw Error(ErrorCode::bad_file, file_name,
                reader.is_cut_off() ? "is cut within its first step" : "has no step with a result",
                "at least one to compare");
  write_out(report(outcome, reader, options.json));
  return 0;
}

}  // namespace tandem::cli
