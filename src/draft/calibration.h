// `tandem calibrate timing` (spec/speculation.md 5.3): how long the pieces of a round take on this machine, measured in
// three independent batches of which one is taken whole. Tables decide depths only: replies are the same under any.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "draft/timing_table.h"

namespace tandem::draft {

// What is timed.
struct Piece {
  enum class Kind : uint8_t {
    verify,      // a step of `count` rows with all their logits
    mtp,         // one row absorbed and `count` drafts chained from it
    mtp_absorb,  // `count` rows absorbed, one draft
    block,       // a DFlash2 block
  };
  Kind kind = Kind::verify;
  int32_t count = 1;

  bool operator==(const Piece&) const = default;
};
std::string name_of(const Piece& piece);  // "v4", "m3", "absorb6", "block"

class PieceTimer {
 public:
  virtual ~PieceTimer() = default;
  // Before the pieces of a pass are timed: the model's stream stands at the pass's own place of the text.
  virtual void begin_pass(int32_t pass) = 0;
  // Milliseconds of the piece, its results read; the stream is left where it stood.
  virtual double time(const Piece& piece) = 0;
};

struct CalibrationOptions {
  int32_t rows = 16;       // v1 … v<rows>
  int32_t mtp_drafts = 0;  // of the longest chain; 0: no MTP
  bool blocks = false;     // a DFlash2 drafter is there
  double overhead_ms = 0;  // host work of a round, from the caller
};

// The procedure's constants (5.3).
inline constexpr int32_t calibration_batches = 3;
inline constexpr int32_t calibration_passes = 9;   // of a batch, each over all pieces in turn
inline constexpr int32_t calibration_warm_up = 2;  // of them, not counted
inline constexpr double calibration_slack = 0.02;  // by which a row more may be faster in a batch that is kept

std::vector<Piece> pieces_of(const CalibrationOptions& options);

struct CalibrationBatch {
  std::vector<std::vector<double>> samples;  // [piece][pass] ms, warm-up included
  std::vector<double> fastest;               // [piece] of the passes that count
  double verify_sum = 0;                     // of the fastest v1 … vR
  bool ascends = true;                       // v1 … vR do, within the slack
};

struct Calibration {
  TimingTable table;
  std::vector<Piece> pieces;
  std::vector<CalibrationBatch> batches;
  int32_t chosen = 0;     // the batch that the table is of
  bool doubtful = false;  // no batch ascended: the table is of the one with the smallest sum of all
};

// Times everything. `progress`, where given, is told (batch, pass) before each pass. Throws Error(failed_check) for
// times that are no positive numbers, and what the timer throws.
Calibration calibrate(PieceTimer& timer, const CalibrationOptions& options,
                      const std::function<void(int32_t, int32_t)>& progress = {});

// Of the batches that ascend the one with the smallest sum of v1 … vR, the first of equals; if none does, of all.
int32_t choose_batch(const std::vector<CalibrationBatch>& batches);

// v1 as it is; v2 … vR on the line of the median of pairwise slopes and the median intercept, never below what
// precedes.
std::vector<double> smoothed(const std::vector<double>& verify_ms);

// A name for the table by what it says (8 hexadecimal digits).
std::string id_of(const TimingTable& table);

}  // namespace tandem::draft
