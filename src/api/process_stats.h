// What the operating system says about this process, for metrics.
#pragma once

#include <optional>

namespace tandem::api {

// Each is empty when it cannot be read (no /proc).
struct ProcessStats {
  std::optional<double> resident_bytes, virtual_bytes;
  std::optional<double> cpu_seconds;         // user and system
  std::optional<double> start_time_seconds;  // Unix time
  std::optional<double> open_fds, max_fds;
};

ProcessStats read_process_stats();

}  // namespace tandem::api
