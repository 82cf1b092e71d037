// How long the pieces of a round take: measured by `tandem calibrate timing`, or built in (spec/speculation.md 5.1,
// 5.3). Tables decide depths only, so replies are the same under any of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tandem::draft {

struct TimingTable {
  std::string id;                 // of a measured table, for logs and files; "built-in"
  std::vector<double> verify_ms;  // [i]: a step that verifies i + 1 rows; not empty, ascending
  double mtp_ms = 0;              // one draft of the MTP layer after an ordinary round
  double mtp_step_ms = 0;         // each further one
  double mtp_row_ms = 0;          // each further row that the MTP layer absorbs
  double block_ms = 0;            // a DFlash2 block
  double overhead_ms = 0;         // host work of a round

  // Milliseconds of a step of `rows` ≥ 1 rows; beyond the table by its last slope (of a table of one: by that one).
  double verify(int64_t rows) const;
};

// In units of one plain step, from no measurement: a row more costs what it costs on most machines (5.1).
// `block_share`: weights of a DFlash2 block over those that a token of the text model is multiplied with; that of the
// published pair unless given.
inline constexpr double published_block_share = 1006.8e6 / 18e9;
TimingTable built_in_table(double block_share = published_block_share);

}  // namespace tandem::draft
