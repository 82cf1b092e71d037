// fuzz-room: eval
// Any text as a manifest: either refused with an Error or read, and then written and read again to the same.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "eval/manifest.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem::eval;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    parse_origin(text, "fuzz");
  } catch (const tandem::Error&) {
  }
  try {
    // The checksum refuses nearly everything, so what is fuzzed is put in front of a fitting one.
    const std::string sealed = seal_manifest(std::string(text));
    const Manifest manifest = parse_manifest(sealed, "fuzz");
    const std::string written = manifest_text(manifest);
    if (manifest_text(parse_manifest(written, "again")) != written) std::abort();
    options_of(manifest.origin, "fuzz");
  } catch (const tandem::Error&) {
  }
  return 0;
}
