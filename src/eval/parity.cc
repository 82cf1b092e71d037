// Finds the golden cases and their models, runs them, and prints what came out.
#include "eval/parity.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "eval/parity_case.h"
#include "eval/parity_rounded.h"

namespace tandem::eval {
namespace {

namespace fs = std::filesystem;

// "case_T40" before "case_T259".
bool by_length(const fs::path& a, const fs::path& b) {
  const std::string x = a.stem().string(), y = b.stem().string();
  return x.size() != y.size() ? x.size() < y.size() : x < y;
}

std::vector<fs::path> sorted_entries(const fs::path& folder, bool folders) {
  std::error_code failure;
  std::vector<fs::path> out;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, failure)) {
    if (entry.is_directory() == folders) out.push_back(entry.path());
  }
  if (failure) throw Error(ErrorCode::bad_file, folder.string(), failure.message(), "a folder of golden vectors");
  std::sort(out.begin(), out.end(), by_length);
  return out;
}

fs::path model_folder(const ParityOptions& options, const fs::path& golden) {
  const std::string name = golden.filename().string();
  for (const fs::path& candidate :
       {golden, fs::absolute(options.golden).parent_path() / name, options.bundled_models / name}) {
    if (fs::exists(candidate / "config.json")) return candidate;
  }
  throw Error(ErrorCode::bad_file, golden.string(),
              "no config.json here, beside the golden folder or among the bundled models",
              "the model whose vectors these are");
}

bool starts_with_case(const fs::path& file) {
  return file.stem().string().rfind("case_T", 0) == 0 && file.extension() == ".safetensors";
}

class ModelRun {
 public:
  ModelRun(const ParityOptions& options, const fs::path& golden, device::Threads& threads, ParityReport& report)
      : options_(options), golden_(golden), name_(golden.filename().string()), threads_(threads), report_(report) {}

  void run() {
    const std::vector<fs::path> files = sorted_entries(golden_, false);
    if (std::none_of(files.begin(), files.end(), starts_with_case)) {
      if (fs::exists(golden_ / "cases.json"))
        report_.skipped.push_back(name_ + ": drafter cases come with speculation");
      return;
    }
    const fs::path folder = model_folder(options_, golden_);
    const model::Shape shape = model::read_shape(folder);
    const model::Checkpoint checkpoint = model::Checkpoint::open(folder);
    const model::TextWeights weights = model::load_text_weights(checkpoint, shape);
    // Tiny random models are held to 3e-5 of the largest value, trained ones to 1e-5 (tests/golden/README.md).
    const bool tiny = name_.rfind("tiny", 0) == 0;
    const ParityModel model{name_, &shape, &weights, &threads_, options_.mutation, tiny ? 3e-5 : 1e-5};
    for (const fs::path& file : files) run_file(model, folder, file);
  }

 private:
  void run_file(const ParityModel& model, const fs::path& folder, const fs::path& file) {
    const std::string stem = file.stem().string();
    if (!options_.only.empty() && options_.only != name_ && options_.only != name_ + "/" + stem) return;
    const auto timed = [&](const auto& body) {
      if (options_.progress) options_.progress(name_ + "/" + stem);
      const auto start = std::chrono::steady_clock::now();
      report_.cases.push_back(body());
      report_.cases.back().seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    };
    const bool rounded = options_.compute == forward::Compute::bf16;
    if (starts_with_case(file) && rounded) {
      if (model::Checkpoint::open(file).find("logits") == nullptr) return;
      timed([&] { return run_rounded_case(model, file, options_.gpu); });
    } else if (rounded) {
      return;  // what does not depend on arithmetic, or is held to fp32's tolerance
    } else if (starts_with_case(file)) {
      timed([&] { return run_case(model, file); });
    } else if (stem == "greedy") {
      timed([&] { return run_greedy(model, file); });
    } else if (stem == "tokenizer_cases") {
      timed([&] { return run_tokenizer_cases(name_, folder, file); });
    } else if (stem == "chat_template_cases") {
      timed([&] { return run_template_cases(name_, folder, file); });
    } else if (stem.rfind("image", 0) == 0) {
      report_.skipped.push_back(
          fmt::format("{}/{}: pictures come with the vision tower", name_, file.filename().string()));
    }
  }

  const ParityOptions& options_;
  fs::path golden_;
  std::string name_;
  device::Threads& threads_;
  ParityReport& report_;
};

std::string describe(const Count& c) {
  std::string text = fmt::format("{} {}/{}", c.name, c.equal, c.total);
  if (c.excused > 0) text += fmt::format(" ({} after a near-tie)", c.excused);
  if (!c.first_difference.empty()) text += fmt::format(" DIFFERENT: {}", c.first_difference);
  return text;
}

// Worst measure of those whose name starts with `prefix`.
std::string worst(const CaseReport& c, const std::string& prefix) {
  const Measure* found = nullptr;
  for (const Measure& m : c.measures) {
    const bool matches = m.name == prefix || (prefix.back() == '.' && m.name.rfind(prefix, 0) == 0);
    if (matches && (found == nullptr || m.error > found->error)) found = &m;
  }
  return found == nullptr ? "-" : fmt::format("{:.1e}", found->error);
}

}  // namespace

