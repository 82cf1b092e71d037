// What drafts are worth, on the CPU with the bundled model.
//   rows      a step that verifies 1 to 16 rows of one stream, against its floor
//   table     the pieces of a round, measured as `tandem calibrate timing` does
// (both in processor time with --threads 1, which a busy machine does not disturb)
//   tokens    tokens a second with each drafter and depth on skill prompts and on free text, prompt by prompt in turn
//   policy    the joint policy against the best fixed depth of the same drafter, measured and by the table
// Floors as in cpu_generate: bytes over the read rate or multiply-adds over their rate, whichever is larger.
//   speculation [MODEL] [--threads N] [--rounds N] [--json]
#include <fmt/format.h>

#include <array>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "base/log.h"
#include "common.h"
#include "device/threads.h"
#include "draft/calibration.h"
#include "draft/step_timer.h"
#include "eval/acceptance.h"
#include "forward/cost.h"
#include "speculation_arms.h"
#include "text/tokenizer.h"

namespace tandem {
namespace {

using bench::Arm;
using bench::ArmSpec;
using bench::median;
using draft::Choice;
using Kind = draft::Policy::Kind;
using Json = nlohmann::ordered_json;

constexpr int32_t most_rows = 16, passes = 9, repeats = 12;
constexpr int64_t reply_tokens = 128;

std::vector<ArmSpec> specs() {
  std::vector<ArmSpec> list = {{"none", Choice::none}, {"copy", Choice::copy, Kind::joint}};
  for (int32_t depth = 1; depth <= 3; ++depth)
    list.push_back({fmt::format("mtp {}", depth), Choice::mtp, Kind::fixed, depth});
  list.push_back({"mtp joint", Choice::mtp, Kind::joint});
  for (int32_t depth = 1; depth <= 7; ++depth)
    list.push_back({fmt::format("dflash2 {}", depth), Choice::dflash2, Kind::fixed, depth});
  list.push_back({"dflash2 joint", Choice::dflash2, Kind::joint});
  list.push_back({"auto joint", Choice::automatic, Kind::joint});
  return list;
}

struct Workload {
  std::string name;
  std::vector<const eval::AcceptancePrompt*> prompts;
  // [arm][round]
  std::vector<std::vector<double>> rates, table_rates;
  std::vector<double> tokens_a_step;  // [arm]
};

class Bench {
 public:
  explicit Bench(const bench::Options& options)
      : options_(options),
        weights_(options.model),
        tokenizer_(text::Tokenizer::load(options.model)),
        prompts_(eval::read_acceptance_prompts(options.model + "/acceptance_prompts.jsonl", tokenizer_,
                                               weights_.shape.vocab_size)),
        machine_(weights_.checkpoint.total_bytes()) {
    workloads_[0].name = "skill prompts";
    workloads_[1].name = "free text";
    for (const auto& prompt : prompts_) {
      const bool is_free = prompt.name == "story";
      if (!is_free && number_of_skill_prompts_++ % 3 != 0) continue;  // a third of them is enough of every kind
      workloads_[is_free ? 1 : 0].prompts.push_back(&prompt);
    }
  }

  void run() {
    rows();
    calibrate();
    std::vector<std::unique_ptr<Arm>> arms;
    for (const ArmSpec& spec : specs()) arms.push_back(std::make_unique<Arm>(weights_, spec, table_, options_.threads));
    for (int round = -1; round < options_.rounds;
         ++round)  // the first one is not counted: confidences are learnt in it
      for (Workload& workload : workloads_) run_round(arms, workload, round);
    options_.json ? print_json() : print();
  }

 private:
  draft::StepTimer timer_on(engine::StepRunner& model) const {
    draft::StepTimerOptions timing;
    timing.max_rows = 256;
    timing.vocab_size = weights_.shape.vocab_size;
    if (options_.threads == 1) timing.now_ms = bench::own_ms;
    return draft::StepTimer(model, timing, workloads_[1].prompts.front()->ids);
  }

