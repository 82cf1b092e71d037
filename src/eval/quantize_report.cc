// The report of a conversion for people and for programs.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "eval/quantize.h"
#include "model/inventory.h"

namespace tandem::eval {

std::string quantize_text(const QuantizeReport& report) {
  std::string text = fmt::format("{}: {} tensor bytes in {} shards, {} before\n", report.out, report.bytes,
                                 report.shards, report.source_bytes);
  for (const QuantizeRow& row : report.rows)
    text += fmt::format("  {:<16} {:<6} {:>6} weights {:>14} bytes {:>6.3f} bits a parameter\n",
                        model::component_name(row.component), name_of(row.coding), row.weights, row.bytes,
                        8.0 * static_cast<double>(row.bytes) / static_cast<double>(row.parameters));
  text += fmt::format("  {:<16} {:<6} {:>6} tensors {:>14} bytes\n", "others", "copied", report.copied_tensors,
                      report.copied_bytes);
  return text;
}

std::string quantize_json(const QuantizeReport& report) {
  nlohmann::ordered_json json;
  json["schema"] = "tandem.quantize/1";
  json["model"] = report.model;
  json["out"] = report.out;
  json["experts"] = name_of(report.experts);
  json["dense"] = name_of(report.dense);
  json["converted"] = nlohmann::ordered_json::array();
  for (const QuantizeRow& row : report.rows)
    json["converted"].push_back({{"component", model::component_name(row.component)},
                                 {"format", name_of(row.coding)},
                                 {"weights", row.weights},
                                 {"parameters", row.parameters},
                                 {"source_bytes", row.source_bytes},
                                 {"bytes", row.bytes}});
  json["copied"] = {{"tensors", report.copied_tensors}, {"bytes", report.copied_bytes}};
  json["source_bytes"] = report.source_bytes;
  json["bytes"] = report.bytes;
  json["shards"] = report.shards;
  return json.dump() + "\n";
}

}  // namespace tandem::eval
