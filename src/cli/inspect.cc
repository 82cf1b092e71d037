// Prints the report of src/model.
#include "cli/inspect.h"

#include "base/error.h"
#include "cli/loaded_model.h"
#include "cli/standard_io.h"
#include "model/inspect.h"

namespace tandem::cli {

int run_inspect(const InspectOptions& options) {
  const auto report = model::inspect(options.model.empty() ? default_model() : options.model,
                                     weight_options(options.nvfp4_nibble_order));
  write_out(options.json ? model::report_json(report) : model::report_text(report));
  if (report.complete()) return 0;
  throw Error(ErrorCode::failed_check, report.path, "tensors are missing or wrong, see the report");
}

}  // namespace tandem::cli
