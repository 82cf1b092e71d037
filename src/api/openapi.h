// The description of the HTTP API in OpenAPI 3.1: GET /openapi.json. Its text lies in openapi/*.json; openapi_test.cc
// compares it with the routes and with the readers of requests.
#pragma once

#include <string>

namespace tandem::api {

// The whole document as JSON text.
const std::string& openapi_document();

}  // namespace tandem::api
