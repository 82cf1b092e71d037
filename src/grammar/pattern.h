// Regular expressions as xgrammar understands them (spec/frontend.md E.3). It ignores some of what it does not support,
// so everything is looked at here first.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tandem::grammar {

inline constexpr int64_t most_repetitions = 10'000;  // of one quantifier (spec/frontend.md E.2)

// Throws Error(usage), `where` first, for what is not supported: lookaround, backreferences, \b, \p, flags, anchors
// that are not at an end of a whole alternative. The whole text has to match, as if anchored at both ends.
void check_regex(std::string_view regex, const std::string& where);

// A `pattern` of a JSON schema, which searches, as a regular expression that the whole string has to match: an
// alternative without ^ or $ may have any characters on that side. Of the strings that it allows those are left that
// are written without escapes in JSON. Lengths are in characters; they are only supported for one repeated character
// set ("^[a-z]+$"), else Error(usage) as above.
std::string string_pattern(std::string_view pattern, std::optional<int64_t> min_length,
                           std::optional<int64_t> max_length, const std::string& where);

// The same text with \xHH as \u00HH, in regular expressions and grammars: xgrammar would take further digits for a part
// of the escape.
std::string exact_hex_escapes(std::string_view text);

// Characters, any but those that JSON would escape: the strings of these lengths.
std::string length_pattern(std::optional<int64_t> min_length, std::optional<int64_t> max_length);

// A pattern that matches this text alone; empty if JSON would escape a character of it.
std::optional<std::string> literal_pattern(std::string_view text);

// The pattern of a `format`; empty: not supported. A part of what the format allows: every match is valid
// (spec/frontend.md E.2; RFC 3339, 4122, 3986 without user information and IP literals, 1123, 2673).
std::optional<std::string> format_pattern(std::string_view format);
inline constexpr std::string_view supported_formats =
    "date, time, date-time, duration, email, hostname, ipv4, ipv6, uri, uuid";

}  // namespace tandem::grammar
