// The report of a conversion for people and for programs.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "eval/quantize.h"
#include "model/inventory.h"

namespace tandem::eval {

namespace {

// All matrices as one line, the worst by name, and what was not as usual. Every matrix is in the JSON report and in
// the manifest.
std::string encoded_text(const QuantizeReport& report) {
  constexpr size_t worst = 3;
  double mse = 0, proxy = 0, seconds = 0;
  for (const EncodedTensor& tensor : report.encoded) {
    mse += tensor.relative_mse;
    proxy += tensor.proxy_error;
    seconds += tensor.seconds;
  }
  const auto count = static_cast<double>(report.encoded.size());
  std::string text = fmt::format(
      "  {} matrices in EXL3, {:.4f} bits a weight without the head; mean relative error {:.3e}, weighted by inputs "
      "{:.3e}\n  {:.1f} s of encoding in {:.1f} s, {} matrices from an earlier run\n",
      report.encoded.size(), report.average_bits, mse / count, proxy / count, seconds, report.seconds,
      report.resumed_tensors);
  std::vector<EncodedTensor> sorted = report.encoded;
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.proxy_error > b.proxy_error; });
  sorted.resize(std::min(sorted.size(), worst));
  for (const EncodedTensor& tensor : sorted)
    text += fmt::format("  largest error: {} at {} bits: relative {:.3e}, weighted {:.3e}\n", tensor.name, tensor.bits,
                        tensor.relative_mse, tensor.proxy_error);
  for (const std::string& note : report.notes) text += fmt::format("  {}\n", note);
  return text;
}

nlohmann::ordered_json tensor_json(const EncodedTensor& tensor) {
  return {{"name", tensor.name},
          {"bits", tensor.bits},
          {"scale", tensor.scale},
          {"relative_mse", tensor.relative_mse},
          {"weighted_error", tensor.proxy_error},
          {"calibration_rows", tensor.calibration_rows},
          {"dropped_rows", tensor.dropped_rows},
          {"damping_retries", tensor.damping_retries},
          {"fallback", tensor.fallback},
          {"seconds", tensor.seconds}};
}

}  // namespace

std::string quantize_text(const QuantizeReport& report) {
  std::string text = fmt::format("{}: {} tensor bytes in {} shards, {} before\n", report.out, report.bytes,
                                 report.shards, report.source_bytes);
  for (const QuantizeRow& row : report.rows)
    text += fmt::format("  {:<16} {:<6} {:>6} weights {:>14} bytes {:>6.3f} bits a parameter\n",
                        model::component_name(row.component), name_of(row.coding), row.weights, row.bytes,
                        8.0 * static_cast<double>(row.bytes) / static_cast<double>(row.parameters));
  text += fmt::format("  {:<16} {:<6} {:>6} tensors {:>14} bytes\n", "others", "copied", report.copied_tensors,
                      report.copied_bytes);
  return report.encoded.empty() ? text : text + encoded_text(report);
}

std::string quantize_json(const QuantizeReport& report) {
  nlohmann::ordered_json json;
  json["schema"] = "tandem.quantize/1";
  json["model"] = report.model;
  json["out"] = report.out;
  json["experts"] = name_of(report.experts);
  json["dense"] = name_of(report.dense);
  json["head"] = name_of(report.head);
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
  if (!report.encoded.empty()) {
    json["average_bits"] = report.average_bits;
    json["resumed"] = report.resumed_tensors;
    json["seconds"] = report.seconds;
    json["notes"] = report.notes;
    json["tensors"] = nlohmann::ordered_json::array();
    for (const EncodedTensor& tensor : report.encoded) json["tensors"].push_back(tensor_json(tensor));
  }
  return json.dump() + "\n";
}

}  // namespace tandem::eval
