// Prints the report of src/model, with what the engine makes of a bare config's quantization.
#include "cli/inspect.h"

#include <system_error>

#include "base/error.h"
#include "base/mapped_file.h"
#include "cli/loaded_model.h"
#include "cli/standard_io.h"
#include "engine/plan_weights.h"
#include "model/cache_bytes.h"
#include "model/inspect.h"

namespace tandem::cli {
namespace {

namespace fs = std::filesystem;

// Throws Error(bad_file) for a quantization that only the weights' own headers would tell.
void add_stated_weights(model::ModelReport& report, const fs::path& model) {
  std::error_code error;
  const MappedFile file = MappedFile::open(fs::is_directory(model, error) ? model / "config.json" : model);
  const engine::WeightFormat format = engine::format_of_config(file.text(), "config.json");
  report.stated_format = format.name();
  report.stated = engine::weights_in_format(report.shape, format).rows;
}

}  // namespace

int run_inspect(const InspectOptions& options) {
  const fs::path path = options.model.empty() ? default_model() : options.model;
  if (!options.bandwidth && options.context != 0)
    throw Error(ErrorCode::usage, "--context", "given without --bandwidth", "the rate of the memory, in GB/s");
  const model::CacheType cache =
      options.kv_cache_dtype == "auto" ? model::CacheType::bf16 : model::parse_cache_type(options.kv_cache_dtype);
  auto report = model::inspect(path, weight_options(options.nvfp4_nibble_order));
  if (!report.weights) {
    try {
      add_stated_weights(report, path);
    } catch (const Error& error) {
      if (options.bandwidth) throw;
      report.stated_format = std::string("not known: ") + error.what();  // all else of the report can be said
    }
  }
  if (options.bandwidth)
    report.floor = model::floor_of(report.shape, report.formats(),
                                   {*options.bandwidth, options.context, model::cache_row(report.shape, cache)});
  write_out(options.json ? model::report_json(report) : model::report_text(report));
  if (report.complete()) return 0;
  throw Error(ErrorCode::failed_check, report.path, "tensors are missing or wrong, see the report");
}

}  // namespace tandem::cli