  // Steps of all sizes in turn, so that noise meets them alike.
  void rows() {
    const auto model = bench::load(weights_, Choice::none, options_.threads);
    draft::StepTimer timer = timer_on(*model);
    row_ms_.resize(most_rows);
    for (int32_t pass = 0; pass < passes; ++pass) {
      {
        device::Threads threads(options_.threads);
        machine_.measure(threads, options_.threads == 1 ? bench::own_ms : bench::wall_ms);
      }
      timer.begin_pass(pass);
      for (int32_t repeat = 0; repeat < repeats; ++repeat)
        for (int32_t count = 1; count <= most_rows; ++count)
          row_ms_[static_cast<size_t>(count - 1)].push_back(timer.time({draft::Piece::Kind::verify, count}));
    }
    for (int32_t count = 1; count <= most_rows; ++count)
      floor_ms_.push_back(1e3 * machine_.floor_of(forward::step_cost(weights_.shape, weights_.text, 64, count, count)));
  }

  void calibrate() {
    const auto model = bench::load(weights_, Choice::automatic, options_.threads);
    draft::StepTimer timer = timer_on(*model);
    table_ = draft::calibrate(timer, {.rows = most_rows, .mtp_drafts = 3, .blocks = true}).table;
  }

  void run_round(const std::vector<std::unique_ptr<Arm>>& arms, Workload& workload, int round) {
    std::vector<bench::Timed> sums(arms.size());
    for (size_t i = 0; i < workload.prompts.size(); ++i) {
      for (size_t turn = 0; turn < arms.size(); ++turn) {
        const size_t number = (turn + i) % arms.size();
        const bench::Timed timed =
            arms[number]->run(workload.prompts[i]->ids, reply_tokens, weights_.shape.eos_token_ids);
        sums[number].tokens += timed.tokens;
        sums[number].steps += timed.steps;
        sums[number].seconds += timed.seconds;
        sums[number].table_ms += timed.table_ms;
      }
    }
    if (round < 0) return;
    workload.rates.resize(arms.size());
    workload.table_rates.resize(arms.size());
    workload.tokens_a_step.resize(arms.size());
    for (size_t i = 0; i < arms.size(); ++i) {
      const auto tokens = static_cast<double>(sums[i].tokens);
      workload.rates[i].push_back(tokens / sums[i].seconds);
      workload.table_rates[i].push_back(1e3 * tokens / sums[i].table_ms);
      workload.tokens_a_step[i] = tokens / static_cast<double>(sums[i].steps);
    }
  }

  // The joint policy's rate over the largest of the fixed depths, none included, of one drafter.
  struct Comparison {
    std::string best;
    double share = 0;
  };
  static Comparison compare(const std::vector<std::vector<double>>& rates, Choice choice) {
    const std::vector<ArmSpec> list = specs();
    Comparison comparison;
    double best = 0, joint = 0;
    for (size_t i = 0; i < list.size(); ++i) {
      const double rate = median(rates[i]);
      if (list[i].choice == choice && list[i].policy == Kind::joint) joint = rate;
      const bool fixed = list[i].choice == Choice::none || (list[i].choice == choice && list[i].policy == Kind::fixed);
      if (fixed && rate > best) best = rate, comparison.best = list[i].name;
    }
    comparison.share = joint / best;
    return comparison;
  }

  // The quick ones of the samples: what else the machine does is in the others.
  double ms_of(int32_t rows) const { return bench::quantile(row_ms_[static_cast<size_t>(rows - 1)], 0.1); }
  std::vector<double> rows_p10() const {
    std::vector<double> all;
    for (int32_t rows = 1; rows <= most_rows; ++rows) all.push_back(ms_of(rows));
    return all;
  }
  // Rows a second of a step of so many over those of a step of one: measured, over the same ratio of their floors.
  double fraction(int32_t rows) const {
    return (floor_ms_[static_cast<size_t>(rows - 1)] / floor_ms_[0]) / (ms_of(rows) / ms_of(1));
  }

