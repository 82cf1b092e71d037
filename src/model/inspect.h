// `tandem inspect`: what a model folder or a bare config.json describes and, where there are weights, whether they fit
// it.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "model/inspect_floor.h"
#include "model/inventory.h"
#include "model/shape.h"

namespace tandem::model {

struct ModelReport {
  std::string path;
  Shape shape;
  Inventory inventory;
  CacheBytes cache;
  std::optional<Comparison> weights;  // absent where there are no weights
  // Where there are none, what the config says of them, for the caller to fill in: how their format is called, and
  // rows.
  std::string stated_format;
  std::vector<FormatRow> stated;
  std::optional<Floor> floor;  // filled in by the caller

  const std::vector<FormatRow>& formats() const { return weights ? weights->formats : stated; }

  bool complete() const { return !weights || weights->complete(); }  // nothing missing, nothing wrong
};

// Reads MODEL, a folder or a config.json. Throws Error(bad_file) or Error(resource) for files that cannot be read or
// understood; missing and wrong tensors are part of the report.
ModelReport inspect(const std::filesystem::path& path, WeightOptions options = {});

std::string report_text(const ModelReport& report);  // for people: lines, each ended
std::string report_json(
    const ModelReport& report);  // one object, first key "schema": "tandem.inspect/1", ended by a newline

// Both steps in one.
std::string inspect_report(const std::filesystem::path& path, bool json);

}  // namespace tandem::model
