// fuzz-room: draft
// Any bytes as a timing table's file: either refused with an Error that names a place in it or read into a table that
// keeps its promises.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "draft/timing_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const tandem::draft::TimingTable table =
        tandem::draft::parse_timing({reinterpret_cast<const char*>(data), size}, "key", "fuzz");
    double before = 0;
    for (const double time : table.verify_ms) {
      if (!std::isfinite(time) || time <= 0 || time < before) std::abort();
      before = time;
    }
    if (table.verify_ms.empty() || table.id != id_of(table)) std::abort();
    for (const double time : {table.mtp_ms, table.mtp_step_ms, table.mtp_row_ms, table.block_ms, table.overhead_ms})
      if (!std::isfinite(time) || time < 0) std::abort();
  } catch (const tandem::Error& error) {
    if (error.code() != tandem::ErrorCode::bad_file || error.where().rfind("fuzz", 0) != 0) std::abort();
  }
  return 0;
}
