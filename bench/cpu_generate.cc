// Prefill and decode on the CPU against what the machine can do, measured in the same run: the fp32 multiply-add rate
// of all threads and the read rate of a set as large as the model's weights. The floor of a step is the larger of its
// bytes over the one and its multiply-adds over the other. Rounds alternate, so that a noisy machine disturbs all
// alike; medians and all samples are printed.
//   cpu_generate [MODEL] [--threads N] [--rounds N] [--json]
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "common.h"
#include "device/threads.h"
#include "forward/cost.h"
#include "forward/text_model.h"
#include "model/checkpoint.h"

namespace tandem {
namespace {

using bench::median;
using bench::seconds;

constexpr int64_t prefill_tokens = 512, decode_tokens = 256;

class Bench {
 public:
  explicit Bench(const bench::Options& options)
      : options_(options),
        threads_(options.threads),
        shape_(model::read_shape(options.model)),
        checkpoint_(model::Checkpoint::open(options.model)),
        weights_(model::load_text_weights(checkpoint_, shape_)),
        text_(shape_, weights_, threads_,
              forward::Capacity{.pages = pages + 1, .max_rows = prefill_tokens, .max_logit_rows = 1}),
        machine_(checkpoint_.total_bytes()) {
    for (int64_t i = 0; i < prefill_tokens + decode_tokens; ++i)
      tokens_.push_back(static_cast<int32_t>((i * 7919 + 13) % (shape_.vocab_size * 9 / 10)));
  }

  void run() {
    for (int round = -1; round < options_.rounds; ++round) {  // the first is a warm-up
      if (round >= 0) machine_.measure(threads_);
      const double prefill = prefill_seconds(), decode = decode_seconds();
      if (round < 0) continue;
      prefill_.push_back(prefill);
      decode_.push_back(decode);
    }
    print();
  }

 private:
  static constexpr int32_t pages = 4;

  double prefill_seconds() {
    forward::Step step = forward::single_stream_step(std::span(tokens_).first(prefill_tokens), 0, pages);
    step.logit_rows = {prefill_tokens - 1};
    return seconds([&] { text_.run(step); });
  }

  double decode_seconds() {
    return seconds([&] {
      for (int64_t i = prefill_tokens; i < prefill_tokens + decode_tokens; ++i) {
        forward::Step step =
            forward::single_stream_step(std::span(tokens_).subspan(static_cast<size_t>(i), 1), i, pages);
        step.logit_rows = {0};
        text_.run(step);
      }
    });
  }

  void print() const {
    const forward::Cost prefill = forward::step_cost(shape_, weights_, 0, prefill_tokens, 1);
    double decode_floor = 0;
    for (int64_t i = 0; i < decode_tokens; ++i)
      decode_floor += machine_.floor_of(forward::step_cost(shape_, weights_, prefill_tokens + i, 1, 1));
    const forward::Cost token = forward::step_cost(shape_, weights_, prefill_tokens + decode_tokens / 2, 1, 1);
    const double prefill_fraction = machine_.floor_of(prefill) / median(prefill_),
                 decode_fraction = decode_floor / median(decode_);
    if (options_.json) {
      const nlohmann::ordered_json out{{"schema", "tandem.bench.cpu_generate/1"},
                                       {"threads", threads_.count()},
                                       {"fma_per_second", machine_.fma_per_second},
                                       {"read_bytes_per_second", machine_.bytes_per_second},
                                       {"prefill_tokens", prefill_tokens},
                                       {"prefill_seconds", prefill_},
                                       {"prefill_multiply_adds", prefill.multiply_adds},
                                       {"prefill_bytes", prefill.bytes()},
                                       {"prefill_fraction_of_floor", prefill_fraction},
                                       {"decode_tokens", decode_tokens},
                                       {"decode_seconds", decode_},
                                       {"decode_multiply_adds_per_token", token.multiply_adds},
                                       {"decode_bytes_per_token", token.bytes()},
                                       {"decode_fraction_of_floor", decode_fraction}};
      fmt::print("{}\n", out.dump(1));
      return;
    }
    fmt::print("machine, {} threads: {:.1f} G multiply-adds/s, {:.1f} GB/s reading {:.1f} MB\n", threads_.count(),
               median(machine_.fma_per_second) / 1e9, median(machine_.bytes_per_second) / 1e9,
               static_cast<double>(checkpoint_.total_bytes()) / 1e6);
    fmt::print("prefill of {}: {:.0f} tokens/s, {:.1f} M multiply-adds a token, {:.0f} % of the floor\n",
               prefill_tokens, static_cast<double>(prefill_tokens) / median(prefill_),
               static_cast<double>(prefill.multiply_adds) / static_cast<double>(prefill_tokens) / 1e6,
               100 * prefill_fraction);
    fmt::print("decode of {}: {:.0f} tokens/s, {:.1f} MB and {:.1f} M multiply-adds a token, {:.0f} % of the floor\n",
               decode_tokens, static_cast<double>(decode_tokens) / median(decode_),
               static_cast<double>(token.bytes()) / 1e6, static_cast<double>(token.multiply_adds) / 1e6,
               100 * decode_fraction);
  }

  bench::Options options_;
  device::Threads threads_;
  model::Shape shape_;
  model::Checkpoint checkpoint_;
  model::TextWeights weights_;
  forward::TextModel text_;
  bench::Machine machine_;
  std::vector<int32_t> tokens_;
  std::vector<double> prefill_, decode_;
};

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) {
  const tandem::bench::Options options = tandem::bench::parse(argc, argv, 7);
  return tandem::bench::run("cpu_generate", [&] { tandem::Bench(options).run(); });
}
