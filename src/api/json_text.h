// A JSON document as the dialects send it.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace tandem::api {

// In one line; bytes that are not UTF-8 become U+FFFD.
std::string text_of(const nlohmann::ordered_json& json);

}  // namespace tandem::api
