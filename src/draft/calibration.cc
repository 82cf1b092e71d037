// The procedure and its rules; what a piece is made of is the timer's business.
#include "draft/calibration.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/crc32c.h"
#include "base/error.h"

namespace tandem::draft {
namespace {

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

CalibrationBatch summed_up(std::vector<std::vector<double>> samples, int32_t rows) {
  CalibrationBatch batch;
  for (const std::vector<double>& passes : samples)
    batch.fastest.push_back(*std::min_element(passes.begin() + calibration_warm_up, passes.end()));
  for (int32_t i = 0; i < rows; ++i) {
    const double time = batch.fastest[static_cast<size_t>(i)];
    batch.verify_sum += time;
    if (i > 0 && time < batch.fastest[static_cast<size_t>(i - 1)] * (1 - calibration_slack)) batch.ascends = false;
  }
  batch.samples = std::move(samples);
  return batch;
}

double time_of(const Calibration& calibration, const CalibrationBatch& batch, const Piece& piece) {
  const auto at = std::find(calibration.pieces.begin(), calibration.pieces.end(), piece);
  return at == calibration.pieces.end() ? 0 : batch.fastest[static_cast<size_t>(at - calibration.pieces.begin())];
}

TimingTable table_of(const Calibration& calibration, const CalibrationOptions& options) {
  const CalibrationBatch& batch = calibration.batches[static_cast<size_t>(calibration.chosen)];
  TimingTable table;
  table.verify_ms = smoothed({batch.fastest.begin(), batch.fastest.begin() + options.rows});
  if (options.mtp_drafts > 0) {
    table.mtp_ms = time_of(calibration, batch, {Piece::Kind::mtp, 1});
    if (options.mtp_drafts > 1) {
      const double chain = time_of(calibration, batch, {Piece::Kind::mtp, options.mtp_drafts});
      table.mtp_step_ms = std::max(0.0, (chain - table.mtp_ms) / (options.mtp_drafts - 1));
    }
    const double absorbed = time_of(calibration, batch, {Piece::Kind::mtp_absorb, 6});
    table.mtp_row_ms = std::max(0.0, (absorbed - table.mtp_ms) / 5);
  }
  if (options.blocks) table.block_ms = time_of(calibration, batch, {Piece::Kind::block, 1});
  table.overhead_ms = options.overhead_ms;
  table.id = id_of(table);
  return table;
}

}  // namespace

std::string name_of(const Piece& piece) {
  switch (piece.kind) {
    case Piece::Kind::verify: return fmt::format("v{}", piece.count);
    case Piece::Kind::mtp: return fmt::format("m{}", piece.count);
    case Piece::Kind::mtp_absorb: return fmt::format("absorb{}", piece.count);
    case Piece::Kind::block: return "block";
  }
  throw Error(ErrorCode::internal, "piece", fmt::format("{}", static_cast<int>(piece.kind)), "0 to 3");
}

std::vector<Piece> pieces_of(const CalibrationOptions& options) {
  if (options.rows < 1)
    throw Error(ErrorCode::usage, "calibration rows", fmt::format("{}", options.rows), "at least 1");
  std::vector<Piece> pieces;
  for (int32_t rows = 1; rows <= options.rows; ++rows) pieces.push_back({Piece::Kind::verify, rows});
  if (options.mtp_drafts > 0) pieces.push_back({Piece::Kind::mtp, 1});
  if (options.mtp_drafts > 1) pieces.push_back({Piece::Kind::mtp, options.mtp_drafts});
  if (options.mtp_drafts > 0) pieces.push_back({Piece::Kind::mtp_absorb, 6});
  if (options.blocks) pieces.push_back({Piece::Kind::block, 1});
  return pieces;
}

int32_t choose_batch(const std::vector<CalibrationBatch>& batches) {
  if (batches.empty()) throw Error(ErrorCode::internal, "calibration", "no batches", "at least one");
  const bool any = std::any_of(batches.begin(), batches.end(), [](const auto& batch) { return batch.ascends; });
  int32_t chosen = -1;
  for (int32_t i = 0; i < std::ssize(batches); ++i) {
    const CalibrationBatch& batch = batches[static_cast<size_t>(i)];
    if (any && !batch.ascends) continue;
    if (chosen < 0 || batch.verify_sum < batches[static_cast<size_t>(chosen)].verify_sum) chosen = i;
  }
  return chosen;
}

std::vector<double> smoothed(const std::vector<double>& verify_ms) {
  if (verify_ms.size() < 3) {
    std::vector<double> ascending = verify_ms;
    if (ascending.size() == 2) ascending[1] = std::max(ascending[0], ascending[1]);
    return ascending;
  }
  std::vector<double> slopes, intercepts, smooth = {verify_ms.front()};
  for (size_t i = 1; i < verify_ms.size(); ++i) {
    for (size_t j = i + 1; j < verify_ms.size(); ++j)
      slopes.push_back((verify_ms[j] - verify_ms[i]) / static_cast<double>(j - i));
  }
  const double slope = median(slopes);
  for (size_t i = 1; i < verify_ms.size(); ++i) intercepts.push_back(verify_ms[i] - slope * static_cast<double>(i));
  const double intercept = median(intercepts);
  for (size_t i = 1; i < verify_ms.size(); ++i)
    smooth.push_back(std::max(smooth.back(), intercept + slope * static_cast<double>(i)));
  return smooth;
}

std::string id_of(const TimingTable& table) {
  std::string text;
  for (const double time : table.verify_ms) text += fmt::format("{} ", time);
  text += fmt::format("{} {} {} {} {}", table.mtp_ms, table.mtp_step_ms, table.mtp_row_ms, table.block_ms,
                      table.overhead_ms);
  return fmt::format("{:08x}", crc32c(std::as_bytes(std::span(text))));
}

Calibration calibrate(PieceTimer& timer, const CalibrationOptions& options,
                      const std::function<void(int32_t, int32_t)>& progress) {
  Calibration result;
  result.pieces = pieces_of(options);
  for (int32_t batch = 0; batch < calibration_batches; ++batch) {
    std::vector<std::vector<double>> samples(result.pieces.size());
    for (int32_t pass = 0; pass < calibration_passes; ++pass) {
      if (progress) progress(batch, pass);
      timer.begin_pass(pass);
      for (size_t piece = 0; piece < samples.size(); ++piece) {
        const double ms = timer.time(result.pieces[piece]);
        if (!(ms > 0) || !std::isfinite(ms))
          throw Error(ErrorCode::failed_check, "timing of " + name_of(result.pieces[piece]), fmt::format("{} ms", ms),
                      "a positive number");
        samples[piece].push_back(ms);
      }
    }
    result.batches.push_back(summed_up(std::move(samples), options.rows));
  }
  result.chosen = choose_batch(result.batches);
  result.doubtful = !result.batches[static_cast<size_t>(result.chosen)].ascends;
  result.table = table_of(result, options);
  return result;
}

}  // namespace tandem::draft
