// What can never run, said before it is queued.
#pragma once

#include "engine/engine.h"
#include "engine/scheduler_options.h"

namespace tandem::engine {

// Throws Error(usage) naming the field. `max_rows`: token rows that one stream can have. stop_token_ids must be sorted.
void check_request(const Request& request, const SchedulerOptions& options, int64_t max_rows);

}  // namespace tandem::engine
