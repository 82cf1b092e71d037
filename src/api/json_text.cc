// The one place that knows how a document becomes text.
#include "api/json_text.h"

#include <nlohmann/json.hpp>

namespace tandem::api {

std::string text_of(const nlohmann::ordered_json& json) {
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace tandem::api
