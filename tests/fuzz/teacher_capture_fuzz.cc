// fuzz-room: eval
// Any bytes as a capture of logits: either refused with an Error or read to the end.
#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "base/error.h"
#include "eval/capture.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    tandem::eval::CaptureReader reader(std::as_bytes(std::span<const uint8_t>(data, size)), "fuzz");
    float largest = 0;
    for (size_t window = 0; window < reader.header().window_tokens.size(); ++window) {
      reader.start_window(window);
      for (uint32_t row = 1; row < reader.header().window_tokens[window]; ++row)
        for (const float logit : reader.next(1)) largest = std::max(largest, logit);
    }
    if (reader.header().positions() < 1) std::abort();
  } catch (const tandem::Error&) {
  }
  return 0;
}
