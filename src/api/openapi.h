// The description of the HTTP API in OpenAPI 3.1: GET /openapi.json. Its text lies in openapi/*.json; openapi_test.cc
// compares it with the routes and with the readers of requests.
#pragma once

#include <string>

namespace tandem::api {

// Who may call what.
struct ApiAccess {
  bool needs_key = false;         // routes that are not open ask for a key
  bool metrics_are_open = false;  // /metrics does not
};

// The whole document as JSON text.
std::string openapi_document(const ApiAccess& access = {});

}  // namespace tandem::api
