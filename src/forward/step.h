// The step: everything a rank needs to know to run one forward pass, as plain arrays (design.md 3). Prefill, decode and
// verification are the same call with different segments; moves of state are part of the step, so that every rank does
// the same ones and a recorded list of steps replays without the engine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tandem::forward {

// What the rows of a step are.
enum class StepKind : uint32_t {
  text,        // rows of the text model: prompt, reply, drafts to verify
  mtp_absorb,  // rows of the MTP layer with the text model's hidden rows (spec/model.md 6.3, 1): a segment's row at
               // position j pairs the hidden of position j (of the last text step, or among the slot's head rows) with
               // the token at j + 1
  mtp_chain,   // one row of each segment's stream with the hidden that its last MTP row left (6.3, 2 and 3)
  dflash2,     // blocks of the DFlash2 drafter (spec/speculation.md 1.5): each segment is one row, the pending token at
               // its position
};

// A run of consecutive rows of one stream.
struct Segment {
  int32_t slot = 0;        // state slot of the stream
  int32_t page_table = 0;  // first entry of the stream's page table in Step::page_tables
  int32_t pages = 0;       // number of its entries
  int32_t first_row = 0;   // first row of the segment in Step::tokens
  int32_t rows = 0;
  int32_t certain_rows = 0;  // rows that will be kept whatever the logits say: prompt rows, the pending token
  int64_t position = 0;      // absolute position of the first row = rows of the stream committed before this step
  int64_t context_from = 0;  // text: rows at positions below it leave no context for the DFlash2 drafter

  bool operator==(const Segment&) const = default;
};

// A slot's state at `length` rows, copied to a kept-state record or back from one.
struct StateMove {
  int32_t slot = 0;
  int32_t record = 0;
  int64_t length = 0;  // ≥ 1; keep: from the last certain row to the end of the slot's stream; restore: as it was kept

  bool operator==(const StateMove&) const = default;
};

// The first `rows` token rows of page `from` copied to page `to` in every plane (copy-on-write of a partial page).
struct PageCopy {
  int32_t from = 0, to = 0;
  int32_t rows = 0;
  int32_t group = 0;  // the pages' rank under decode-context parallelism: table entry modulo its size; else 0

  bool operator==(const PageCopy&) const = default;
};

// How the token behind a row of logits is chosen where the model chooses it, by the rule of engine/sampler.h. The row's
// logits do not leave the device.
struct RowSample {
  static constexpr int32_t most_masked = 32;  // ids of one row

  double temperature = 1;  // below 1e-5: greedy
  double top_p = 1;
  double min_p = 0;
  uint64_t seed = 0;
  int64_t position = 0;  // that the token will have in its stream
  int32_t row = 0;       // which of logit_rows and, behind them, head_slots
  int32_t top_k = 0;
  int32_t size = 0;                      // ids from here on are never chosen
  int32_t first_masked = 0, masked = 0;  // nor are these of Step::masked_tokens
  int32_t wants_probability = 0;         // 1: the token's share of the row is wanted, too

  bool operator==(const RowSample&) const = default;
};

struct Step {
  StepKind kind = StepKind::text;  // the others have no moves and no head slots, and commit nothing of the text model

  // Moves, done in this order before any row runs. A slot may be kept and then restored or started afresh.
  std::vector<StateMove> keeps;
  std::vector<StateMove> restores;
  std::vector<PageCopy> page_copies;

  std::vector<int32_t> tokens;       // [rows]; a step without rows only moves states and computes head_slots
  std::vector<int64_t> positions;    // [rows] absolute
  std::vector<Segment> segments;     // of different slots, in the order of their rows
  std::vector<int32_t> page_tables;  // physical pages of token rows, concatenated over segments; 0 is the null page
  std::vector<int32_t> logit_rows;   // rows whose logits are wanted, ascending; none of dflash2
  // Slots whose last row's logits are wanted from the head row that they hold (a restored prompt needs no forward);
  // none of them has a segment in this step. Their logits follow those of logit_rows.
  std::vector<int32_t> head_slots;
  // Rows of those two kinds whose token is wanted in place of their logits, by ascending RowSample::row. A model on a
  // GPU chooses them; others refuse them (engine/sample_on_host.h chooses for them).
  std::vector<RowSample> samples;
  std::vector<int32_t> masked_tokens;  // of all samples

  void clear();  // keeps the memory
  bool operator==(const Step&) const = default;
};

// A step of one stream in slot 0 that owns pages 1 … `pages`: `tokens` at position, position + 1, …, all of them
// certain. No logit rows.
Step single_stream_step(std::span<const int32_t> tokens, int64_t position, int32_t pages);

// The step as bytes (little-endian; layout in docs/internals/formats.md): version, lengths, arrays, CRC32C. `bytes` is
// overwritten and keeps its memory.
void write_step(const Step& step, std::vector<std::byte>& bytes);
// Throws Error(bad_file) for bytes that are short, too many, of another version, damaged, or whose counts do not
// agree. `step` keeps its memory.
void read_step(std::span<const std::byte> bytes, Step& step);

}  // namespace tandem::forward
