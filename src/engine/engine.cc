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

void DraftStats::begin_step(int32_t tried) {
  ++steps;
  steps_with_drafts += tried > 0 ? 1 : 0;
  drafted += tried;
  for (int32_t i = 0; i < tried; ++i) ++drafted_at[static_cast<size_t>(i)];
}

void DraftStats::add_token(int32_t place, bool was_draft) {
  const auto at = static_cast<size_t>(place);
  if (place > 0) --tokens_of_step[at];
  ++tokens_of_step[at + 1];
  if (!was_draft) return;
  ++accepted;
  ++accepted_at[at];
}

QueueFull::QueueFull(int64_t waiting)
    : Error(ErrorCode::resource, "queue", fmt::format("{} requests are waiting", waiting),
            "a free place; come back later") {}

}  // namespace tandem::engine