bool CaseReport::ok() const {
  return std::all_of(measures.begin(), measures.end(), [](const Measure& m) { return m.ok; }) &&
         std::all_of(counts.begin(), counts.end(), [](const Count& c) { return c.equal + c.excused == c.total; });
}

bool CaseReport::used_near_tie() const {
  return std::any_of(measures.begin(), measures.end(), [](const Measure& m) { return m.near_tie; }) ||
         std::any_of(counts.begin(), counts.end(), [](const Count& c) { return c.excused > 0; });
}

bool ParityReport::ok() const {
  const auto near_ties =
      std::count_if(cases.begin(), cases.end(), [](const CaseReport& c) { return c.used_near_tie(); });
  return !cases.empty() && near_ties <= max_near_tie_cases &&
         std::all_of(cases.begin(), cases.end(), [](const CaseReport& c) { return c.ok(); });
}

ParityReport run_parity(const ParityOptions& options) {
  device::Threads threads(options.threads);
  ParityReport report;
  for (const fs::path& folder : sorted_entries(options.golden, true)) {
    if (options.only.empty() || options.only.rfind(folder.filename().string(), 0) == 0)
      ModelRun(options, folder, threads, report).run();
  }
  if (report.cases.empty())
    throw Error(ErrorCode::bad_file, options.golden.string(), "no golden case found",
                "folders with case_T*.safetensors");
  return report;
}

namespace {

// Of cases in bf16.
std::string rounded_text(const ParityReport& report) {
  std::string out = fmt::format("{:<28}{:>20}{:>16}  {}\n", "case", "median relative L2", "mean KL, nats", "result");
  for (const CaseReport& c : report.cases) {
    out += fmt::format("{:<28}{:>20}{:>16}  {}\n", c.model + "/" + c.name, worst(c, "logits_l2"), worst(c, "logits_kl"),
                       c.ok() ? "ok" : "FAILED");
    for (const Measure& m : c.measures) {
      if (!m.ok) out += fmt::format("    {}: {:.2e}, tolerance {:.0e}\n", m.name, m.error, m.tolerance);
    }
  }
  return out + fmt::format("{}: {} cases\n", report.ok() ? "parity" : "NO PARITY", report.cases.size());
}

}  // namespace

std::string parity_text(const ParityReport& report) {
  const std::vector<Measure>* first = report.cases.empty() ? nullptr : &report.cases.front().measures;
  if (first != nullptr && !first->empty() && first->front().name == "logits_l2") return rounded_text(report);
  std::string out = fmt::format("{:<28}{:>9}{:>9}{:>9}{:>9}{:>9}{:>9}{:>9}{:>9}  {}\n", "case", "logits", "chunked",
                                "decode", "streams", "hidden", "state", "conv", "mtp", "result");
  for (const CaseReport& c : report.cases) {
    const char* result = !c.ok() ? "FAILED" : c.used_near_tie() ? "ok (near-tie)" : "ok";
    out += fmt::format("{:<28}{:>9}{:>9}{:>9}{:>9}{:>9}{:>9}{:>9}{:>9}  {}", c.model + "/" + c.name, worst(c, "logits"),
                       worst(c, "logits_chunked"), worst(c, "logits_decode"), worst(c, "streams."),
                       worst(c, "final_hidden"), worst(c, "kda_state."), worst(c, "conv_state."),
                       worst(c, "mtp_hidden"), result);
    for (const Count& count : c.counts) out += "; " + describe(count);
    out += '\n';
    for (const Measure& m : c.measures) {
      if (!m.ok) out += fmt::format("    {}: {:.2e}, tolerance {:.0e}\n", m.name, m.error, m.tolerance);
    }
  }
  for (const std::string& skipped : report.skipped) out += "not checked: " + skipped + "\n";
  return out + fmt::format("{}: {} cases\n", report.ok() ? "parity" : "NO PARITY", report.cases.size());
}

std::string parity_json(const ParityReport& report) {
  nlohmann::ordered_json out{
      {"schema", "tandem.parity/1"}, {"ok", report.ok()}, {"cases", nlohmann::ordered_json::array()}};
  for (const CaseReport& c : report.cases) {
    nlohmann::ordered_json entry{{"model", c.model}, {"case", c.name}, {"ok", c.ok()}, {"seconds", c.seconds}};
    entry["first_near_tie"] =
        c.first_near_tie < 0 ? nlohmann::ordered_json() : nlohmann::ordered_json(c.first_near_tie);
    for (const Measure& m : c.measures) {
      entry["measures"].push_back(
          {{"name", m.name}, {"error", m.error}, {"tolerance", m.tolerance}, {"near_tie", m.near_tie}, {"ok", m.ok}});
    }
    for (const Count& n : c.counts) {
      entry["counts"].push_back({{"name", n.name},
                                 {"equal", n.equal},
                                 {"total", n.total},
                                 {"excused", n.excused},
                                 {"first_difference", n.first_difference}});
    }
    out["cases"].push_back(entry);
  }
  out["not_checked"] = report.skipped;
  return out.dump(1) + "\n";
}

}  // namespace tandem::eval
