// Prefill and decode on the CPU against what the machine can do, measured in the same run: the fp32 multiply-add rate
// of all threads and the read rate of a set as large as the model's weights. The floor of a step is the larger of its
// bytes over the one and its multiply-adds over the other. Rounds alternate, so that a noisy machine disturbs all
// alike; medians and all samples are printed.
//   cpu_generate [MODEL] [--threads N] [--rounds N] [--json]
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "device/threads.h"
#include "forward/cost.h"
#include "forward/text_model.h"
#include "model/checkpoint.h"
#include "ops/simd/kernels.h"

namespace tandem {
namespace {

constexpr int64_t prefill_tokens = 512, decode_tokens = 256;

struct Options {
  std::string model = std::string(TANDEM_SOURCE_DIR) + "/models/nano";
  int threads = 0, rounds = 7;
  bool json = false;
};

template <typename Body>
double seconds(const Body& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  return samples[samples.size() / 2];
}

class Bench {
 public:
  explicit Bench(const Options& options)
      : options_(options),
        threads_(options.threads),
        shape_(model::read_shape(options.model)),
        checkpoint_(model::Checkpoint::open(options.model)),
        weights_(model::load_text_weights(checkpoint_, shape_)),
        text_(shape_, weights_, threads_,
              forward::Capacity{.pages = pages + 1, .max_rows = prefill_tokens, .max_logit_rows = 1}),
        set_(static_cast<size_t>(checkpoint_.total_bytes()), std::byte{1}) {
    for (int64_t i = 0; i < prefill_tokens + decode_tokens; ++i)
      tokens_.push_back(static_cast<int32_t>((i * 7919 + 13) % (shape_.vocab_size * 9 / 10)));
  }

  void run() {
    for (int round = -1; round < options_.rounds; ++round) {  // the first is a warm-up
      const double fma = fma_rate(), read = read_rate(), prefill = prefill_seconds(), decode = decode_seconds();
      if (round < 0) continue;
      fma_.push_back(fma);
      read_.push_back(read);
      prefill_.push_back(prefill);
      decode_.push_back(decode);
    }
    print();
  }

 private:
  static constexpr int32_t pages = 4;

  double fma_rate() {
    const int64_t rounds = 2'000'000;
    std::vector<float> sink(static_cast<size_t>(threads_.count()));
    const double time = seconds([&] {
      threads_.run(threads_.count(),
                   [&](int64_t i) { sink[static_cast<size_t>(i)] = ops::kernels().fma_rounds(rounds); });
    });
    return static_cast<double>(rounds * ops::fma_round * threads_.count()) / time;
  }

  double read_rate() {
    const int64_t pieces = 64, size = static_cast<int64_t>(set_.size()) / pieces, repeats = 4;
    std::vector<uint64_t> sink(static_cast<size_t>(pieces));
    const double time = seconds([&] {
      for (int64_t repeat = 0; repeat < repeats; ++repeat) {
        threads_.run(pieces, [&](int64_t i) {
          sink[static_cast<size_t>(i)] = ops::kernels().read_bytes(set_.data() + i * size, size);
        });
      }
    });
    return static_cast<double>(pieces * size * repeats) / time;
  }

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

  double floor_of(const forward::Cost& cost) const {
    return std::max(static_cast<double>(cost.bytes()) / median(read_),
                    static_cast<double>(cost.multiply_adds) / median(fma_));
  }

  void print() const {
    const forward::Cost prefill = forward::step_cost(shape_, weights_, 0, prefill_tokens, 1);
    double decode_floor = 0;
    for (int64_t i = 0; i < decode_tokens; ++i)
      decode_floor += floor_of(forward::step_cost(shape_, weights_, prefill_tokens + i, 1, 1));
    const forward::Cost token = forward::step_cost(shape_, weights_, prefill_tokens + decode_tokens / 2, 1, 1);
    const double prefill_fraction = floor_of(prefill) / median(prefill_),
                 decode_fraction = decode_floor / median(decode_);
    if (options_.json) {
      const nlohmann::ordered_json out{{"schema", "tandem.bench.cpu_generate/1"},
                                       {"threads", threads_.count()},
                                       {"fma_per_second", fma_},
                                       {"read_bytes_per_second", read_},
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
               median(fma_) / 1e9, median(read_) / 1e9, static_cast<double>(set_.size()) / 1e6);
    fmt::print("prefill of {}: {:.0f} tokens/s, {:.1f} M multiply-adds a token, {:.0f} % of the floor\n",
               prefill_tokens, static_cast<double>(prefill_tokens) / median(prefill_),
               static_cast<double>(prefill.multiply_adds) / static_cast<double>(prefill_tokens) / 1e6,
               100 * prefill_fraction);
    fmt::print("decode of {}: {:.0f} tokens/s, {:.1f} MB and {:.1f} M multiply-adds a token, {:.0f} % of the floor\n",
               decode_tokens, static_cast<double>(decode_tokens) / median(decode_),
               static_cast<double>(token.bytes()) / 1e6, static_cast<double>(token.multiply_adds) / 1e6,
               100 * decode_fraction);
  }

  Options options_;
  device::Threads threads_;
  model::Shape shape_;
  model::Checkpoint checkpoint_;
  model::TextWeights weights_;
  forward::TextModel text_;
  std::vector<std::byte> set_;
  std::vector<int32_t> tokens_;
  std::vector<double> fma_, read_, prefill_, decode_;
};

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) {
  tandem::Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--json") {
      options.json = true;
    } else if (argument == "--threads" && i + 1 < argc) {
      options.threads = std::atoi(argv[++i]);
    } else if (argument == "--rounds" && i + 1 < argc) {
      options.rounds = std::max(1, std::atoi(argv[++i]));
    } else {
      options.model = argument;
    }
  }
  try {
    tandem::Bench(options).run();
  } catch (const std::exception& e) {
    fmt::print(stderr, "cpu_generate: {}\n", e.what());
    return 1;
  }
  return 0;
}
