// The step: everything a rank needs to know to run one forward pass, as plain arrays (design.md 3). Prefill, decode and
// verification are the same call with different segments.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tandem::forward {

// A run of consecutive rows of one stream.
struct Segment {
  int32_t slot = 0;        // state slot of the stream
  int32_t page_table = 0;  // first entry of the stream's page table in Step::page_tables
  int32_t pages = 0;       // number of its entries
  int32_t first_row = 0;   // first row of the segment in Step::tokens
  int32_t rows = 0;
  int32_t certain_rows = 0;  // rows that will be kept whatever the logits say: prompt rows, the pending token
  int64_t position = 0;      // absolute position of the first row = rows of the stream committed before this step
};

struct Step {
  std::vector<int32_t> tokens;     // [rows]
  std::vector<int64_t> positions;  // [rows] absolute
  std::vector<Segment> segments;
  std::vector<int32_t> page_tables;  // physical pages of 256 token rows, concatenated over segments; 0 is the null page
  std::vector<int32_t> logit_rows;   // rows whose logits are wanted, ascending
};

// A step of one stream in slot 0 that owns pages 1 … `pages`: `tokens` at position, position + 1, …, all of them
// certain. No logit rows.
Step single_stream_step(std::span<const int32_t> tokens, int64_t position, int32_t pages);

}  // namespace tandem::forward
