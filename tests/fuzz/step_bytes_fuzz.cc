// Bytes that claim to be a step. What is accepted must be written back byte for byte.
// fuzz-room: forward
#include <algorithm>
#include <cstdlib>

#include "base/error.h"
#include "forward/step.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);
  tandem::forward::Step step;
  try {
    tandem::forward::read_step(bytes, step);
  } catch (const tandem::Error&) {
    return 0;
  }
  std::vector<std::byte> again;
  tandem::forward::write_step(step, again);
  if (!std::equal(again.begin(), again.end(), bytes.begin(), bytes.end())) std::abort();
  return 0;
}
