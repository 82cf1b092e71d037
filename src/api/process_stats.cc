// Reads /proc/self and /proc/stat (proc(5)).
#include "api/process_stats.h"

#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <system_error>

namespace tandem::api {

namespace {

double seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
}

// Unix time at which the machine started.
std::optional<double> boot_time() {
  std::ifstream file("/proc/stat");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("btime ")) return std::stod(line.substr(6));
  }
  return std::nullopt;
}

// Field 22 of /proc/self/stat: ticks from the machine's start to ours. Field 2 is a name that may hold anything, so
// counting begins behind its closing parenthesis.
std::optional<double> start_ticks() {
  std::ifstream file("/proc/self/stat");
  std::string line;
  std::getline(file, line);
  const size_t end = line.rfind(')');
  if (end == std::string::npos) return std::nullopt;
  std::istringstream fields(line.substr(end + 1));
  std::string field;
  for (int number = 3; number <= 22; ++number) fields >> field;
  if (!fields) return std::nullopt;
  return std::stod(field);
}

}  // namespace

ProcessStats read_process_stats() {
  ProcessStats stats;
  std::ifstream memory("/proc/self/statm");
  double pages = 0, resident = 0;
  if (memory >> pages >> resident) {
    const auto page_bytes = static_cast<double>(sysconf(_SC_PAGESIZE));
    stats.virtual_bytes = pages * page_bytes;
    stats.resident_bytes = resident * page_bytes;
  }
  rusage usage{};
  if (getrusage(RUSAGE_SELF, &usage) == 0) stats.cpu_seconds = seconds(usage.ru_utime) + seconds(usage.ru_stime);
  const auto boot = boot_time(), ticks = start_ticks();
  if (boot && ticks) stats.start_time_seconds = *boot + *ticks / static_cast<double>(sysconf(_SC_CLK_TCK));
  std::error_code error;
  int64_t fds = 0;
  for (std::filesystem::directory_iterator it("/proc/self/fd", error), end; !error && it != end; it.increment(error)) {
    ++fds;
  }
  if (!error) stats.open_fds = static_cast<double>(fds);
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    stats.max_fds = static_cast<double>(limit.rlim_cur);
  }
  return stats;
}

}  // namespace tandem::api
