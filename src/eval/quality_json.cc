// The report for programs.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "eval/quality_report.h"

namespace tandem::eval {
namespace {

using Json = nlohmann::ordered_json;

Json optional(const std::optional<double>& value) { return value ? Json(*value) : Json(nullptr); }

Json side_json(const std::optional<QualitySide>& side, const std::optional<Perplexity>& perplexity) {
  if (!side) return nullptr;
  Json json;
  json["model"] = side->name;
  json["config_crc32c"] = fmt::format("{:08x}", side->config_crc);
  json["compute"] = side->capture.empty() ? Json(side->compute) : Json(nullptr);
  json["kv_cache_dtype"] = side->capture.empty() ? Json(side->kv_cache_dtype) : Json(nullptr);
  json["capture"] = side->capture.empty() ? Json(nullptr) : Json(side->capture);
  if (!perplexity) return json;
  json["perplexity"] = perplexity->value();
  json["mean_nll"] = perplexity->mean_nll;
  json["mean_nll_error"] = optional(perplexity->mean_nll_error);
  return json;
}

Json text_json(const QualityReport& report) {
  return {{"file", report.text},
          {"texts", report.texts},
          {"window", report.window},
          {"windows", report.windows},
          {"tokens", report.tokens},
          {"positions", report.positions},
          {"token_sha256", report.token_sha256}};
}

Json audit_json(const OffsetAudit& audit) {
  if (audit.positions == 0) return nullptr;
  return {{"-1", audit.means[0]}, {"0", audit.means[1]}, {"+1", audit.means[2]}, {"passed", audit.passes()}};
}

Json curve_json(const std::vector<CurveBin>& curve) {
  Json list = Json::array();
  for (const CurveBin& bin : curve)
    list.push_back({{"first", bin.first},
                    {"last", bin.last},
                    {"count", bin.count},
                    {"mean_kld", bin.mean_kld},
                    {"top1", bin.top1}});
  return list;
}

Json worst_json(const std::vector<Outlier>& worst, const TokenText& token_text) {
  Json list = Json::array();
  const auto token = [&](int32_t id) { return Json{{"id", id}, {"text", token_text(id)}}; };
  for (const Outlier& o : worst)
    list.push_back({{"window", o.window},
                    {"position", o.position},
                    {"kld", o.kld},
                    {"next", token(o.next)},
                    {"teacher_best", token(o.teacher_best)},
                    {"student_best", token(o.student_best)}});
  return list;
}

void add_divergence(Json& json, const QualityReport& report, const Divergence& d, const TokenText& token_text) {
  json["kld"] = {{"mean", d.kld.mean},     {"mean_error", optional(d.kld_error)},
                 {"std", d.kld.deviation}, {"p50", d.kld.p50},
                 {"p95", d.kld.p95},       {"p99", d.kld.p99},
                 {"cvar95", d.kld.cvar95}, {"max", d.kld.max}};
  json["top1"] = {{"agreement", d.top1}, {"error", optional(d.top1_error)}};
  Json runs = Json::array();
  for (const RunFigures& run : report.runs)
    runs.push_back({{"mean_kld", run.mean_kld},
                    {"top1", run.top1},
                    {"student_perplexity", run.student_perplexity},
                    {"seconds", run.seconds}});
  json["runs"] = {{"count", report.runs.size()},
                  {"mean_kld", report.mean_of_runs()},
                  {"mean_kld_std", report.deviation_of_runs()},
                  {"list", runs}};
  json["offset_audit"] = audit_json(d.audit);
  json["curve"] = curve_json(d.curve);
  json["log10_histogram"] = {{"first", Histogram::first_exponent},
                             {"step", 0.5},
                             {"below", d.histogram.below},
                             {"counts", d.histogram.counts}};
  json["worst"] = worst_json(d.worst, token_text);
}

}  // namespace

std::string quality_report_json(const QualityReport& report, const TokenText& token_text) {
  Json json;
  const bool compares = report.teacher.has_value();
  json["schema"] = compares ? "tandem.eval_kld/1" : "tandem.eval_ppl/1";
  json["text"] = text_json(report);
  if (compares) {
    json["teacher"] = side_json(report.teacher, report.teacher_perplexity);
    json["student"] = side_json(report.student, report.student_perplexity);
  } else {
    json.update(side_json(report.student, report.student_perplexity));
    json["seconds"] = report.runs.at(0).seconds;
  }
  if (report.divergence) add_divergence(json, report, *report.divergence, token_text);
  if (compares)
    json["capture"] =
        report.capture.empty() ? Json(nullptr) : Json{{"file", report.capture}, {"bytes", report.capture_bytes}};
  return json.dump(-1, ' ', true, Json::error_handler_t::replace) + "\n";
}

}  // namespace tandem::eval
