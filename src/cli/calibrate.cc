// The procedure on the loaded model; its engine has nothing to do meanwhile.
#include "cli/calibrate.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <system_error>

#include "base/error.h"
#include "chat/messages.h"
#include "chat/render.h"
#include "cli/standard_io.h"
#include "draft/step_timer.h"
#include "draft/timing_file.h"

namespace tandem::cli {
namespace {

// Ordinary text that the model goes on with for a while: windows are timed on its own continuation.
constexpr const char* prompt =
    R"({"messages":[{"role":"user","content":"Tell me a story about a clever fox and Nora who look for a ring in a castle. )"
    R"(They walk along the river, meet an old farmer, and come back before the evening. Then write a short article about )"
    R"(the old bridge of Prague."}]})";

void make_folder(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw Error(ErrorCode::resource, folder.string(), error.message(), "a folder that can be made");
  if (::access(folder.c_str(), W_OK | X_OK) != 0)
    throw Error(ErrorCode::resource, folder.string(), "may not be written to", "a folder for the table");
}

void print_table(const draft::Calibration& calibration) {
  const draft::TimingTable& table = calibration.table;
  std::string text = fmt::format("timing table {}\n", table.id);
  text += "  rows  verify ms  of one row\n";
  for (size_t i = 0; i < table.verify_ms.size(); ++i)
    text +=
        fmt::format("  {:4}  {:9.4f}  {:10.2f}\n", i + 1, table.verify_ms[i], table.verify_ms[i] / table.verify_ms[0]);
  if (table.mtp_ms > 0)
    text += fmt::format("  MTP: {:.4f} ms for one draft, {:.4f} ms for each further one\n", table.mtp_ms,
                        table.mtp_step_ms);
  if (table.block_ms > 0) text += fmt::format("  DFlash2 block: {:.4f} ms\n", table.block_ms);
  for (size_t i = 0; i < calibration.batches.size(); ++i) {
    const draft::CalibrationBatch& batch = calibration.batches[i];
    text += fmt::format("  batch {}: sum {:.4f} ms{}{}\n", i + 1, batch.verify_sum,
                        batch.ascends ? "" : ", a step of more rows took less time",
                        static_cast<int32_t>(i) == calibration.chosen ? ", taken" : "");
  }
  write_out(text);
}

}  // namespace

int run_calibrate_timing(const CalibrateOptions& options) {
  LoadedModel model(options.load);
  const auto ids = model.tokenizer().encode(chat::render(chat::parse_conversation(prompt)).segments);
  const forward::Capacity& capacity = model.plan().capacity;
  draft::StepTimerOptions timing;
  timing.page_rows = capacity.page_rows;
  timing.max_rows = capacity.max_rows;
  timing.vocab_size = model.shape().vocab_size;
  timing.samples_in_step = model.samples_in_step();
  timing.rows = std::min<int32_t>({timing.rows, capacity.max_rows, capacity.max_logit_rows});
  const int64_t pages = draft::StepTimer::pages(timing, std::ssize(ids));
  if (pages >= capacity.pages)
    throw Error(ErrorCode::does_not_fit, "--kv-cache-memory", fmt::format("{} pages", capacity.pages - 1),
                fmt::format("at least {} for a calibration", pages));
  const std::string key = model.calibration_key();
  const auto file = calibration_file(options.load.drafting, key);
  make_folder(file.parent_path());  // before the time is spent
  draft::StepTimer timer(model.runner(), timing, ids);
  draft::CalibrationOptions what;
  what.rows = timing.rows;
  what.mtp_drafts = model.drafting().mtp ? draft::ModelDrafterOptions{}.mtp_depth : 0;
  what.blocks = model.drafting().shape.has_value();
  const bool shows_progress = ::isatty(STDERR_FILENO) == 1;
  const auto calibration = draft::calibrate(timer, what, [&](int32_t batch, int32_t pass) {
    if (shows_progress)
      fmt::print(stderr, "\rbatch {} of {}, pass {} of {} ", batch + 1, draft::calibration_batches, pass + 1,
                 draft::calibration_passes);
  });
  if (shows_progress) fmt::print(stderr, "\r\033[K");
  if (options.json)
    write_out(draft::timing_json(calibration, key));
  else
    print_table(calibration);
  if (calibration.doubtful)
    throw Error(ErrorCode::failed_check, "calibration",
                "a step of more rows took less time in every batch, so nothing is stored", "a quiet machine");
  draft::write_timing(file, calibration, key);
  if (!options.json) write_out(fmt::format("stored in {}\n", file.string()));
  return 0;
}

}  // namespace tandem::cli
