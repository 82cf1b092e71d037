// What a model knows of its streams' lengths, the same on every device: which steps are allowed next, and where the
// hidden rows lie that an MTP step asks for. "Commit and roll-back are set length" (design.md 5) happens here.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "forward/mtp_slot.h"
#include "forward/step.h"
#include "forward/text_model.h"

namespace tandem::forward {

// Throws Error(internal).
[[noreturn]] void bad_step(const std::string& what);

// That the step's samples are of its logit rows, each of one, ask for what there is and can be chosen by. Throws
// Error(internal).
void check_samples(const Step& step, int64_t vocab_size, int32_t max_logit_rows);

// Where the hidden row of an MTP step's row is: among the rows of the last text step, in the slot's ring of head rows
// (by position), or what the slot's last MTP row left.
enum class HiddenPlace : int32_t { none, text_row, head_ring, chain };
struct HiddenSource {
  HiddenPlace place = HiddenPlace::none;
  int64_t index = 0;  // text_row: the row; head_ring: the position
};

struct StepBook {
  Capacity capacity;
  int64_t vocab_size = 0;
  std::vector<int64_t> end, certain_end;  // [slots] of the last step
  std::vector<uint8_t> in_step;           // [slots] has a segment in the step that is being checked
  std::vector<MtpSlot> mtp_slots;         // [slots]

  StepBook(const Capacity& of_model, int64_t vocabulary);

  // All throw Error(internal) for what breaks TextModel::run()'s rules.
  void check_slot(int32_t slot) const;
  void check_record(int32_t record) const;
  void check_segment(const Segment& segment, const Step& step, bool text) const;
  void check(const Step& step, bool text);
  void check_keep(const StateMove& move) const;
  void check_restore(const StateMove& move, int64_t kept_length) const;  // kept_length: of the record
  void check_copy(const PageCopy& copy, int32_t groups) const;
  void check_dflash2(const Step& step, bool has_drafter);
  // That every row of an MTP step has its hidden row.
  void check_hidden_rows(const Step& step) const;
  static bool has_moves(const Step& step);

  HiddenSource hidden_source(const Step& step, const Segment& segment, int64_t row) const;

  void restored(const StateMove& move);
  // After the rows of a segment of a text step, or of an MTP step.
  void ran(const Segment& segment);
  void ran_mtp(const Segment& segment, StepKind kind);
};

}  // namespace tandem::forward
