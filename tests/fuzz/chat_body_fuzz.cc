// fuzz-room: chat
// A chat body from outside: reading it, normalised or not, and rendering what was read either works or throws the one
// error type, naming a field. Printing its JSON again must be stable.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/log.h"
#include "chat/messages.h"
#include "chat/render.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tandem::set_log_level(tandem::LogLevel::error);
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  for (const bool normalise : {true, false}) {
    try {
      tandem::chat::render(tandem::chat::parse_conversation(body, normalise));
    } catch (const tandem::Error& error) {
      if (error.code() != tandem::ErrorCode::usage || error.where().empty()) std::abort();
    }
  }
  try {
    const std::string once = tandem::chat::python_json(body);
    if (tandem::chat::python_json(once) != once) std::abort();
  } catch (const tandem::Error&) {
  }
  return 0;
}
