// Times on the device, taken without the host in the way: a recorded graph of several launches is replayed many times
// behind a long copy, so that everything is queued before the first replay begins.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "device/gpu.h"

namespace tandem::bench {

struct Timing {
  std::vector<double> samples;  // microseconds of one of the repeated things, in the order measured
  double median() const;
};

// The device, what a benchmark may use of it, and its limits once they are known.
class Bench {
 public:
  // lead_bytes: of the memory that is filled before the replays; large enough to hide the host's queueing.
  // least_launches: of a graph that times one operation.
  Bench(device::Gpu& gpu, int64_t lead_bytes, int samples, int64_t least_launches);

  device::Gpu& gpu() const { return gpu_; }
  // Records what `queue` queues, `count` equal things, and replays it; time of one of them.
  Timing graph(int64_t count, const std::function<void()>& queue) const;
  // The same without a graph.
  Timing queued(int64_t count, const std::function<void()>& queue) const;
  // About the time of what `queue` queues, in microseconds: to decide how often it is worth repeating.
  double estimate(const std::function<void()>& queue) const;

  const int64_t least_launches;
  double read_rate = 0;    // bytes a microsecond, of a large stream
  double matrix_rate = 0;  // operations a microsecond
  double fp32_rate = 0;    // operations a microsecond, without tensor cores
  double launch_us = 0;    // of a kernel that does nothing, in a graph

 private:
  Timing replays(int64_t count, const std::function<void()>& one) const;

  device::Gpu& gpu_;
  device::GpuMemory lead_;
  int samples_;
};

// Everything measured: for people as a table, for programs as JSON.
class Report {
 public:
  // Adds {"name", "rows", "us" (median), "samples", …more} to the list `section`, and a line of the table.
  void add(const std::string& section, const std::string& name, int64_t rows, const Timing& timing,
           nlohmann::json more = {});
  void note(const std::string& section, const std::string& name, double value, const std::string& unit);
  nlohmann::json& json() { return json_; }
  const std::string& table() const { return table_; }

 private:
  nlohmann::json json_;
  std::string table_, section_;
  void begin(const std::string& section);
};

}  // namespace tandem::bench
