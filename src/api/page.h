// The chat page: GET /. One file without any outside resource, put together from page/ when the program is built.
#pragma once

#include <string>
#include <string_view>

#include "api/endpoint.h"

namespace tandem::api {

// The page with a policy under which a browser runs its own script, takes its own style and talks to this server only.
Reply page_reply();

// The Content-Security-Policy for a page with one <style> and one <script>, which are named by their SHA-256.
std::string content_policy(std::string_view html);

}  // namespace tandem::api
