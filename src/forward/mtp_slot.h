// What the model remembers of a slot between a text step and the MTP steps after it: which hidden rows are still to be
// had, and where the MTP layer's rows of this round end (spec/model.md 6.3).
#pragma once

#include <algorithm>
#include <cstdint>

#include "cache/slots.h"
#include "forward/step.h"

namespace tandem::forward {

struct MtpSlot {
  // The slot's rows in the last text step that had any.
  int64_t text_position = 0, text_first_row = 0, text_rows = 0;
  // Head rows written since the slot was started or restored: from this position on, up to this end, whatever was
  // rolled back since. The ring holds the last of them.
  int64_t head_from = 0, head_end = 0;
  // Position of the slot's last MTP row since the last text step, and of its last one with the text model's own hidden;
  // −1: none.
  int64_t last_row = -1, last_absorbed = -1;

  // A text step begins; one without rows leaves the last one's hidden rows where they are.
  void start_text_step(bool has_rows) {
    if (has_rows) text_rows = 0;
    last_row = last_absorbed = -1;
  }
  void ran(const Segment& segment) {
    if (segment.position == 0) head_from = head_end = 0;
    text_position = segment.position;
    text_first_row = segment.first_row;
    text_rows = segment.rows;
    head_end = std::max(head_end, segment.position + segment.rows);
  }
  void restored(int64_t length) {  // with the head row of its last position
    text_rows = 0;
    head_from = length - 1;
    head_end = length;
    last_row = last_absorbed = -1;
  }
  bool in_text_step(int64_t position) const {
    return position >= text_position && position < text_position + text_rows;
  }
  bool in_head_ring(int64_t position) const {
    return position >= std::max(head_from, head_end - cache::ring_rows) && position < head_end;
  }
};

}  // namespace tandem::forward
