// The file of --config: `name = value` lines, a strict part of TOML. Its own reader, because one that guesses can lose
// a setting (an open bracket that takes in the next line, a # within a key), and a lost api-key is an open server.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::cli {

struct Setting {
  std::string name;
  std::vector<std::string> values;  // at least one
  std::string where;                // "tandem.toml: line 3", for errors
};

// A line is empty, a comment (# or ;), or `name = value`; the value a bare word, a text in " or ' without escapes, or a
// list of these in brackets, which may go on over several lines. Each name once. Throws Error(usage) naming `file`,
// line and what was expected.
std::vector<Setting> parse_settings(std::string_view text, const std::string& file);

// Reads a regular file or a pipe of at most 1 MiB. Throws Error: bad_file for anything else, resource for a file that
// may not be read, usage as above.
std::vector<Setting> read_settings(const std::filesystem::path& path);

}  // namespace tandem::cli
