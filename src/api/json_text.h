#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace tandem::api {

// The document in one line, as it is sent; bytes that are not UTF-8 become U+FFFD.
inline std::string text_of(const nlohmann::ordered_json& json) {
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace tandem::api
