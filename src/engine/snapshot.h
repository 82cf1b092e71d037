// What the engine is doing at this moment, as plain values: for the watchdog's dump.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace tandem::engine {

struct StreamSnapshot {
  uint64_t number = 0;
  std::array<char, 48> id{};  // Request::id, cut off and ended by a zero
  const char* phase = "";     // "filling", "decoding", "waits for pages", "ended"
  bool is_ended = false;
  int32_t slot = 0;
  int64_t prompt = 0, length = 0, emitted = 0;  // tokens
  int64_t pages = 0;
  double age_s = 0;  // since submit
};

struct Snapshot {
  std::vector<StreamSnapshot> streams;
  int64_t waiting = 0;
  int64_t keeps = 0, restores = 0, page_copies = 0, segments = 0, rows = 0, logits = 0;  // of the step that runs

  std::string text() const;  // several lines
};

}  // namespace tandem::engine
