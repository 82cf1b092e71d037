// fuzz-room: engine
// Any bytes as a recording of steps: either refused with an Error or read to the end.
#include <cstdint>

#include "base/error.h"
#include "engine/step_recording.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    tandem::engine::RecordingReader reader(std::as_bytes(std::span<const uint8_t>(data, size)), "fuzz");
    tandem::engine::RecordedStep recorded;
    while (reader.next(recorded)) {
    }
  } catch (const tandem::Error&) {
  }
  return 0;
}