  void print() const {
    fmt::print("machine: {:.1f} G multiply-adds/s, {:.1f} GB/s reading\n", median(machine_.fma_per_second) / 1e9,
               median(machine_.bytes_per_second) / 1e9);
    fmt::print("rows   ms      of one   floor ms   of one   share of the ratio of floors\n");
    for (int32_t rows = 1; rows <= most_rows; ++rows)
      fmt::print("{:4}   {:.4f}  {:6.2f}   {:.4f}     {:6.2f}   {:3.0f} %\n", rows, ms_of(rows), ms_of(rows) / ms_of(1),
                 floor_ms_[static_cast<size_t>(rows - 1)], floor_ms_[static_cast<size_t>(rows - 1)] / floor_ms_[0],
                 100 * fraction(rows));
    fmt::print("table: V(1) {:.4f}, V(2) {:.4f}, V(8) {:.4f}, V(16) {:.4f}; MTP {:.4f} + {:.4f}, block {:.4f} ms\n",
               table_.verify(1), table_.verify(2), table_.verify(8), table_.verify(16), table_.mtp_ms,
               table_.mtp_step_ms, table_.block_ms);
    const std::vector<ArmSpec> list = specs();
    for (const Workload& workload : workloads_) {
      fmt::print("\n{}: {} prompts\n{:<16} {:>9} {:>8} {:>12} {:>10}\n", workload.name, workload.prompts.size(), "",
                 "tokens/s", "of none", "by the table", "a step");
      for (size_t i = 0; i < list.size(); ++i)
        fmt::print("{:<16} {:9.0f} {:8.2f} {:12.0f} {:10.2f}\n", list[i].name, median(workload.rates[i]),
                   median(workload.rates[i]) / median(workload.rates[0]), median(workload.table_rates[i]),
                   workload.tokens_a_step[i]);
      for (const Choice choice : {Choice::mtp, Choice::dflash2}) {
        const Comparison measured = compare(workload.rates, choice), table = compare(workload.table_rates, choice);
        fmt::print("{} joint: {:.1f} % of the best fixed depth ({}); by the table {:.1f} % ({})\n",
                   draft::name_of(choice), 100 * measured.share, measured.best, 100 * table.share, table.best);
      }
    }
  }

  void print_json() const {
    Json out{{"schema", "tandem.bench.speculation/1"},
             {"fma_per_second", machine_.fma_per_second},
             {"read_bytes_per_second", machine_.bytes_per_second},
             {"rows_ms", row_ms_},
             {"rows_floor_ms", floor_ms_},
             {"rows_p10_ms", rows_p10()},
             {"eight_rows_fraction", fraction(8)},
             {"table",
              {{"verify_ms", table_.verify_ms},
               {"mtp_ms", table_.mtp_ms},
               {"mtp_step_ms", table_.mtp_step_ms},
               {"mtp_row_ms", table_.mtp_row_ms},
               {"block_ms", table_.block_ms}}}};
    const std::vector<ArmSpec> list = specs();
    for (const Workload& workload : workloads_) {
      Json one{{"name", workload.name}, {"prompts", workload.prompts.size()}};
      for (size_t i = 0; i < list.size(); ++i)
        one["arms"].push_back({{"name", list[i].name},
                               {"tokens_per_second", workload.rates[i]},
                               {"table_tokens_per_second", workload.table_rates[i]},
                               {"tokens_per_step", workload.tokens_a_step[i]}});
      for (const Choice choice : {Choice::mtp, Choice::dflash2}) {
        const Comparison measured = compare(workload.rates, choice), table = compare(workload.table_rates, choice);
        one["policy"][std::string(draft::name_of(choice))] = {{"best_fixed", measured.best},
                                                              {"share_of_best", measured.share},
                                                              {"table_best_fixed", table.best},
                                                              {"table_share_of_best", table.share}};
      }
      out["workloads"].push_back(one);
    }
    fmt::print("{}\n", out.dump(1));
  }

  bench::Options options_;
  bench::Weights weights_;
  text::Tokenizer tokenizer_;
  std::vector<eval::AcceptancePrompt> prompts_;
  int64_t number_of_skill_prompts_ = 0;
  bench::Machine machine_;
  std::array<Workload, 2> workloads_;
  std::vector<std::vector<double>> row_ms_;  // [rows − 1][sample]
  std::vector<double> floor_ms_;
  draft::TimingTable table_;
};

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) {
  tandem::set_log_level(tandem::LogLevel::warning);
  const tandem::bench::Options options = tandem::bench::parse(argc, argv, 5);
  return tandem::bench::run("speculation", [&] { tandem::Bench(options).run(); });
}
