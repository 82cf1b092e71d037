// A measured timing table as a file (JSON, schema "tandem.timing/1"), kept under the key of everything that shaped it.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "draft/calibration.h"

namespace tandem::draft {

// The calibration with its raw samples as JSON text, one line at its end.
std::string timing_json(const Calibration& calibration, std::string_view key);

// The table in `text`. Throws Error(bad_file) that starts with `where` for text that is damaged, of another schema,
// measured under another key than `key`, or whose table cannot be (times that are no positive numbers, descend, …).
TimingTable parse_timing(std::string_view text, std::string_view key, const std::string& where);

// Whole or not at all: the text is written beside the file and renamed. Throws Error(resource).
void write_timing(const std::filesystem::path& path, const Calibration& calibration, std::string_view key);
// Throws Error(bad_file) as parse_timing() does, also for a file that is not there; Error(resource) for one that may
// not be read.
TimingTable read_timing(const std::filesystem::path& path, std::string_view key);

}  // namespace tandem::draft
