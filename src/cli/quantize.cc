// Options to eval::quantize, progress and report.
#include "cli/quantize.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "cli/loaded_model.h"
#include "cli/progress_line.h"
#include "cli/standard_io.h"
#include "eval/quantize.h"

namespace tandem::cli {
namespace {

eval::Coding coding_of(const char* option, const std::string& word, bool may_be_nvfp4) {
  for (const eval::Coding coding : {eval::Coding::keep, eval::Coding::fp8, eval::Coding::nvfp4})
    if (word == eval::name_of(coding) && (coding != eval::Coding::nvfp4 || may_be_nvfp4)) return coding;
  throw Error(ErrorCode::usage, option, '"' + word + '"', may_be_nvfp4 ? "fp8, nvfp4 or keep" : "fp8 or keep");
}

}  // namespace

int run_quantize(const QuantizeCommandOptions& given) {
  eval::QuantizeOptions options;
  options.experts = coding_of("--experts", given.experts, true);
  options.dense = coding_of("--dense", given.dense, false);
  if (given.out.empty()) throw Error(ErrorCode::usage, "--out", "missing", "the folder to write");
  options.model = checked_folder(given.model.empty() ? default_model() : given.model);
  options.out = given.out;
  options.threads = checked_threads(given.threads);
  eval::QuantizeReport report;
  {
    ProgressLine line;
    report = eval::quantize(options, [&](int64_t bytes_read, int64_t bytes) {
      const double share = static_cast<double>(bytes_read) / static_cast<double>(std::max<int64_t>(bytes, 1));
      line.show(fmt::format("{:.0f} % of {:.1f} GB", 100 * share, static_cast<double>(bytes) / 1e9));
    });
  }
  write_out(given.json ? eval::quantize_json(report) : eval::quantize_text(report));
  return 0;
}

}  // namespace tandem::cli
