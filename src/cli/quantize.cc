// Options to eval::quantize, progress and report.
#include "cli/quantize.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <string_view>

#include "base/error.h"
#include "cli/calibration_text.h"
#include "cli/loaded_model.h"
#include "cli/progress_line.h"
#include "cli/standard_io.h"
#include "eval/quantize.h"

namespace tandem::cli {
namespace {

struct Choice {
  eval::Coding coding = eval::Coding::keep;
  int bits = 0;
};

// "exl3:4"; "exl3" alone where the widths are chosen by --bits-target.
Choice choice_of(const char* option, const std::string& word, const char* allowed, bool width_may_lack) {
  constexpr std::string_view exl3 = "exl3";
  const std::string_view name(word);
  const auto fits = [&](const char* coding) {
    return std::string_view(allowed).find(coding) != std::string_view::npos;
  };
  if (word == "keep" || word == "bf16") return {};
  if (word == "fp8" && fits("fp8")) return {eval::Coding::fp8, 0};
  if (word == "nvfp4" && fits("nvfp4")) return {eval::Coding::nvfp4, 0};
  if (name == exl3 && width_may_lack) return {eval::Coding::exl3, 0};
  if (name.starts_with("exl3:")) {
    const std::string_view number = name.substr(exl3.size() + 1);
    int bits = 0;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), bits);
    if (error == std::errc() && end == number.data() + number.size() && bits >= 1 && bits <= 8)
      return {eval::Coding::exl3, bits};
  }
  throw Error(ErrorCode::usage, option, '"' + word + '"', allowed);
}

template <typename Value>
Value value_of(const char* option, const std::string& word,
               std::initializer_list<std::pair<const char*, Value>> values) {
  std::string expected;
  for (const auto& [name, value] : values) {
    if (word == name) return value;
    expected += fmt::format("{}{}", expected.empty() ? "" : " or ", name);
  }
  throw Error(ErrorCode::usage, option, '"' + word + '"', expected);
}

// An option that would change nothing is a mistake.
void check_exl3_options(const QuantizeCommandOptions& given, const eval::QuantizeOptions& options) {
  if (options.exl3.layout == eval::Exl3Layout::tr3 && options.experts != eval::Coding::exl3)
    throw Error(ErrorCode::usage, "--layout", "tr3 with experts that are not in EXL3", "--experts exl3:BITS");
  if (options.has_exl3()) return;
  const QuantizeCommandOptions defaults;
  const auto check = [](const char* option, const std::string& value, const std::string& usual) {
    if (value != usual)
      throw Error(ErrorCode::usage, option, fmt::format("\"{}\", and nothing is written in EXL3", value),
                  "--experts, --dense or --head exl3:BITS beside it");
  };
  check("--codebook", given.codebook, defaults.codebook);
  check("--out-scales", given.out_scales, defaults.out_scales);
  check("--scale-search", given.scale_search, defaults.scale_search);
  if (!given.calibration.files.empty()) check("--calibration", given.calibration.files.front(), {});
}

