// Names and errors of the engine's interface.
#include "engine/engine.h"

#include <fmt/core.h>

namespace tandem::engine {

std::string_view name_of(PrefixMiss miss) {
  switch (miss) {
    case PrefixMiss::none: return "none";
    case PrefixMiss::new_prefix: return "new prefix";
    case PrefixMiss::evicted: return "evicted by bytes";
    case PrefixMiss::other_salt: return "other salt";
    case PrefixMiss::effort_changed: return "effort changed";
    case PrefixMiss::template_changed: return "template changed";
    case PrefixMiss::logprobs_asked: return "logprobs asked";
  }
  return "unknown";
}

QueueFull::QueueFull(int64_t waiting)
    : Error(ErrorCode::resource, "queue", fmt::format("{} requests are waiting", waiting),
            "a free place; come back later") {}

}  // namespace tandem::engine
