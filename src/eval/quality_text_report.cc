// The report for people.
#include <fmt/format.h>

#include "eval/quality_report.h"
#include "model/json_reader.h"

namespace tandem::eval {
namespace {

std::string side_text(const QualitySide& side) {
  if (!side.capture.empty())
    return fmt::format("{}, capture of {} (config {:08x})", side.capture, side.name, side.config_crc);
  return fmt::format("{} (config {:08x}, {} compute, {} cache)", side.name, side.config_crc, side.compute,
                     side.kv_cache_dtype);
}

std::string plus_minus(const std::optional<double>& error, const char* format) {
  return error ? " ± " + fmt::format(fmt::runtime(format), *error) : "";
}

std::string perplexity_text(const char* whose, const std::optional<Perplexity>& perplexity) {
  if (!perplexity) return "";
  return fmt::format("{:<12}{:.6g} (nll {:.6g}{})\n", whose, perplexity->value(), perplexity->mean_nll,
                     plus_minus(perplexity->mean_nll_error, "{:.2g} over windows"));
}

std::string audit_text(const OffsetAudit& audit) {
  if (audit.positions == 0) return "offset      not audited: windows of two tokens\n";
  return fmt::format("offset      KLD at shifts -1, 0, +1: {:.4g}, {:.4g}, {:.4g}: {}\n", audit.means[0],
                     audit.means[1], audit.means[2], audit.passes() ? "ok" : "0 is not the clear minimum");
}

std::string worst_text(const Divergence& divergence, const TokenText& token_text) {
  std::string text = "\nworst positions\n  window position        KLD  next | teacher's best | student's best\n";
  const auto token = [&](int32_t id) { return fmt::format("{} \"{}\"", id, model::printable(token_text(id))); };
  for (const Outlier& o : divergence.worst)
    text += fmt::format("  {:>6} {:>8} {:>10.4g}  {} | {} | {}\n", o.window, o.position, o.kld, token(o.next),
                        token(o.teacher_best), token(o.student_best));
  return text;
}

std::string divergence_text(const QualityReport& report, const Divergence& d) {
  std::string text = fmt::format(
      "KLD         {:.6g}{}\n"
      "            deviation {:.4g}, P50 {:.4g}, P95 {:.4g}, P99 {:.4g}, CVaR95 {:.4g}, max {:.4g}\n"
      "top-1       {:.6f}{}\n",
      d.kld.mean, plus_minus(d.kld_error, "{:.2g} over windows"), d.kld.deviation, d.kld.p50, d.kld.p95, d.kld.p99,
      d.kld.cvar95, d.kld.max, d.top1, plus_minus(d.top1_error, "{:.2g}"));
  if (report.runs.size() > 1)
    text += fmt::format("runs        {}: mean KLD {:.6g}, deviation {:.3g}\n", report.runs.size(),
                        report.mean_of_runs(), report.deviation_of_runs());
  return text + audit_text(d.audit);
}

}  // namespace

std::string quality_report_text(const QualityReport& report, const TokenText& token_text) {
  std::string text;
  if (report.teacher) text += fmt::format("{:<12}{}\n", "teacher", side_text(*report.teacher));
  if (report.student)
    text += fmt::format("{:<12}{}\n", report.teacher ? "student" : "model", side_text(*report.student));
  text += fmt::format("text        {}: texts {}, windows {} of up to {} tokens, positions {}\n", report.text,
                      report.texts, report.windows, report.window, report.positions);
  text += fmt::format("tokens      {}, SHA-256 {}\n\n", report.tokens, report.token_sha256);
  if (report.divergence) text += divergence_text(report, *report.divergence);
  text += perplexity_text(report.student_perplexity ? "ppl teacher" : "perplexity", report.teacher_perplexity);
  text += perplexity_text(report.teacher_perplexity ? "ppl student" : "perplexity", report.student_perplexity);
  double seconds = 0;
  for (const RunFigures& run : report.runs) seconds += run.seconds;
  text += fmt::format("seconds     {:.1f}\n", seconds);
  if (!report.capture.empty()) text += fmt::format("capture     {}, {} bytes\n", report.capture, report.capture_bytes);
  if (report.divergence) text += worst_text(*report.divergence, token_text);
  return text;
}

}  // namespace tandem::eval