eval::QuantizeOptions options_of(const QuantizeCommandOptions& given) {
  eval::QuantizeOptions options;
  const bool by_target = given.bits_target != 0;
  const Choice experts = choice_of("--experts", given.experts, "fp8, nvfp4, exl3:1 to exl3:8, or keep", by_target),
               dense = choice_of("--dense", given.dense, "fp8, exl3:1 to exl3:8, or keep", by_target),
               head = choice_of("--head", given.head, "exl3:1 to exl3:8, or keep", false);
  options.experts = experts.coding;
  options.dense = dense.coding;
  options.head = head.coding;
  eval::Exl3Options& exl3 = options.exl3;
  exl3.expert_bits = experts.bits;
  exl3.dense_bits = dense.bits;
  exl3.head_bits = head.bits;
  exl3.bits_target = given.bits_target;
  exl3.seed = given.seed;
  using quant::Exl3Codebook, quant::Exl3OutScales, quant::Exl3ScaleSearch;
  exl3.codebook = value_of<Exl3Codebook>(
      "--codebook", given.codebook,
      {{"mul1", Exl3Codebook::mul1}, {"mcg", Exl3Codebook::mcg}, {"3inst", Exl3Codebook::three_inst}});
  exl3.layout = value_of<eval::Exl3Layout>("--layout", given.layout,
                                           {{"exl3", eval::Exl3Layout::exl3}, {"tr3", eval::Exl3Layout::tr3}});
  exl3.out_scales = value_of<Exl3OutScales>(
      "--out-scales", given.out_scales,
      {{"always", Exl3OutScales::always}, {"never", Exl3OutScales::never}, {"auto", Exl3OutScales::automatic}});
  exl3.scale_search = value_of<Exl3ScaleSearch>(
      "--scale-search", given.scale_search,
      {{"full", Exl3ScaleSearch::full}, {"small", Exl3ScaleSearch::small}, {"none", Exl3ScaleSearch::none}});
  const bool takes_target = experts.coding == eval::Coding::exl3 || dense.coding == eval::Coding::exl3;
  if (by_target && (!takes_target || !(given.bits_target >= 1 && given.bits_target <= 8)))
    throw Error(ErrorCode::usage, "--bits-target", fmt::format("{}", given.bits_target),
                takes_target ? "a number from 1 to 8" : "experts or dense in exl3");
  check_exl3_options(given, options);
  if (given.out.empty()) throw Error(ErrorCode::usage, "--out", "missing", "the folder to write");
  options.model = checked_folder(given.model.empty() ? default_model() : given.model);
  options.out = given.out;
  options.threads = checked_threads(given.threads);
  return options;
}

std::string clock_text(double seconds) {
  const auto whole = static_cast<int64_t>(seconds);
  return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

// How far it is, and, once something was done here, what the rest and the whole take at this rate.
class Projection {
 public:
  std::string text(int64_t done, int64_t total) {
    const auto now = std::chrono::steady_clock::now();
    if (total != total_ || done < last_) {  // a new pass over the weights
      total_ = total;
      first_ = last_ = done;
      start_ = now;
    }
    last_ = done;
    const double share = static_cast<double>(done) / static_cast<double>(std::max<int64_t>(total, 1));
    std::string text = fmt::format("{:.0f} % of {:.1f} GB", 100 * share, static_cast<double>(total) / 1e9);
    const double seconds = std::chrono::duration<double>(now - start_).count();
    if (done == first_ || seconds < 1) return text;
    const double each = seconds / static_cast<double>(done - first_);
    return text + fmt::format(", {} left, {} for the whole model", clock_text(each * static_cast<double>(total - done)),
                              clock_text(each * static_cast<double>(total)));
  }

 private:
  int64_t first_ = 0, last_ = 0, total_ = -1;
  std::chrono::steady_clock::time_point start_;
};

// A drafter is found by the name of its model's folder, so a copy has none beside it.
std::string drafter_line(const std::filesystem::path& model, const std::filesystem::path& out) {
  const auto whole = std::filesystem::absolute(model).lexically_normal();
  const std::string drafter = (whole.has_filename() ? whole : whole.parent_path()).string() + "-dflash2";
  std::error_code error;
  if (!std::filesystem::exists(drafter, error)) return {};
  return fmt::format("The model's drafter goes with the copy, too: tandem serve {} --drafter-model {}\n", out.string(),
                     drafter);
}

}  // namespace

int run_quantize(const QuantizeCommandOptions& given) {
  eval::QuantizeOptions options = options_of(given);
  if (options.has_exl3())
    read_calibration(given.calibration, options.model, model::read_shape(options.model), given.window, options.exl3);
  eval::QuantizeReport report;
  {
    ProgressLine line;
    Projection projection;
    report = eval::quantize(options, [&](int64_t done, int64_t total) { line.show(projection.text(done, total)); });
  }
  write_out(given.json ? eval::quantize_json(report)
                       : eval::quantize_text(report) + drafter_line(options.model, options.out));
  return 0;
}

}  // namespace tandem::cli
