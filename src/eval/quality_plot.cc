// One SVG of two panels, written as plain text: the file needs no script, font or other file to be seen.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "eval/quality_report.h"

namespace tandem::eval {
namespace {

constexpr double width = 860, panel_height = 250, left = 70, right = 20, top = 60, gap = 80, bottom = 60;

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      default: out += static_cast<unsigned char>(c) < 0x20 ? '?' : c;
    }
  }
  return out;
}

std::string label(double x, double y, const char* anchor, const std::string& text) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", x, y, anchor, escaped(text));
}

// A panel with its axes: x from x0 to x1, y from 0 to y1, linear.
struct Panel {
  double y_top, x0, x1, y1;

  double x(double value) const { return left + (value - x0) / (x1 - x0) * (width - left - right); }
  double y(double value) const { return y_top + panel_height * (1 - value / y1); }

  std::string frame(const std::string& title, const std::string& x_title, double x_step) const {
    std::string out = label(left, y_top - 10, "start", title);
    out += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"none\" stroke=\"#888\"/>\n", left,
                       y_top, width - left - right, panel_height);
    for (double tick = x0; tick <= x1 + 1e-9; tick += x_step)
      out += label(x(tick), y_top + panel_height + 18, "middle", fmt::format("{:g}", tick));
    for (int tick = 0; tick <= 4; ++tick)
      out += label(left - 6, y(y1 * tick / 4) + 4, "end", fmt::format("{:.3g}", y1 * tick / 4));
    return out + label((left + width - right) / 2, y_top + panel_height + 38, "middle", x_title);
  }
};

std::string curve_panel(const std::vector<CurveBin>& curve, double y_top) {
  double highest = 0;
  for (const CurveBin& bin : curve) highest = std::max(highest, bin.mean_kld);
  const double end = static_cast<double>(curve.back().last + 1);
  const Panel panel{y_top, 0, end, highest > 0 ? 1.05 * highest : 1};
  std::string out =
      panel.frame("mean KLD by position in the window (nats)", "position", std::max(1.0, std::ceil(end / 8)));
  out += "<polyline fill=\"none\" stroke=\"#1f5fa8\" stroke-width=\"2\" points=\"";
  for (const CurveBin& bin : curve)  // steps, as wide as the bins
    out += fmt::format("{:.1f},{:.1f} {:.1f},{:.1f} ", panel.x(static_cast<double>(bin.first)),
                       panel.y(std::max(0.0, bin.mean_kld)), panel.x(static_cast<double>(bin.last + 1)),
                       panel.y(std::max(0.0, bin.mean_kld)));
  return out + "\"/>\n";
}

std::string histogram_panel(const Histogram& histogram, double y_top) {
  const int64_t highest =
      std::max(histogram.below, *std::max_element(histogram.counts.begin(), histogram.counts.end()));
  const double first = Histogram::first_exponent, end = first + Histogram::decades;
  const Panel panel{y_top, first - 0.5, end, 1.05 * static_cast<double>(std::max<int64_t>(1, highest))};
  std::string out = panel.frame("positions by log10 KLD (the first bar: less than 1e-16, or 0)", "log10 KLD", 1.5);
  const auto bar = [&](double from, int64_t count) {
    const double y = panel.y(static_cast<double>(count));
    out += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"#1f5fa8\"/>\n",
                       panel.x(from) + 1, y, panel.x(from + 0.5) - panel.x(from) - 2, y_top + panel_height - y);
  };
  bar(first - 0.5, histogram.below);
  for (size_t i = 0; i < histogram.counts.size(); ++i) bar(first + 0.5 * static_cast<double>(i), histogram.counts[i]);
  return out;
}

}  // namespace

std::string quality_report_svg(const QualityReport& report) {
  const Divergence& d = report.divergence.value();
  const double second = top + panel_height + gap, height = second + panel_height + bottom;
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
      "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"{0}\" height=\"{1}\" fill=\"#fff\"/>\n",
      width, height);
  out += label(left, 24, "start",
               fmt::format("{} against {}: mean KLD {:.4g}, top-1 {:.4f}, {} positions",
                           report.student ? report.student->name : "student",
                           report.teacher ? report.teacher->name : "teacher", d.kld.mean, d.top1, report.positions));
  return out + curve_panel(d.curve, top) + histogram_panel(d.histogram, second) + "</svg>\n";
}

}  // namespace tandem::eval
