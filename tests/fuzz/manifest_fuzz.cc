// fuzz-room: eval
// Any text as a manifest: either refused with an Error or read, and then written and read again to the same.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "eval/manifest.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    tandem::eval::parse_origin(text, "fuzz");
  } catch (const tandem::Error&) {
  }
  try {
    // The checksum refuses nearly everything, so what is fuzzed is put in front of a fitting one.
    const std::string sealed = tandem::eval::seal_manifest(std::string(text));
    const tandem::eval::Manifest manifest = tandem::eval::parse_manifest(sealed, "fuzz");
    const std::string written = tandem::eval::manifest_text(manifest);
    if (tandem::eval::manifest_text(tandem::eval::parse_manifest(written, "again")) != written) std::abort();
    options_of(manifest.origin, "fuzz");
  } catch (const tandem::Error&) {
  }
  return 0;
}
