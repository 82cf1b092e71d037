// A moving average of milliseconds a row. A step costs a + b·rows; dividing by its own rows overestimates small slices,
// so that the next one is larger, until a slice takes its budget.
#include "engine/prefill_pacer.h"

#include <algorithm>

namespace tandem::engine {
namespace {

constexpr int32_t row_step = 16;
constexpr double longest_debt_ms = 1e9;  // twelve days: fits nanoseconds, whatever a clock says
constexpr double weight_of_slower = 0.5, weight_of_faster = 0.25;  // a slice too long hurts more than one too short

}  // namespace

PrefillPacer::PrefillPacer(double slice_ms, double share, int32_t max_rows)
    : slice_ms_(slice_ms),
      share_(share >= smallest_fill_share ? std::min(share, 1.0) : smallest_fill_share),
      max_rows_(max_rows) {}

int32_t PrefillPacer::slice_rows() const {
  if (slice_ms_ <= 0) return max_rows_;
  const double rows = ms_per_row_ > 0 ? slice_ms_ / ms_per_row_ : row_step;
  const double whole = std::min(rows, static_cast<double>(max_rows_));
  const int32_t stepped = static_cast<int32_t>(whole) / row_step * row_step;
  return std::min(std::max(stepped, row_step), max_rows_);
}

void PrefillPacer::step_done(const Measured& step) {
  if (step.prompt_rows == 0) return;
  const double ms = std::chrono::duration<double, std::milli>(step.ended - step.began).count();
  const double measured = std::max(ms, 1e-6) / static_cast<double>(step.rows);
  if (ms_per_row_ == 0) {
    ms_per_row_ = measured;
  } else {
    ms_per_row_ += (measured > ms_per_row_ ? weight_of_slower : weight_of_faster) * (measured - ms_per_row_);
  }
  if (!step.on_credit || slice_ms_ <= 0) return;
  const double owed_ms = std::clamp(ms * (1 - share_) / share_, 0.0, longest_debt_ms);
  const std::chrono::duration<double, std::milli> owed(owed_ms);
  credit_at_ = step.ended + std::chrono::duration_cast<Time>(owed);
}

void share_rows(std::span<Fill> fills, int64_t rows) {
  if (fills.empty() || rows <= 0) return;
  for (Fill& fill : fills) fill.granted = 0;
  fills[0].granted = std::min(fills[0].limit, std::max<int64_t>(1, rows / 4));
  rows -= fills[0].granted;
  while (rows > 0) {
    Fill* shortest = nullptr;
    for (Fill& fill : fills) {
      if (fill.granted < fill.limit && (shortest == nullptr || fill.remaining < shortest->remaining)) shortest = &fill;
    }
    if (shortest == nullptr) return;
    const int64_t more = std::min(shortest->limit - shortest->granted, rows);
    shortest->granted += more;
    rows -= more;
  }
}

}  // namespace tandem::engine
