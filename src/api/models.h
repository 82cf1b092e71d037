// JSON of GET /v1/models and /v1/models/{id} (spec/frontend.md D.1).
#pragma once

#include <cstdint>
#include <string>

#include "api/served_model.h"

namespace tandem::api {

// `created`: Unix time, seconds.
std::string model_list(const ServedModel& model, int64_t created);
std::string model_row(const ServedModel& model, const std::string& name, int64_t created);

}  // namespace tandem::api
