// Bytes of HTTP/1.1 responses and of server-sent events. Pure functions; requests are parsed by Beast.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tandem::http {

using Headers = std::vector<std::pair<std::string, std::string>>;

// Status line and header fields with the empty line at the end. Control characters in values become spaces, so no value
// can begin a new field.
std::string response_head(int status, const Headers& headers);

// One chunk of a chunked body; `data` must not be empty, because an empty chunk ends the body.
std::string chunk(std::string_view data);
inline constexpr std::string_view last_chunk = "0\r\n\r\n";

// "data: <data>\n\n"; `data` has no line ends.
std::string sse_event(std::string_view data);
// "event: <name>\ndata: <data>\n\n"; likewise.
std::string sse_event(std::string_view name, std::string_view data);
// A comment, which readers skip: keeps proxies from closing a silent stream.
inline constexpr std::string_view sse_keepalive = ": keepalive\n\n";

// "Mon, 30 Nov 2026 12:00:00 GMT" for a Unix time.
std::string http_date(long long unix_time);

// Undoes percent-encoding; empty when an escape is malformed.
std::optional<std::string> percent_decode(std::string_view text);

}  // namespace tandem::http
