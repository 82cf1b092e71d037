// The moves of state that a step asks for.
#include "forward/text_model_state.h"

namespace tandem::forward {

void TextModel::State::run_moves(const Step& step) {
  for (const StateMove& move : step.keeps) {
    check_keep(move);
    kept.save(threads, slots, move.slot, move.length, move.record);
  }
  for (const StateMove& move : step.restores) {
    check_slot(move.slot);
    check_record(move.record);
    check_restore(move, kept.length(move.record));
    kept.restore(threads, move.record, slots, move.slot);
    restored(move);
  }
  const int32_t groups = group.ranks.decode_context_parallel_size;
  for (const PageCopy& copy : step.page_copies) {
    check_copy(copy, groups);
    if (groups == 1 || copy.group == group.ranks.rank) pool.copy_page(copy.from, copy.to, copy.rows);
  }
}

}  // namespace tandem::forward
